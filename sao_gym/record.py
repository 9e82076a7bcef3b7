"""The run directory: what is written while a run goes on.

    scenario.yaml     the resolved scenario
    events.jsonl      every event, the truth: everything else can be computed from it
    timeline.jsonl    the change points, with all clocks
    checkpoints/      the last few, to go on from (see `sao_gym.checkpoint`)

What is derived when a run is over (tables, summary, TensorBoard files) is made by
`sao_gym.outputs.finish_run`, the report by `sao_gym.report.write_report`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time as clock
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import yaml

from sao_gym.checkpoint import Checkpoints
from sao_gym.errors import InputError, RunError
from sao_gym.events import CheckpointTaken, ConceptChanged, Event, UpdateFinished, to_record
from sao_gym.log import EVENTS, EventLog, encode, encode_header, encode_json

SCENARIO = "scenario.yaml"
TIMELINE = "timeline.jsonl"

FLUSH_SECONDS = 1.0
"""A killed run loses no more than this, nor more than what followed its last update."""


class Recorder:
    """Writes events as they come: `for time, event in run(...): recorder.write(time, event)`.

    Made by `open_run` (a new directory) or `resume_run` (one to be continued).
    """

    def __init__(
        self,
        directory: Path,
        events: BinaryIO,
        timeline: BinaryIO,
        *,
        written: int = 0,
        checkpoints: Checkpoints | None = None,
    ) -> None:
        self.directory = directory
        self.checkpoints = checkpoints
        self.written = written
        """Events in the log."""
        self._events = events
        self._timeline = timeline
        self._params: Mapping[str, Any] | None = None
        self._flushed = clock.monotonic()

    def write(self, time: float, event: Event) -> None:
        """Append one event (about 5 us); `time` is in seconds of the run's clock.

        A checkpoint is kept as a file too, if there is a place for it; one that was not scheduled
        (the run was interrupted) has no line, so that the log goes on as if nothing had happened.

        Raises:
            RunError: the disk does not take it.
        """
        try:
            self._write(time, event)
        except OSError as error:
            raise RunError(
                f"{self.directory}: cannot be written ({error.strerror}); make room, then --resume"
            ) from error

    def _write(self, time: float, event: Event) -> None:
        if isinstance(event, CheckpointTaken) and not event.scheduled:
            self._keep(event)
            return
        self._events.write(encode(time, event))
        self.written += 1
        if isinstance(event, ConceptChanged):
            self._write_change(to_record(time, event))
        if isinstance(event, CheckpointTaken):
            self._keep(event)
        now = clock.monotonic()
        if isinstance(event, UpdateFinished) or now - self._flushed > FLUSH_SECONDS:
            self._events.flush()
            self._flushed = now

    def _keep(self, event: CheckpointTaken) -> None:
        if self.checkpoints is not None:
            self.sync()
            self.checkpoints.save(event, events=self.written)

    def sync(self) -> None:
        """Put all that was written safely on the disk."""
        for file in (self._events, self._timeline):
            file.flush()
            os.fsync(file.fileno())

    def close(self) -> None:
        """Write what is buffered and close the files. Closing twice is harmless."""
        for file in (self._events, self._timeline):
            with contextlib.suppress(OSError):  # a full disk was told when it was written to
                file.close()

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _write_change(self, record: Mapping[str, Any]) -> None:
        line = {
            "segment": record["segment"],
            "concept": record["concept"],
            "params": record["params"],
            "kind": record["kind"],
            "phase": record["phase"],
            "magnitude": magnitude(self._params, record["params"]),
            "clocks": record["clocks"],
        }
        self._timeline.write(encode_json(line))
        self._timeline.flush()
        if record["phase"] != "window_began":  # until its end the old concept is what is left
            self._params = record["params"]


def magnitude(old: Mapping[str, Any] | None, new: Mapping[str, Any]) -> int:
    """How many parameters differ. 0 at the start.

    Lists, mappings and rearranged strings (a permutation written as letters) count by position.
    """
    return 0 if old is None else _differences(old, new)


def _differences(old: Any, new: Any) -> int:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        names = [*old, *(name for name in new if name not in old)]
        missing = object()
        return sum(_differences(old.get(name, missing), new.get(name, missing)) for name in names)
    if _is_list(old) and _is_list(new) and len(old) == len(new):
        return sum(map(_differences, old, new))
    if isinstance(old, str) and isinstance(new, str) and sorted(old) == sorted(new):
        return sum(a != b for a, b in zip(old, new, strict=True))
    return int(old != new)


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def check_new(directory: Path) -> None:
    """Raise InputError if `directory` already holds a run: nothing is ever written over."""
    for name in (EVENTS, SCENARIO, TIMELINE):
        if (directory / name).exists():
            raise InputError(
                f"{directory} already holds a run ({name}): go on with it by --resume, choose "
                "another directory with --out, or delete it"
            )


def open_run(
    directory: Path | str,
    scenario: Mapping[str, Any],
    *,
    checkpoints: Checkpoints | None = None,
) -> Recorder:
    """Begin a new run directory.

    Args:
        directory: Where; made with its parents if missing.
        scenario: The resolved scenario as plain data, `seed` and `learner.name` included.
        checkpoints: Where they are kept; None: nowhere.

    Raises:
        InputError: The directory already holds a run. Nothing is ever written over.
    """
    directory = Path(directory)
    check_new(directory)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        text = _as_yaml(scenario)
        draft = directory / f"{SCENARIO}.tmp"
        draft.write_bytes(text)
        os.replace(draft, directory / SCENARIO)
        events = (directory / EVENTS).open("xb", buffering=1 << 16)
        timeline = (directory / TIMELINE).open("xb")
    except OSError as error:
        raise InputError(
            f"{directory}: cannot write a run there ({error.strerror}); choose another --out"
        ) from None
    header = encode_header(
        scenario_sha256=hashlib.sha256(text).hexdigest(),
        seed=scenario["seed"],
        learner=scenario["learner"]["name"],
        time=checkpoints.mode if checkpoints else "virtual",
    )
    _lock(events, directory)
    events.write(header)
    events.flush()
    return Recorder(directory, events, timeline, checkpoints=checkpoints)


def restart_run(
    directory: Path | str,
    scenario: Mapping[str, Any],
    *,
    checkpoints: Checkpoints | None = None,
) -> Recorder:
    """Begin again in a directory whose run was cut off before its first checkpoint."""
    directory = Path(directory)
    if (directory / EVENTS).exists():
        with (directory / EVENTS).open("ab") as file:
            _lock(file, directory)
    for name in (EVENTS, TIMELINE, SCENARIO):
        (directory / name).unlink(missing_ok=True)
    return open_run(directory, scenario, checkpoints=checkpoints)


def resume_run(
    directory: Path | str, *, events: int, checkpoints: Checkpoints | None = None
) -> Recorder:
    """Continue a recorded run after its first `events` events; later ones are cut off.

    The lines that are kept are not touched, so the log of a resumed run is byte for byte that of
    an uninterrupted one.

    Raises:
        InputError: The log is missing, damaged or shorter than that.
    """
    directory = Path(directory)
    log = EventLog(directory)
    changes = []
    kept = 0
    with log.path.open("rb") as file:
        size = len(file.readline())
        while kept < events and (line := file.readline()).endswith(b"\n"):
            size += len(line)
            kept += 1
            if b'"event":"ConceptChanged"' in line:
                changes.append(json.loads(line))
    if kept < events:
        raise InputError(
            f"{log.path}: holds {kept} events but the checkpoint was taken after {events}; "
            "resume from an older checkpoint"
        )
    writer = log.path.open("ab", buffering=1 << 16)
    _lock(writer, directory)
    os.truncate(log.path, size)
    timeline = (directory / TIMELINE).open("wb")
    recorder = Recorder(directory, writer, timeline, written=kept, checkpoints=checkpoints)
    for change in changes:
        recorder._write_change(change)
    return recorder


def _lock(file: BinaryIO, directory: Path) -> None:
    """Two processes must not write one run. The lock goes when its process does."""
    try:
        import fcntl
    except ImportError:  # not on Windows, where nothing guards against a second writer
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise InputError(
            f"{directory}: another process is writing this run; wait for it or stop it"
        ) from None


def read_scenario(directory: Path | str) -> dict[str, Any]:
    """The resolved scenario of a run directory.

    Raises:
        InputError: There is none.
    """
    path = Path(directory) / SCENARIO
    try:
        scenario = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError):
        raise InputError(f"{path}: cannot be read; give the directory of a run") from None
    if not isinstance(scenario, dict):
        raise InputError(f"{path}: not a scenario; give the directory of a run")
    return scenario


def read_timeline(directory: Path | str) -> list[dict[str, Any]]:
    """The change points of a run directory, in order."""
    path = Path(directory) / TIMELINE
    if not path.exists():
        raise InputError(f"{path}: missing; give the directory of a run")
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def world_hash(scenario: Mapping[str, Any], timeline: Sequence[Mapping[str, Any]]) -> str:
    """SHA-256 of the world a run saw: seed, environment, declared timeline, changes passed.

    Clocks other than the declared positions are left out: they differ between arms that saw
    the same world, and this hash is equal exactly for those.
    """
    seen = [{name: value for name, value in line.items() if name != "clocks"} for line in timeline]
    world = {name: scenario.get(name) for name in ("seed", "environment", "timeline")}
    return hashlib.sha256(encode_json({**world, "seen": seen})).hexdigest()


def file_hash(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _as_yaml(scenario: Mapping[str, Any]) -> bytes:
    plain = json.loads(encode_json(scenario))  # tuples and numpy scalars become plain data
    text: str = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=100)
    return text.encode()
