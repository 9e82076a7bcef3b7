"""What the supervisor of a box asks of the system. Runs inside the box: see `supervisor`."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
from typing import Any


class Kept:
    """The first and the last bytes of a stream, each half of `limit`."""

    def __init__(self, limit: int) -> None:
        self.half = limit // 2
        self.head = bytearray()
        self.tail = bytearray()
        self.total = 0

    def add(self, data: bytes) -> None:
        self.total += len(data)
        room = self.half - len(self.head)
        if room > 0:
            self.head += data[:room]
            data = data[room:]
        self.tail += data
        if len(self.tail) > 2 * self.half + (1 << 18):
            del self.tail[: len(self.tail) - self.half]

    def whole(self) -> tuple[bytes, bool]:
        """What is kept, and whether something was dropped."""
        if self.total <= 2 * self.half:
            return bytes(self.head + self.tail), False
        tail = self.tail[len(self.tail) - self.half :] if self.half else b""
        dropped = self.total - len(self.head) - len(tail)
        marker = f"\n[... {dropped} bytes of output dropped ...]\n"
        return bytes(self.head) + marker.encode() + bytes(tail), True


def prctl(required: bool) -> Any:
    """The system call; where there is none (no Linux) a function that does nothing."""
    if not sys.platform.startswith("linux"):
        return lambda option, value: None
    import ctypes

    call = ctypes.CDLL(None, use_errno=True).prctl

    def checked(option: int, value: int) -> None:
        if call(option, value, 0, 0, 0) and required:
            raise OSError(ctypes.get_errno(), f"prctl({option})")

    return checked


def reap(child: int) -> int | None:
    """Collect what has ended; how `child` did, if it has."""
    status = None
    while True:
        try:
            pid, how = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return status
        if pid == 0:
            return status
        if pid == child:
            status = how


def memory_file(data: bytes) -> int:
    """A descriptor that reads `data`, in memory and so out of a command's reach."""
    if not data:
        return os.open(os.devnull, os.O_RDONLY)
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("stdin")
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def exit_code(status: int) -> int:
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def drain(fd: int) -> None:
    try:
        while os.read(fd, 4096):
            pass
    except BlockingIOError:
        pass


def complain(line: str) -> None:
    os.write(2, (f"sandbox: {line}\n").encode("utf-8", "surrogateescape"))


def prefer_to_kill() -> None:
    """Out of memory, the command goes and not the supervisor."""
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
    except OSError:
        pass


def limit(limits: dict[str, int]) -> None:
    import resource

    for name, value in limits.items():
        number = getattr(resource, "RLIMIT_" + name, None)
        if number is not None:
            hard = resource.getrlimit(number)[1]
            value = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(number, (value, value))


def childless() -> bool:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return True
    return False


def kill_below(root: int) -> None:
    """Kill every descendant of `root`."""
    parents = {}
    try:
        for name in os.listdir("/proc"):
            if name.isdigit():
                try:
                    with open(f"/proc/{name}/stat", "rb") as file:
                        parents[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
                except OSError:
                    pass
    except OSError:
        pass
    below = {root}
    while True:
        more = {pid for pid, parent in parents.items() if parent in below} - below
        if not more:
            break
        below |= more
    for pid in below - {root}:
        kill(os.kill, pid)


def kill(how: Any, pid: int) -> None:
    with contextlib.suppress(OSError):
        how(pid, signal.SIGKILL)
