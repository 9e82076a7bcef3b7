"""Turns as token ids: with the tokenizer's chat template if it has one, else plain text.

    template   begin:    <system><user OBSERVATION><opening of the assistant's turn>
               observe:  what follows the stop token of the assistant's turn, up to the next opening
    plain      begin:    SYSTEM OBSERVATION          observe:  OBSERVATION

History is never tokenised again: `observe` gives only what is to be appended. So a template must
keep what it wrote; one that rewrites earlier turns (many drop earlier thinking) is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

from sao_gym.errors import InputError
from sao_gym.tokenizer import decode, encode

Message: TypeAlias = dict[str, str]
Key = TypeVar("Key")
Value = TypeVar("Value")

# Stand-ins for what will be said. Templates that rewrite history do so to thinking.
_ASKED = "placeholder question"
_SAID = "placeholder"
_THOUGHT = "<think>\nplaceholder\n</think>\n\nplaceholder"
_MARK = "\ue000"


class Chat:
    """How one tokenizer writes turns. Nothing changes after construction."""

    def __init__(
        self, tokenizer: Any, *, max_new_tokens: int, stop: str | None, system: str | None
    ) -> None:
        """Find the stop tokens: end of sequence, and `stop` or what closes a turn in the template.

        Args:
            tokenizer: a `transformers` tokenizer.
            max_new_tokens: longest action, its stop token included.
            stop: a further symbol that ends an action.
            system: instructions that open every episode.

        Raises:
            InputError: `stop` is not one token, or `max_new_tokens` is below 1.
        """
        if max_new_tokens < 1:
            raise InputError(f"agent: max_new_tokens must be at least 1, not {max_new_tokens!r}")
        self._tokenizer = tokenizer
        self._most = max_new_tokens
        self._system = system or ""
        self._template = getattr(tokenizer, "chat_template", None) is not None
        self._closing: int | None = self._find_closing(stop)
        ends = {self._closing, tokenizer.eos_token_id} - {None}
        self.stop_ids: frozenset[int] = frozenset(ends)
        # plain text needs no end of a turn; a template's turn is never left open
        self.closing: tuple[int, ...] = ()
        if self._template and self._closing is not None:
            self.closing = (self._closing,)

    def begin(self, observation: str) -> tuple[int, ...]:
        """Ids that open an episode."""
        if not self._template:
            return encode(self._tokenizer, self._system + observation)
        return self._written(observation, lambda text: self._render(self._opening(text), True))

    def observe(self, observation: str) -> tuple[int, ...]:
        """Ids to append after an action and its stop token."""
        if not self._template:
            return encode(self._tokenizer, observation)
        return self._written(observation, lambda text: self._delta(text, _SAID))

    def act(self, action_ids: tuple[int, ...]) -> str:
        """The text of an action, without the stop token that ended it."""
        if action_ids and action_ids[-1] in self.stop_ids:
            action_ids = action_ids[:-1]
        return decode(self._tokenizer, action_ids)

    def spell(self, action: str) -> tuple[int, ...]:
        """The ids that the policy should sample for `action`: closed by a stop token.

        An action of exactly `max_new_tokens` is ended by that limit and needs no stop token.

        Raises:
            InputError: `action` is longer, or cannot be said.
        """
        ids = encode(self._tokenizer, action)
        if len(ids) > self._most:
            raise InputError(
                f"agent: action {action!r} is {len(ids)} tokens, more than max_new_tokens "
                f"{self._most}: raise it"
            )
        if len(ids) == self._most or self._closing is None:
            return ids
        return (*ids, self._closing)

    def check_history(self) -> None:
        """Check that the template only ever appends.

        Raises:
            InputError: it rewrites earlier turns, or closes a turn with something else than a
                stop token.
        """
        if not self._template:
            return
        for said in (_SAID, _THOUGHT):
            if self._delta(_ASKED, said) != self._delta(_ASKED, said, earlier=1):
                raise InputError(_rewrites("writes a later turn otherwise than an earlier one"))

    def _find_closing(self, stop: str | None) -> int | None:
        """The token that ends an action: `stop`, or what closes a turn in the template, or eos."""
        if stop is not None:
            ids = encode(self._tokenizer, stop, control=True)
            if len(ids) != 1:
                raise InputError(
                    f"agent: stop {stop!r} is {len(ids)} tokens; it must be one: choose a symbol "
                    "of the tokenizer"
                )
            return ids[0]
        if self._template:
            opened, closed = self._turn(_SAID, earlier=0)
            said = opened + _SAID
            known: dict[str, int] = self._tokenizer.get_added_vocab()
            tokens = [token for token in known if closed.startswith(said + token)]
            if tokens:
                return known[max(tokens, key=len)]
        end: int | None = self._tokenizer.eos_token_id
        return end

    def _opening(self, observation: str) -> list[Message]:
        system = [{"role": "system", "content": self._system}] if self._system else []
        return [*system, {"role": "user", "content": observation}]

    def _render(self, messages: Sequence[Message], opened: bool) -> str:
        from jinja2 import TemplateError

        try:
            text: str = self._tokenizer.apply_chat_template(
                list(messages), add_generation_prompt=opened, tokenize=False
            )
        except TemplateError as error:
            roles = ", ".join(message["role"] for message in messages)
            raise InputError(
                f"agent: the chat template refuses the turns {roles}: {error}"
            ) from error
        return text

    def _history(self, said: str, earlier: int) -> list[Message]:
        """An opening and `earlier` turns, waiting for the assistant."""
        turn = [{"role": "assistant", "content": said}, {"role": "user", "content": _ASKED}]
        return [*self._opening(_ASKED), *turn * earlier]

    def _turn(self, said: str, earlier: int) -> tuple[str, str]:
        """The text up to where the assistant speaks, and the text once it has said `said`."""
        history = self._history(said, earlier)
        spoken = [*history, {"role": "assistant", "content": said}]
        return self._render(history, True), self._render(spoken, False)

    def _delta(self, observation: str, said: str, earlier: int = 0) -> str:
        """What the template appends after the stop token of a turn in which `said` was said."""
        opened, closed = self._turn(said, earlier)
        whole = self._render(
            [
                *self._history(said, earlier),
                {"role": "assistant", "content": said},
                {"role": "user", "content": observation},
            ],
            True,
        )
        if not closed.startswith(opened + said):
            raise InputError(_rewrites("does not repeat what the model said word for word"))
        if not whole.startswith(closed):
            raise InputError(_rewrites("rewrites a turn once another follows"))
        rest = whole[len(opened) + len(said) :]
        stop = "" if self._closing is None else decode(self._tokenizer, (self._closing,))
        if not stop or not rest.startswith(stop):
            raise InputError(
                f"agent: the chat template closes a turn with {rest[:20]!r}, which does not begin "
                f"with the stop token {stop!r}: name the right one as the agent's `stop`"
            )
        return rest[len(stop) :]

    def _written(self, observation: str, render: Callable[[str], str]) -> tuple[int, ...]:
        """Ids of a rendered text. Control tokens are read in the template, never in its content."""
        forged = any(token in observation for token in self._tokenizer.all_special_tokens)
        if not forged:
            return encode(self._tokenizer, render(observation), control=True)
        before, after = render(_MARK).split(_MARK)
        content = encode(self._tokenizer, observation)
        return (
            *encode(self._tokenizer, before, control=True),
            *content,
            *encode(self._tokenizer, after, control=True),
        )


class Remembered(Generic[Key, Value]):
    """`function`, its last few thousand results kept: texts repeat, tokenising takes 50 us."""

    def __init__(self, function: Callable[[Key], Value], size: int = 4096) -> None:
        self._function = function
        self._size = size
        self._results: dict[Key, Value] = {}

    def __call__(self, key: Key) -> Value:
        try:
            return self._results[key]
        except KeyError:
            pass
        value = self._function(key)
        if len(self._results) >= self._size:
            self._results.clear()
        self._results[key] = value
        return value


def _rewrites(how: str) -> str:
    return (
        f"agent: the tokenizer's chat template {how}, so the model would be trained on text that "
        "it never saw; use a template that only appends, or an environment of one turn"
    )
