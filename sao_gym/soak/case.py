"""Play a case: run it whole, again, on from a checkpoint and on from an interrupt, and compare."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sao_gym.errors import FailuresError, InputError, RunError, SaoGymError
from sao_gym.events import (
    CheckpointTaken,
    Event,
    FaultHandled,
    RolloutFailed,
    RolloutStarted,
    RunEnded,
)
from sao_gym.invariants import Hang, Violation, check
from sao_gym.log import encode
from sao_gym.soak.declared import Case
from sao_gym.soak.parts import Events, Machine, machine
from sao_gym.validation import check as checked
from sao_gym.yaml_source import parse

__all__ = ["Case", "Played", "load", "play"]

LONGEST = 60.0
"""Wall seconds after which one run is taken to hang."""
MOST_EVENTS = 200_000
"""The same in events: no case declares a run that needs so many."""
_BREAKS = frozenset({"engine_dies", "update_raises", "publish_lost", "update_nan"})
"""Faults that end a run with RunError if they come too often in a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What the runs of a case, or of several, came to."""

    runs: int = 0
    events: int = 0
    rollouts: int = 0
    faults: int = 0
    """Told as such, and rollouts that failed."""
    resumes: int = 0

    def __add__(self, other: Played) -> Played:
        sums = {name: getattr(self, name) + getattr(other, name) for name in self.__slots__}
        return Played(**sums)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """One run."""

    history: list[tuple[float, Event]]
    lines: list[bytes]
    """As the log would hold them: a checkpoint that was not scheduled is an empty line."""
    error: SaoGymError | None

    @property
    def said(self) -> str:
        """How it ended, for comparison."""
        return f"{type(self.error).__name__}: {self.error}"

    @property
    def reason(self) -> str:
        last = self.history[-1][1] if self.history else None
        return last.reason if isinstance(last, RunEnded) else "no RunEnded"

    def checkpoints(self) -> list[int]:
        """Where they were taken."""
        return [i for i, (_, e) in enumerate(self.history) if isinstance(e, CheckpointTaken)]


def load(path: Path | str) -> Case:
    """A case that `soak` wrote.

    Raises:
        InputError: it cannot be read, or is no case.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({error}); give a file of `soak`") from None
    return checked(Case, parse(text, name=str(path)))


def play(case: Case) -> Played:
    """Run `case` in all ways.

    Raises:
        Violation: a promise does not hold; Hang if a run does not end.
    """
    from sao_gym.soak.recorded import play_recorded

    whole = run(case)
    _verify(case, whole)
    _same(whole, run(case), "played again")
    resumes = _resumed(case, whole) + _interrupted(case, whole)
    if case.recorded:
        resumes += play_recorded(case, whole.lines)
    return Played(
        runs=1,
        events=len(whole.history),
        rollouts=_count(whole, RolloutStarted),
        faults=_count(whole, FaultHandled) + _count(whole, RolloutFailed),
        resumes=resumes,
    )


def run(case: Case, *, resume: bytes | None = None, interrupt_at: int | None = None) -> Ended:
    """One run to its end, interrupted after `interrupt_at` events if that is given."""
    with machine(case) as made:
        return follow(made, made.events(resume), interrupt_at=interrupt_at)


def follow(made: Machine, events: Events, *, interrupt_at: int | None = None) -> Ended:
    """Take in the events of a run. Raises Violation if it hangs or breaks unexpectedly."""
    history: list[tuple[float, Event]] = []
    lines: list[bytes] = []
    error: SaoGymError | None = None
    began = time.monotonic()
    if interrupt_at == 0:
        made.executor.interrupt()
    try:
        for seconds, event in events:
            history.append((seconds, event))
            unwritten = isinstance(event, CheckpointTaken) and not event.scheduled
            lines.append(b"" if unwritten else encode(seconds, event))
            if len(history) == interrupt_at:
                made.executor.interrupt()
            if len(history) > MOST_EVENTS or time.monotonic() - began > LONGEST:
                raise Hang(f"the run does not end: {seconds:g} s", len(history) - 1)
    except (Hang, InputError):
        raise
    except SaoGymError as raised:
        error = raised
    except Exception as raised:
        what = f"the run raised {type(raised).__name__}: {raised}"
        raise Violation(what, len(history) - 1) from raised
    return Ended(history=history, lines=lines, error=error)


