"""An agent that answers once: the observation is the prompt, what it says is the action."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sao_gym.agents.chat import Chat, Remembered
from sao_gym.errors import InputError


class Answer:
    """One prompt, one answer. For environments of several turns use `tools`."""

    def __init__(
        self,
        tokenizer: Any,
        *,
        max_new_tokens: int = 64,
        stop: str | None = None,
        system: str | None = None,
    ) -> None:
        """Bind the tokenizer.

        Args:
            tokenizer: a `transformers` tokenizer; its chat template is used if it has one.
            max_new_tokens: longest answer, the stop token included.
            stop: a symbol that ends the answer besides the end-of-sequence token.
            system: instructions put before the prompt.

        Raises:
            InputError: `stop` is not one token of the tokenizer.
        """
        chat = Chat(tokenizer, max_new_tokens=max_new_tokens, stop=stop, system=system)
        self.max_new_tokens = max_new_tokens
        self.stop_ids = chat.stop_ids
        self.closing = chat.closing
        self._begin = Remembered(chat.begin)
        self._act = Remembered(chat.act)
        self._spell = Remembered(chat.spell)

    def begin(self, observation: str) -> tuple[int, ...]:
        """The prompt's tokens.

        Raises:
            InputError: the tokenizer cannot say the observation.
        """
        return self._begin(observation)

    def observe(self, observation: str) -> tuple[int, ...]:
        """Refuse: this agent answers once.

        Raises:
            InputError: always.
        """
        raise InputError(
            "agent `answer` answers once, but the environment went on after its first action: "
            "use agent `tools`"
        )

    def act(self, action_ids: Sequence[int]) -> str:
        """The answer, without the stop token that ended it."""
        return self._act(tuple(action_ids))

    def spell(self, action: str) -> tuple[int, ...]:
        """The tokens of an answer as the policy should sample it, for demonstrations.

        Raises:
            InputError: it is longer than `max_new_tokens`, or the tokenizer cannot say it.
        """
        return self._spell(action)
