"""An agent for several turns: every action is a tool call, every observation its result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sao_gym.agents.chat import Chat, Remembered


class Tools:
    """Observation, action, observation, ...; token in, token out."""

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
            max_new_tokens: longest action, the stop token included.
            stop: a symbol that ends an action besides the end-of-sequence token.
            system: instructions put before the first observation.

        Raises:
            InputError: `stop` is not one token, or the chat template rewrites earlier turns.
        """
        chat = Chat(tokenizer, max_new_tokens=max_new_tokens, stop=stop, system=system)
        chat.check_history()
        self.max_new_tokens = max_new_tokens
        self.stop_ids = chat.stop_ids
        self.closing = chat.closing
        self._begin = Remembered(chat.begin)
        self._observe = Remembered(chat.observe)
        self._act = Remembered(chat.act)
        self._spell = Remembered(chat.spell)

    def begin(self, observation: str) -> tuple[int, ...]:
        """The first prompt's tokens.

        Raises:
            InputError: the tokenizer cannot say the observation.
        """
        return self._begin(observation)

    def observe(self, observation: str) -> tuple[int, ...]:
        """The tokens that follow an action: the observation as the next turn.

        After an action that hit `max_new_tokens` the run puts `closing` before them, as part of the
        observation: a template's turn is never left open, and nobody is trained on the stop token.

        Raises:
            InputError: the tokenizer cannot say the observation.
        """
        return self._observe(observation)

    def act(self, action_ids: Sequence[int]) -> str:
        """The action, without the stop token that ended it."""
        return self._act(tuple(action_ids))

    def spell(self, action: str) -> tuple[int, ...]:
        """The tokens of an action as the policy should sample it, for demonstrations.

        Raises:
            InputError: it is longer than `max_new_tokens`, or the tokenizer cannot say it.
        """
        return self._spell(action)
