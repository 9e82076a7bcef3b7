"""Go on with a run directory: which checkpoint, and is it this run's?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sao_gym import checkpoint
from sao_gym.checkpoint import Checkpoint, DamagedError
from sao_gym.errors import InputError
from sao_gym.log import EVENTS, intact_events
from sao_gym.record import SCENARIO, read_scenario


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """Where a run directory is to be continued."""

    checkpoint: Checkpoint | None
    """None: from the beginning."""
    notes: list[str] = field(default_factory=list)
    """What the user should know, one line each."""

    @property
    def events(self) -> int:
        """Events of the log that stay."""
        return 0 if self.checkpoint is None else self.checkpoint.events

    @property
    def state(self) -> bytes | None:
        return None if self.checkpoint is None else self.checkpoint.state


def find(directory: Path, scenario: Mapping[str, Any], *, mode: str) -> Continuation:
    """The newest checkpoint of `directory` that is whole and that the log reaches.

    Args:
        directory: a run directory, or one that holds nothing yet.
        scenario: what is to be run, resolved, as plain data.
        mode: `virtual` or `live`.

    Raises:
        InputError: the directory or a checkpoint is of another scenario, mode or format version.
    """
    if (directory / SCENARIO).exists():
        _check(directory / SCENARIO, scenario, read_scenario(directory))
    notes: list[str] = []
    recorded = intact_events(directory / EVENTS)
    for path in checkpoint.newest_first(directory):
        try:
            found = checkpoint.read(path)
        except DamagedError as error:
            notes.append(f"{error}; an older checkpoint is used")
            continue
        _check(path, scenario, found.scenario)
        if found.mode != mode:
            raise InputError(
                f"{path}: of a {found.mode} run, which cannot go on in {mode} time; "
                f"{'add' if found.mode == 'live' else 'leave out'} --live"
            )
        if found.events > recorded:
            notes.append(f"{path}: the log holds {recorded} of its {found.events} events")
            continue
        return Continuation(checkpoint=found, notes=[*notes, *_other_software(found)])
    return Continuation(checkpoint=None, notes=notes)


def _check(path: Path, given: Mapping[str, Any], kept: Mapping[str, Any]) -> None:
    where = checkpoint.difference(given, kept)
    if where is not None:
        raise InputError(
            f"{path}: of another scenario: {where}; resume with the scenario that was begun, or "
            "choose another directory with --out"
        )


def _other_software(found: Checkpoint) -> list[str]:
    now = checkpoint.software()
    changed = [f"{n} {found.software.get(n)}, now {v}" for n, v in now.items()
               if found.software.get(n) != v]  # fmt: skip
    if not changed:
        return []
    return [f"the checkpoint was made with {', '.join(changed)}: the last bits may differ"]
