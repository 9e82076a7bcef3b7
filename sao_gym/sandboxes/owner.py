"""Who owns a box, so that what a dead owner left can be told from what is in use."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

FOLDER = "sao-gym-box-"
"""Begin of the names of temporary folders."""
MARK = "sao-gym-owner="
"""Stands in front of an owner in command lines and environments."""


class Owner(NamedTuple):
    """A process, for good: its number alone would be given again."""

    pid: int
    started: int
    """Clock ticks after the machine's start."""
    boot: str
    """This start of this machine."""
    space: int
    """The space in which `pid` counts: containers have their own."""
    created: int
    """When what it owns was made, in seconds of the wall clock."""

    def text(self) -> str:
        return "-".join(map(str, self))


def me() -> Owner:
    """This process, now."""
    pid = os.getpid()
    return Owner(pid, _started(pid) or 0, _boot(), _space(), int(time.time()))


def folder() -> str:
    """A new temporary folder that the reaper removes when this process is dead."""
    made = tempfile.mkdtemp(prefix=FOLDER)
    (Path(made) / "owner").write_text(me().text())
    return made


def parse(text: str) -> Owner | None:
    parts = text.split("-")
    numbers = parts[:2] + parts[3:]
    if len(parts) != 5 or not all(part.isascii() and part.isdigit() for part in numbers):
        return None
    pid, started, space, created = map(int, numbers)
    return Owner(pid, started, parts[2], space, created)


def dead(owner: Owner, *, max_age: float, here: bool) -> bool:
    """Whether what this owner made may go: it is gone, or made it more than `max_age` seconds ago.

    Of an owner in another container nothing is known but the age; the same holds for another
    machine (or start), unless what it left lies `here` on this machine.
    """
    if time.time() - owner.created > max_age:
        return True
    if owner.boot != _boot():
        return here
    return owner.space == _space() and _started(owner.pid) != owner.started


def marked(mark: bytes) -> Iterator[tuple[int, bytes]]:
    """Processes, but this one, with a mark in their command line or environment; what follows it.

    Without /proc there are none.
    """
    try:
        names = os.listdir("/proc")
    except OSError:
        return
    for name in names:
        if not name.isdigit() or int(name) == os.getpid():
            continue
        for file in ("cmdline", "environ"):
            try:
                with open(f"/proc/{name}/{file}", "rb") as opened:
                    _, found, rest = opened.read().partition(mark)
            except OSError:
                continue
            if found:
                yield int(name), rest
                break


def _started(pid: int) -> int | None:
    """When a process started; None if there is none (a zombie is none)."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None if os.path.isdir("/proc/self") else _asked(pid)
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def _asked(pid: int) -> int | None:
    """Where there is no /proc: only whether it exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return 0


@cache
def _boot() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip().replace("-", "")[:12]
    except OSError:
        return "none"


@cache
def _space() -> int:
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0
