"""An agent for `repo_fix`: one tool call a turn, in a few symbols or on one line.

The compact calls of small models are one to three symbols; the third ends the call by itself, a
shorter one is ended by a stop token. For calls in full (`edit PATH LINE NEW-LINE`) give more tokens
and, say, a line feed as `stop`.
"""

from __future__ import annotations

from typing import Any

from sao_gym.agents.tools import Tools


class Repo(Tools):
    """`Tools`, with calls that are short unless more is asked for."""

    def __init__(
        self,
        tokenizer: Any,
        *,
        max_new_tokens: int = 3,
        stop: str | None = None,
        system: str | None = None,
    ) -> None:
        """Bind the tokenizer; arguments and errors are those of `Tools`."""
        super().__init__(tokenizer, max_new_tokens=max_new_tokens, stop=stop, system=system)
