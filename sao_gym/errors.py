"""The error model, whole.

    SaoGymError            one line: what, where, what to do; carries its exit code
    +- InputError      2   the user's files, flags or plug-ins are wrong; nothing was written
    +- FailuresError   3   too many rollouts failed; what was recorded is kept
    +- StalledError    4   nothing can happen any more although work is open
    +- RunError        5   the run itself broke (a learner step, an engine)
    +- DifferenceError 6   a replay does not show what was recorded
    +- InvariantError  7   a simulated run broke a promise that holds for every run

Plug-in code raises ordinary exceptions. What an *environment* raises is caught at one boundary
(the executor) and becomes the event `RolloutFailed`: a bad rollout is data, not a crash. Anything
else that is not a `SaoGymError` is a bug and shows its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Sequence
from typing import Any


class SaoGymError(Exception):
    """Base of all errors shown to a user as one line."""

    exit_code = 1


class InputError(SaoGymError):
    """The user's input is wrong."""

    exit_code = 2

    def __init__(self, message: str, *, at: tuple[str | int, ...] = ()) -> None:
        """`at`: the scenario key to blame, for a caller that knows file and line."""
        super().__init__(message)
        self.at = at


class FailuresError(SaoGymError):
    """The share of failed rollouts passed `failures.stop_above`."""

    exit_code = 3


class StalledError(SaoGymError):
    """No event is pending although rollouts or trajectories are open."""

    exit_code = 4


class RunError(SaoGymError):
    """A part of the run broke and cannot go on."""

    exit_code = 5

    def __init__(self, message: str, *, batch: Sequence[Any] = ()) -> None:
        super().__init__(message)
        self.batch = batch
        """The trajectories of the update that broke, if it was one."""


class DifferenceError(SaoGymError):
    """A replay does not show what was recorded."""

    exit_code = 6


class InvariantError(SaoGymError):
    """`soak` or the replay of its case found a run that breaks what holds for every run."""

    exit_code = 7


class MachineryError(Exception):
    """What an environment raises when its machinery broke, not what the agent did.

    The rollout fails with this `kind` (`image`, `engine`, `timeout`, `disk`, `too_large`, ...) and
    is counted under it. Not a SaoGymError: it never ends a run by itself.
    """

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind


def suggestion(word: str, known: Iterable[str]) -> str:
    """A closing sentence for an unknown `word`: the nearest known one, or all of them."""
    choices = sorted(known)
    close = difflib.get_close_matches(word, choices, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"known: {', '.join(choices) or 'none'}"


def some(numbers: Collection[int]) -> str:
    """How many, and the first few of them in ascending order."""
    if not numbers:
        return "none"
    shown = ", ".join(map(str, sorted(numbers)[:8]))
    return f"{len(numbers)} ({shown}{', ...' if len(numbers) > 8 else ''})"
