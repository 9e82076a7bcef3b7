"""Checkpoint files of a run directory: `checkpoints/000000012345.ckpt`, named by events recorded.

    one line of JSON     format, version, scenario, mode, events, update, bytes and SHA-256 of ...
    the state            plain data (`sao_gym.plain`): no code is stored or loaded

A file is written beside its place, flushed to the disk and renamed: it is whole or not there. The
last `keep` stay. Their size is bounded by slots, batch, `max_lag` and model, not by a run's length.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

from sao_gym.errors import InputError
from sao_gym.events import CheckpointTaken
from sao_gym.faults import Faults

FOLDER = "checkpoints"
FORMAT = "sao-gym/checkpoint"
VERSION = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """One checkpoint, read and verified."""

    path: Path
    events: int
    """Events that the log held when it was taken."""
    update: int
    mode: str
    """`virtual` or `live`."""
    scenario: Mapping[str, Any]
    software: Mapping[str, str]
    state: bytes


class DamagedError(ValueError):
    """A checkpoint file is not whole."""


class Checkpoints:
    """Writes the checkpoints of one run."""

    def __init__(
        self,
        directory: Path,
        *,
        scenario: Mapping[str, Any],
        mode: str = "virtual",
        keep: int = 2,
        faults: Faults | None = None,
    ) -> None:
        """`scenario`: resolved, as plain data; `faults` may declare `disk_full`."""
        self._folder = directory / FOLDER
        self.mode = mode
        self._head = {
            "format": FORMAT,
            "version": VERSION,
            "scenario": scenario,
            "mode": mode,
            "software": software(),
        }
        self._keep, self._faults = keep, faults or Faults()
        self.written = 0
        self.failed: list[str] = []
        """One line for each that could not be written."""

    def save(self, event: CheckpointTaken, *, events: int) -> None:
        """Write one after `events` events are safely in the log.

        What the disk refuses is noted in `failed`; the run goes on, and the one before it stays.
        """
        try:
            if self._faults.struck("disk_full", event.update) is not None:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._write(event, events)
        except OSError as error:
            self.failed.append(
                f"the checkpoint after update {event.update} could not be written "
                f"({error.strerror}); the one before it stays"
            )
            return
        self.written += 1
        for old in _files(self._folder)[: -self._keep]:
            old.unlink(missing_ok=True)

    def _write(self, event: CheckpointTaken, events: int) -> None:
        self._folder.mkdir(exist_ok=True)
        for draft in self._folder.glob("*.tmp"):  # of a process that was killed
            draft.unlink(missing_ok=True)
        head = {
            **self._head,
            "events": events,
            "update": event.update,
            "bytes": len(event.state),
            "sha256": hashlib.sha256(event.state).hexdigest(),
        }
        path = self._folder / f"{events:012d}.ckpt"
        draft = path.with_suffix(".tmp")
        try:
            with draft.open("wb") as file:
                file.write(json.dumps(head).encode() + b"\n")
                file.write(event.state)
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, path)
        except OSError:
            draft.unlink(missing_ok=True)
            raise
        _sync_folder(self._folder)


def software() -> dict[str, str]:
    """What a bit-identical continuation depends on besides the scenario."""
    return {
        "sao-gym": installed("sao-gym"),
        "torch": installed("torch"),
        "python": ".".join(map(str, sys.version_info[:3])),
    }


def newest_first(directory: Path) -> Iterator[Path]:
    """The checkpoint files of a run directory."""
    return reversed(_files(directory / FOLDER))


def read(path: Path) -> Checkpoint:
    """One file, verified.

    Raises:
        DamagedError: it is not whole: cut short, or its checksum differs.
        InputError: it is of another format version.
    """
    with path.open("rb") as file:
        line, state = file.readline(), file.read()
    try:
        head = json.loads(line)
        known = head["format"] == FORMAT
    except (ValueError, KeyError, TypeError):
        known = False
    if not known:
        raise DamagedError(f"{path}: its first line is no header")
    if head["version"] != VERSION:
        raise InputError(
            f"{path}: checkpoint format version {head['version']}, but this sao-gym reads version "
            f"{VERSION}; resume with sao-gym {head.get('software', {}).get('sao-gym', 'of then')}"
        )
    if len(state) != head["bytes"]:
        raise DamagedError(f"{path}: holds {len(state)} of {head['bytes']} bytes")
    if hashlib.sha256(state).hexdigest() != head["sha256"]:
        raise DamagedError(f"{path}: its checksum differs")
    fields = ("events", "update", "mode", "scenario", "software")
    return Checkpoint(path=path, state=state, **{name: head[name] for name in fields})


def difference(given: Any, kept: Any, at: str = "") -> str | None:
    """The first place where two resolved scenarios differ, in words; None if they are equal."""
    if isinstance(given, Mapping) and isinstance(kept, Mapping):
        for name in [*kept, *(name for name in given if name not in kept)]:
            where = f"{at}.{name}" if at else str(name)
            if name not in given or name not in kept:
                return f"{where} is {'missing' if name not in given else 'new'} now"
            if (found := difference(given[name], kept[name], where)) is not None:
                return found
        return None
    if isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        pairs = enumerate(zip(given, kept, strict=True))
        places = (difference(g, k, f"{at}.{number}") for number, (g, k) in pairs)
        return next((words for words in places if words is not None), None)
    return None if given == kept else f"{at} is {given!r} now and was {kept!r}"


def _files(folder: Path) -> list[Path]:
    """Oldest first: their names are numbers of equal length."""
    return sorted(folder.glob("*.ckpt"))


def _sync_folder(folder: Path) -> None:
    """The name is on the disk only once its folder is."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
