"""`events.jsonl`: one header line, then one line an event. Encoding and reading, in one place.

The file is a pure function of scenario and seed: no wall-clock time, path or host stands in it.
Numbers that JSON cannot hold (NaN, infinities) are written as `null`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import orjson

from sao_gym.errors import InputError
from sao_gym.events import Event, to_record

FORMAT = "sao-gym/events"
VERSION = 1
EVENTS = "events.jsonl"

Record: TypeAlias = Mapping[str, Any]
"""One event as read from the log: `{"t": seconds, "event": name, ...fields}`."""


class TornLogWarning(UserWarning):
    """The last line of a log is incomplete: the run was killed while it wrote."""


def encode_header(*, scenario_sha256: str, seed: int, learner: str, time: str = "virtual") -> bytes:
    """The first line of `events.jsonl`. `time`: `virtual`, or `live` (the wall clock)."""
    header = {
        "format": FORMAT,
        "version": VERSION,
        "scenario_sha256": scenario_sha256,
        "seed": seed,
        "learner": learner,
        "time": time,
    }
    return encode_json(header)


def encode(time: float, event: Event) -> bytes:
    """One event as a line, newline included."""
    return encode_json(to_record(time, event))


def encode_json(value: Any) -> bytes:
    """Compact JSON in the order given, as one line of UTF-8."""
    return orjson.dumps(value, default=_plain, option=_OPTIONS)


_OPTIONS = orjson.OPT_APPEND_NEWLINE | orjson.OPT_NON_STR_KEYS


def _plain(value: Any) -> Any:
    """What orjson does not know: named tuples, other mappings, numpy and torch scalars."""
    if isinstance(value, tuple):
        return tuple(value)
    if isinstance(value, Mapping):
        return dict(value)
    item = getattr(value, "item", None)
    if item is None:
        raise TypeError(f"an event holds a {type(value).__name__}, which JSON cannot hold")
    return item()


class EventLog:
    """The events of one `events.jsonl`, read again at every iteration.

    Args:
        path: The file, or the run directory that holds it.

    Raises:
        InputError: At once if the file is missing, is no event log or has another format
            version; while iterating if a line other than the last is damaged.
    """

    def __init__(self, path: Path | str) -> None:
        path = Path(path)
        self.path = path / EVENTS if path.is_dir() else path
        self.torn: str | None = None
        """After an iteration: what is missing at the end, in words; None if nothing is."""
        self.header: Record = _read_header(self.path)

    def __iter__(self) -> Iterator[Record]:
        self.torn = None
        with self.path.open("rb") as file:
            next(file)
            number = 1
            for line in file:
                number += 1
                try:
                    record = orjson.loads(line)
                except ValueError:
                    if line.endswith(b"\n"):
                        raise InputError(
                            f"{self.path}, line {number}: not JSON; the log is damaged, "
                            "run the scenario again"
                        ) from None
                    self.torn = (
                        f"{self.path}: line {number}, the last, is incomplete and was left out; "
                        "the run was stopped while it wrote"
                    )
                    return
                yield record


def read_events(path: Path | str) -> Iterator[dict[str, Any]]:
    """The events of a log, without its header. A torn last line is left out with a
    `TornLogWarning`.

    Raises:
        InputError: As `EventLog`.
    """
    log = EventLog(path)
    for record in log:
        yield dict(record)
    if log.torn is not None:
        warnings.warn(log.torn, TornLogWarning, stacklevel=2)


def intact_events(path: Path) -> int:
    """Whole event lines of a log; 0 if there is none. A torn last line does not count."""
    try:
        with path.open("rb") as file:
            lines = sum(line.endswith(b"\n") for line in file)
    except OSError:
        return 0
    return max(0, lines - 1)  # the first is the header


def _read_header(path: Path) -> Record:
    try:
        with path.open("rb") as file:
            line = file.readline()
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read ({error.strerror}); give the directory of a run"
        ) from None
    try:
        header = orjson.loads(line)
        known = isinstance(header, dict) and header.get("format") == FORMAT
    except ValueError:
        known = False
    if not known:
        raise InputError(f"{path}: not an event log of sao-gym (its first line is no header)")
    if header.get("version") != VERSION:
        raise InputError(
            f"{path}: event format version {header.get('version')!r}, but this sao-gym reads "
            f"version {VERSION}; use the release that wrote it"
        )
    assert isinstance(header, dict)
    return header