def _verify(case: Case, ended: Ended) -> None:
    """The invariants, and an end that the case allows."""
    check(
        ended.history,
        slots=case.slots,
        max_lag=case.max_lag,
        batch_size=case.batch_size,
        group_size=case.group_size,
        reward_late=case.world.inflight == "reward_late",
        context=(case.parts == "scripted" and case.context) or math.inf,
    )
    match ended.error:
        case None:
            allowed = ended.reason in {*case.budget.declared, "interrupted"}
        case FailuresError():
            allowed = ended.reason == "failures"
        case RunError():
            allowed = ended.reason == "broken" and any(r.kind in _BREAKS for r in case.faults)
        case _:
            allowed = False
    if not allowed:
        said = f"; {ended.said}" if ended.error else ""
        raise Violation(f"the run ended: {ended.reason}{said}", len(ended.history) - 1)


def _same(whole: Ended, other: Ended, how: str, *, begin: int = 0) -> None:
    """`other` shows what `whole` shows from event `begin` on, and ends in the same way."""
    different(whole.lines[begin:], other.lines, how, begin)
    if whole.said != other.said:
        what = f"{how}, the run ends with {other.said}, not with {whole.said}"
        raise Violation(what, len(whole.lines) - 1)
    if begin == 0 and [_state(e) for _, e in whole.history] != [
        _state(e) for _, e in other.history
    ]:
        raise Violation(f"{how}, a checkpoint holds another state", len(whole.lines) - 1)


def _state(event: Event) -> bytes | None:
    return event.state if isinstance(event, CheckpointTaken) else None


def different(expected: Sequence[bytes], found: Sequence[bytes], how: str, begin: int) -> None:
    """Raise Violation at the first line that is not as expected."""
    for at, (mine, theirs) in enumerate(zip(expected, found, strict=False)):
        if mine != theirs:
            said, instead = (_shown(line) for line in (mine, theirs))
            raise Violation(f"{how}, the run shows {instead} instead of {said}", begin + at)
    if len(expected) != len(found):
        at = min(len(expected), len(found))
        extra = _shown((expected if len(expected) > len(found) else found)[at])
        verb = "lacks" if len(expected) > len(found) else "goes on with"
        raise Violation(f"{how}, the run {verb} {extra}", begin + at)


def _shown(line: bytes) -> str:
    return line.decode().rstrip() or "a checkpoint that was not scheduled"


def _resumed(case: Case, whole: Ended) -> int:
    """Go on from one of the scheduled checkpoints. Returns how many resumes that were."""
    taken = whole.checkpoints()
    if not taken:
        return 0
    at = taken[min(int(case.resume_at * len(taken)), len(taken) - 1)]
    rest = run(case, resume=_state(whole.history[at][1]))
    _same(whole, rest, f"resumed from the checkpoint at event {at}", begin=at + 1)
    return 1


def _interrupted(case: Case, whole: Ended) -> int:
    """Interrupt it, then go on. Returns how many resumes that were."""
    after = int(case.interrupt_at * len(whole.history))
    how = f"interrupted after {after} events"
    cut = run(case, interrupt_at=after)
    if cut.reason != "interrupted":  # it was over anyway
        _same(whole, cut, how)
        return 0
    _verify(case, cut)
    at = cut.checkpoints()[-1]
    different(whole.lines[:at], cut.lines[:at], how, 0)
    state = _state(cut.history[at][1])
    begin = at + bool(cut.lines[at])  # one that was due has its line in the log
    _same(whole, run(case, resume=state), f"{how}, then resumed", begin=begin)
    return 1


def _count(ended: Ended, kind: type[Event]) -> int:
    return sum(isinstance(event, kind) for _, event in ended.history)
