"""An agent that works in a shell: what stands in a fenced block is run, what it prints comes back.

    begin      SYSTEM, then the task
    act        the last complete block fenced by ``` lines; the text around it is thought
    observe    what the commands printed, or a window of it

History is only ever appended to, as tokens (`chat.py`). So an observation that is too long is cut
before it becomes tokens: its first and last lines are shown, with a line between them that says how
many are not. What has been read is never shortened afterwards; to see more, the agent runs another
command, and its output is appended as any other. When the policy's context is full, a new segment
begins: the task again, a line that says how many turns are not shown, and the last turns, word for
word; the old segment stays as it was sampled.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from sao_gym.agents.chat import Chat, Remembered
from sao_gym.errors import InputError
from sao_gym.tokenizer import encode

SYSTEM = (
    "You mend a software repository from a shell. Each answer holds one block of commands:\n"
    "```bash\nCOMMANDS\n```\n"
    "They are run in the repository, each block in a new shell, and you are shown what they print. "
    "When the fault is mended, answer with the single command `submit`.\n"
)
_BLOCK = re.compile(r"^```(?:bash|sh|shell)?[ \t]*\n(.*?)\n?^```[ \t]*$", re.MULTILINE | re.DOTALL)


class Shell:
    """Commands in fenced blocks; token in, token out."""

    def __init__(
        self,
        tokenizer: Any,
        *,
        max_new_tokens: int = 1024,
        window: int = 2048,
        segments: bool = True,
        stop: str | None = None,
        system: str | None = None,
    ) -> None:
        """Bind the tokenizer.

        Args:
            tokenizer: a `transformers` tokenizer; its chat template is used if it has one.
            max_new_tokens: longest answer, the stop token included.
            window: most tokens of an observation that are shown.
            segments: go on in a new segment when the context is full; else the episode is
                truncated.
            stop: a symbol that ends an answer besides the end-of-sequence token.
            system: instructions put before the task. Default: `SYSTEM`.

        Raises:
            InputError: `stop` is not one token, the chat template rewrites earlier turns, or
                `window` has no room for anything.
        """
        if window < 1:
            raise InputError(f"agent: window must be at least 1, not {window!r}")
        self._tokenizer = tokenizer
        self._window, self._segments = window, segments
        told = SYSTEM if system is None else system
        self._chat = Chat(tokenizer, max_new_tokens=max_new_tokens, stop=stop, system=told)
        self._chat.check_history()
        self.max_new_tokens = max_new_tokens
        self.stop_ids = self._chat.stop_ids
        self.closing = self._chat.closing
        self._observe = Remembered(self._shown)

    def begin(self, observation: str) -> tuple[int, ...]:
        """Tokens of the instructions and the task, which is never cut.

        Raises:
            InputError: the tokenizer cannot say it.
        """
        return self._chat.begin(observation)

    def reopen(self, observation: str, left_out: int) -> tuple[int, ...] | None:
        """Tokens that open a new segment: the instructions, the task, and what is missing.

        Raises:
            InputError: the tokenizer cannot say it.
        """
        if not self._segments:
            return None
        end = "" if observation.endswith("\n") else "\n"
        return self._chat.begin(f"{observation}{end}{_marker(left_out, 'turns')}")

    def observe(self, observation: str) -> tuple[int, ...]:
        """Tokens of what was printed, to append after the answer: all of it, or a window.

        Raises:
            InputError: the tokenizer cannot say it.
        """
        return self._observe(observation)

    def act(self, action_ids: Sequence[int]) -> str:
        """The commands of the last complete block; nothing if there is none."""
        blocks = _BLOCK.findall(self._chat.act(tuple(action_ids)))
        return blocks[-1] if blocks else ""

    def spell(self, action: str) -> tuple[int, ...]:
        """Tokens of an answer that runs `action`, for demonstrations.

        Raises:
            InputError: it is longer than `max_new_tokens`, the tokenizer cannot say it, or it holds
                a fence of its own.
        """
        text = f"```bash\n{action}\n```"
        ids = self._chat.spell(text)
        if self.act(ids) != action:
            raise InputError(f"agent: {action[:40]!r} cannot stand in a fenced block")
        return ids

    def _shown(self, observation: str) -> tuple[int, ...]:
        return self._chat.observe(self.windowed(observation))

    def windowed(self, text: str) -> str:
        """`text`, or as many of its first and last lines as fit the window.

        A line that does not fit by itself is cut inside, in the same way.
        """
        if self._size(text) <= self._window:
            return text
        pieces = text.splitlines(keepends=True)
        if len(pieces) < 3:
            return self._cut(list(text), "symbols")
        whole = self._cut(pieces, "lines")
        bare = _joined(pieces, 0, "lines")
        return self._cut(list(text), "symbols") if whole == bare else whole

    def _cut(self, pieces: list[str], unit: str) -> str:
        """The longest head and tail, of as many pieces each, that fit with the marker."""
        low, high = 0, len(pieces) // 2
        while low < high:
            middle = (low + high + 1) // 2
            if self._size(_joined(pieces, middle, unit)) <= self._window:
                low = middle
            else:
                high = middle - 1
        return _joined(pieces, low, unit)

    def _size(self, text: str) -> int:
        return len(encode(self._tokenizer, text))


def _joined(pieces: Sequence[str], count: int, unit: str) -> str:
    left_out = len(pieces) - 2 * count
    head, tail = "".join(pieces[:count]), "".join(pieces[len(pieces) - count :])
    between = "" if head.endswith("\n") or not head else "\n"
    return f"{head}{between}{_marker(left_out, unit)}{tail}"


def _marker(count: int, unit: str) -> str:
    return f"[{count} {unit} not shown]\n"
