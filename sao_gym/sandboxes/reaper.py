"""Removes what dead owners left: containers, processes, control groups, temporary folders.

A box ends with its owner by itself, as its channel closes. What stays is what could not notice: a
container that was made and not started, a folder, a process that outlived its supervisor.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from sao_gym.sandboxes import cgroups, owner

MAX_AGE = 24 * 3600.0
"""Seconds; a box that is older goes although its owner lives."""
_UNMARKED = 3600.0  # a folder without its mark is being made, unless it is older


def reap(*, docker: bool = False, max_age: float = MAX_AGE) -> int:
    """Remove what no living owner has; how many things that were. Never raises for one of them."""
    count = _containers(max_age) if docker else 0
    for _ in range(10):  # a process may have started another meanwhile
        found = [pid for pid, whose in _processes() if _gone(whose, max_age)]
        for pid in found:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        count += len(found)
        if not found:
            break
        time.sleep(0.02)
    for whose, group in cgroups.left():
        if _gone(whose, max_age):
            group.remove()
            count += 1
    for folder in _folders():
        if _left(folder, max_age):
            shutil.rmtree(folder, ignore_errors=True)
            count += 1
    return count


def _containers(max_age: float) -> int:
    from sao_gym.sandboxes import docker

    return docker.remove_dead(max_age) if docker.unusable() is None else 0


def _gone(whose: str, max_age: float) -> bool:
    parsed = owner.parse(whose)
    return parsed is not None and owner.dead(parsed, max_age=max_age, here=True)


def _processes() -> Iterator[tuple[int, str]]:
    """Processes that belong to a box, and its owner."""
    for pid, rest in owner.marked(owner.MARK.encode()):
        yield pid, rest.partition(b"\0")[0].partition(b'"')[0].decode("ascii", "replace")


def _folders() -> Iterator[Path]:
    for folder in Path(tempfile.gettempdir()).glob(f"{owner.FOLDER}*"):
        with contextlib.suppress(OSError):
            if folder.is_dir() and not folder.is_symlink() and folder.stat().st_uid == os.geteuid():
                yield folder


def _left(folder: Path, max_age: float) -> bool:
    try:
        whose = (folder / "owner").read_text()
    except OSError:
        whose = ""
    if owner.parse(whose) is not None:
        return _gone(whose, max_age)
    with contextlib.suppress(OSError):
        return time.time() - folder.stat().st_mtime > _UNMARKED
    return False
