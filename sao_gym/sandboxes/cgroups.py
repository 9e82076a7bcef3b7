"""Control groups for boxes without an engine, where this process may make them (as root, usually).

Both layouts are known: one folder for each controller (version 1), or one for all (version 2).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from sao_gym.sandbox import BoxLimits

ROOT = Path("/sys/fs/cgroup")
_PARENT = "sao-gym"
_PERIOD = 100_000  # microseconds
_OURS = 24 << 20  # bytes that the supervisor itself may take
_count = itertools.count()


class Group:
    """The groups of one box."""

    def __init__(self, folders: dict[str, Path]) -> None:
        self.folders = folders

    def add(self, pid: int) -> None:
        for folder in set(self.folders.values()):
            (folder / "cgroup.procs").write_text(str(pid))

    def remove(self) -> None:
        """Kill what is still in them, and remove them."""
        for folder in set(self.folders.values()):
            for attempt in range(100):  # busy until the kernel has buried the last process
                try:
                    folder.rmdir()
                except FileNotFoundError:
                    break
                except OSError:
                    if attempt > 10:
                        _kill(folder)
                    time.sleep(0.01)
                else:
                    break


def make(limits: BoxLimits, owner: str) -> Group:
    """Groups with these limits, for the controllers that can be had."""
    folders: dict[str, Path] = {}
    name = f"{owner}-{next(_count)}"
    for controller, settings in _settings(limits).items():
        try:
            folder = _parent(controller) / name
            folder.mkdir(exist_ok=True)
        except OSError:
            continue
        try:
            for file, value in settings:
                if (folder / file).exists():  # accounting for swap may be off
                    (folder / file).write_text(value)
            folders[controller] = folder
        except OSError:
            if folder not in folders.values():
                Group({controller: folder}).remove()
    return Group(folders)


def left() -> Iterator[tuple[str, Group]]:
    """Every group of ours on this machine: its owner's name with a number, and itself."""
    for folder in itertools.chain(ROOT.glob(f"{_PARENT}/*-*"), ROOT.glob(f"*/{_PARENT}/*-*")):
        if folder.is_dir():
            yield folder.name.rpartition("-")[0], Group({"": folder})


def _kill(folder: Path) -> None:
    with contextlib.suppress(OSError):
        for pid in (folder / "cgroup.procs").read_text().split():
            os.kill(int(pid), signal.SIGKILL)


def _version_2() -> bool:
    return (ROOT / "cgroup.controllers").exists()


def _parent(controller: str) -> Path:
    """The folder that holds our groups, with the controller on. Raises OSError."""
    if not _version_2():
        folder = ROOT / controller / _PARENT
        folder.mkdir(exist_ok=True)
        return folder
    folder = ROOT / _PARENT
    folder.mkdir(exist_ok=True)
    for at in (ROOT, folder):
        if controller not in (at / "cgroup.subtree_control").read_text().split():
            (at / "cgroup.subtree_control").write_text(f"+{controller}")
    return folder


def _settings(limits: BoxLimits) -> dict[str, list[tuple[str, str]]]:
    memory, processes = str(limits.memory + _OURS), str(limits.processes + 1)
    quota = str(int(limits.cpus * _PERIOD))
    if _version_2():
        return {
            "memory": [("memory.max", memory), ("memory.swap.max", "0")],
            "pids": [("pids.max", processes)],
            "cpu": [("cpu.max", f"{quota} {_PERIOD}")],
        }
    return {
        "memory": [("memory.limit_in_bytes", memory), ("memory.memsw.limit_in_bytes", memory)],
        "pids": [("pids.max", processes)],
        "cpu": [("cpu.cfs_period_us", str(_PERIOD)), ("cpu.cfs_quota_us", quota)],
    }


@cache
def usable() -> frozenset[str]:
    """Which of the controllers memory, pids and cpu can be had here, by trying."""
    group = make(BoxLimits(), "probe")
    group.remove()
    return frozenset(group.folders)
