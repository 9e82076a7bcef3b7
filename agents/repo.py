"""An agent for `repo_fix`: one tool call a turn, in a few symbols or on one line.

The compact calls of small models are one to three symbols; the third ends the call by itself, a
shorter one is ended by a stop token. For calls in full (`edit PATH LINE NEW-LINE`) give more tokens
and, say, a line feed as `stop`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sao_gym.agents.chat import Chat, Remembered


class Repo:
    """Tool calls as tokens; token in, token out."""

    def __init__(
        self,
        tokenizer: Any,
        *,
        max_new_tokens: int = 3,
        stop: str | None = None,
        system: str | None = None,
    ) -> None:
        """Bind the tokenizer.

        Args:
            tokenizer: a `transformers` tokenizer; its chat template is used if it has one.
            max_new_tokens: longest call; one that is shorter ends with a stop token.
            stop: a symbol that ends a call besides the end-of-sequence token.
            system: instructions put before the task.

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
        """Tokens of the task.

        Raises:
            InputError: the tokenizer cannot say it.
        """
        return self._begin(observation)

    def observe(self, observation: str) -> tuple[int, ...]:
        """Tokens of what the tool printed, to append after the call.

        Raises:
            InputError: the tokenizer cannot say it.
        """
        return self._observe(observation)

    def act(self, action_ids: Sequence[int]) -> str:
        """The call, without the stop token that ended it."""
        return self._act(tuple(action_ids))

    def spell(self, action: str) -> tuple[int, ...]:
        """Tokens of a call as the policy should sample it, for demonstrations.

        Raises:
            InputError: it is longer than `max_new_tokens`, or the tokenizer cannot say it.
        """
        return self._spell(action)
