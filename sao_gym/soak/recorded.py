"""A case through a run directory: recorded, cut as a killed process would leave it, continued."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sao_gym.checkpoint import Checkpoints
from sao_gym.errors import SaoGymError
from sao_gym.faults import Faults
from sao_gym.invariants import Violation
from sao_gym.log import EVENTS
from sao_gym.record import TIMELINE, Recorder, open_run, restart_run, resume_run
from sao_gym.resume import find
from sao_gym.soak.declared import Case
from sao_gym.soak.parts import machine


def play_recorded(case: Case, lines: Sequence[bytes]) -> int:
    """Record `case` whole, and cut and continued; `lines`: what its log is to hold.

    Returns how many times a run was resumed.

    Raises:
        Violation: a log differs.
    """
    from sao_gym.soak.case import different

    with TemporaryDirectory(prefix="sao-gym-soak-") as folder:
        whole, cut = Path(folder, "whole"), Path(folder, "cut")
        _record(case, whole)
        different(lines, _events(whole), "recorded", 0)
        _record(case, cut, interrupt_at=int(case.interrupt_at * len(lines)))
        _tear(cut / EVENTS, case.torn)
        _record(case, cut, resume=True)
        how = f"recorded, interrupted at {case.interrupt_at:g}, torn at {case.torn:g} and resumed"
        different(lines, _events(cut), how, 0)
        if (whole / TIMELINE).read_bytes() != (cut / TIMELINE).read_bytes():
            raise Violation(f"{how}, its {TIMELINE} differs", len(lines) - 1)
    return 1


def _record(
    case: Case, directory: Path, *, interrupt_at: int | None = None, resume: bool = False
) -> None:
    """What the command does with a scenario."""
    data: dict[str, Any] = case.model_dump(mode="json", by_alias=True, round_trip=True)
    data |= {"learner": {"name": case.learner}}
    going_on = find(directory, data, mode="virtual")
    checkpoints = Checkpoints(directory, scenario=data, faults=Faults(case.faults, seed=case.seed))
    with machine(case) as made:
        recorder: Recorder
        if going_on.checkpoint is not None:
            recorder = resume_run(directory, events=going_on.events, checkpoints=checkpoints)
        else:
            begin = restart_run if resume else open_run
            recorder = begin(directory, data, checkpoints=checkpoints)
        if interrupt_at == 0:
            made.executor.interrupt()
        with recorder:
            try:
                for count, (seconds, event) in enumerate(made.events(going_on.state), start=1):
                    recorder.write(seconds, event)
                    if count == interrupt_at:
                        made.executor.interrupt()
            except SaoGymError:
                pass  # how it ends was compared without a directory


def _events(directory: Path) -> list[bytes]:
    """The lines of a log, without its header."""
    return (directory / EVENTS).read_bytes().splitlines(keepends=True)[1:]


def _tear(path: Path, share: float) -> None:
    """Leave this share of what follows the header."""
    with path.open("rb") as file:
        header = len(file.readline())
    os.truncate(path, header + int(share * (path.stat().st_size - header)))
