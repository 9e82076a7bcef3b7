"""Runs inside a box, with the standard library alone: the trusted parent of a test run.

    python3 -I -B runner_parent.py WORKER FOLDER    one run: {"key", "plan"} on standard input
    python3 -I -B runner_parent.py WORKER serve     many: plans in, answers out, through its pipes

    parent   holds the key, signs what the worker tells, writes FOLDER/report.json
    worker   forked before the key is read; judges the tests' processes, imports none of their code
    tests    run the code under test; one process a test (functions) or one for all (pytest)

The report is authentic because the key is known to the parent alone: it comes through standard
input after the worker was forked, and is never written anywhere. The code under test has neither
the key nor a descriptor that leads to the parent or to another test. Parent and worker are made
undumpable, so that a process of the same user can neither trace them nor read their memory or
descriptors; a process with CAP_SYS_PTRACE (root without a sandbox) still can. What outlives its
test is killed before the next one begins.

With `serve` nothing is signed: only the parent has the pipe that the answers go through.

The worker is a file that defines `work(plan) -> dict`. This file stands alone and is never imported
in a box; the worker is handed `child`, `follow`, `listen` and `stamps` as `tools`.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import hashlib
import hmac
import json
import os
import resource
import select
import shutil
import signal
import struct
import sys
import time
import types
from typing import Any

REPORT = "report.json"
_DATA, _FILE = 1 << 30, 64 << 20  # bytes that a process of a server may take and write to a file
_DUMPABLE, _SUBREAPER = 4, 36


def main(arguments: list[str]) -> None:
    """The parent process."""
    dumpable(False)
    with open(arguments[1], "rb") as file:
        code = compile(file.read(), arguments[1], "exec")
    if arguments[2:] == ["serve"]:
        for what, most in ((resource.RLIMIT_DATA, _DATA), (resource.RLIMIT_FSIZE, _FILE)):
            hard = resource.getrlimit(what)[1]
            least = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(what, (least, least))
        _serve(*_fork_worker(code, quiet=True))
        return
    folder = os.path.abspath(arguments[2])
    os.makedirs(folder, exist_ok=True)
    down, up = _fork_worker(code)
    order = json.loads(sys.stdin.buffer.read())
    _send(down, order["plan"])
    _write(folder, _signed(bytes.fromhex(order["key"]), _receive(up)))


def _serve(down: int, up: int) -> None:
    """Answer plans until standard input ends or the worker is gone."""
    while "lost" not in (plan := _receive(0)):
        _send(down, plan)
        answer = _receive(up)
        _send(1, answer)
        if "lost" in answer:
            return


def _signed(key: bytes, answer: dict[str, Any]) -> bytes:
    body = json.dumps(answer)
    signature = hmac.new(key, body.encode(), hashlib.sha256).hexdigest()
    return json.dumps({"body": body, "signature": signature}).encode()


def _write(folder: str, data: bytes) -> None:
    """Whole or not at all."""
    temporary = os.path.join(folder, "report.part")
    with open(temporary, "wb") as file:
        file.write(data)
    os.replace(temporary, os.path.join(folder, REPORT))


def _fork_worker(code: types.CodeType, *, quiet: bool = False) -> tuple[int, int]:
    """Descriptors to send plans to the worker and to receive its answers.

    `quiet`: it writes nothing to the standard output, which the answers go through.
    """
    plans, down = os.pipe()
    up, answers = os.pipe()
    if os.fork():
        os.close(plans)
        os.close(answers)
        return down, up
    os.close(down)
    os.close(up)
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    if quiet:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        os.close(nowhere)
    prctl(_SUBREAPER, 1)
    tools = types.SimpleNamespace(child=child, follow=follow, listen=listen, stamps=stamps)
    space: dict[str, Any] = {"__name__": "worker", "tools": tools}
    exec(code, space)
    try:
        while True:
            _send(answers, _worked(space["work"], _receive(plans)))
    except BrokenPipeError:
        pass
    finally:
        sweep()
        os._exit(0)


def _worked(work: Any, plan: dict[str, Any]) -> dict[str, Any]:
    if "lost" in plan:
        raise BrokenPipeError
    folder = plan.get("folder")
    try:
        answer: dict[str, Any] = {}
        if folder and (why := _written(plan["files"], folder)):
            answer = {"outcomes": {}, "tampered": True, "why": why}
        else:
            answer = work(plan)
    except Exception as error:  # noqa: BLE001 - the grader's own fault is told, not hidden
        answer = {"error": f"{type(error).__name__}: {error}"}
    finally:
        sweep()
        if folder:
            _clear()
    return answer


def _clear() -> None:
    """Remove all from the folder of a server: the next tests must not find what these left."""
    for name in os.listdir():
        _open_up(name)
        shutil.rmtree(name, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.unlink(name)


def _open_up(folder: str) -> None:
    """Take back permissions that were taken away: what cannot be read cannot be removed."""
    with contextlib.suppress(OSError, RecursionError):
        if not os.path.islink(folder) and os.path.isdir(folder):
            os.chmod(folder, 0o700)
            for name in os.listdir(folder):
                _open_up(os.path.join(folder, name))


def _send(to: int, value: dict[str, Any]) -> None:
    data = json.dumps(value).encode()
    data = struct.pack(">Q", len(data)) + data
    while data:
        data = data[os.write(to, data) :]


def _receive(of: int) -> dict[str, Any]:
    """The next message; `{"lost": True}` if the other side is gone."""
    head = _exactly(of, 8)
    body = _exactly(of, struct.unpack(">Q", head)[0]) if head else None
    value: dict[str, Any] = {"lost": True} if body is None else json.loads(body)
    return value


def _exactly(of: int, size: int) -> bytes | None:
    data = b""
    while len(data) < size:
        part = os.read(of, size - len(data))
        if not part:
            return None
        data += part
    return data


def prctl(option: int, value: int) -> None:
    """Quietly nothing where the system has no such call."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def dumpable(yes: bool) -> None:
    """Whether processes of the same user may trace this one and read its memory."""
    prctl(_DUMPABLE, int(yes))


def child() -> tuple[int, int, int]:
    """Fork a process for code under test: (pid, read, write); pid is 0 in the child.

    The child has these two descriptors and the standard ones, no other.
    """
    to_read, up = os.pipe()
    down, to_write = os.pipe()
    pid = os.fork()
    if pid:
        os.close(up)
        os.close(down)
        return pid, to_read, to_write
    os.setsid()
    keep = sorted((up, down))
    os.closerange(3, keep[0])
    os.closerange(keep[0] + 1, keep[1])
    os.closerange(keep[1] + 1, 4096)
    dumpable(True)
    return 0, down, up


def follow(pid: int, up: int, seconds: float, heard: Any) -> int | None:
    """Read from a child until it ends; `heard(bytes)` gets each part. Its exit status.

    None: it did not end within `seconds`, and was killed. 128 + n for signal n.
    """
    deadline = time.monotonic() + seconds
    try:
        gone = os.pidfd_open(pid)
    except (AttributeError, OSError):
        gone = -1
    status, sources = None, [up] if gone < 0 else [up, gone]
    while status is None and (left := deadline - time.monotonic()) > 0:
        ready = select.select(sources, [], [], left if gone >= 0 else min(left, 0.002))[0]
        if up in ready:
            data = os.read(up, 1 << 16)
            if data:
                heard(data)
                continue
            sources.remove(up)
            if not sources:
                time.sleep(0.001)
        done, raw = os.waitpid(pid, os.WNOHANG)
        status = os.waitstatus_to_exitcode(raw) if done else None
    while up in sources and select.select([up], [], [], 0)[0]:
        data = os.read(up, 1 << 16)
        if not data:
            break
        heard(data)
    if gone >= 0:
        os.close(gone)
    sweep()
    return status if status is None or status >= 0 else 128 - status


def listen(pid: int, up: int, down: int, seconds: float, most: int) -> tuple[int | None, bytes]:
    """`follow` a child to its end, close both descriptors; its status, and what it said.

    Above `most` bytes, to the part, the rest is dropped.
    """
    said = bytearray()

    def heard(data: bytes) -> None:
        if len(said) < most:
            said.extend(data)

    status = follow(pid, up, seconds, heard)
    os.close(up)
    os.close(down)
    return status, bytes(said)


def stamps(root: str, paths: list[str]) -> list[Any]:
    """What changes if a file is written, replaced or removed, even to the same content."""
    found: list[Any] = []
    for path in paths:
        try:
            now = os.lstat(os.path.join(root, path))
            found.append((now.st_ino, now.st_mode, now.st_size, now.st_mtime_ns, now.st_ctime_ns))
        except OSError:
            found.append(None)
    return found


def sweep() -> None:
    """Kill every descendant of this process and wait for the last one."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            done = os.waitpid(-1, os.WNOHANG)[0]
        except ChildProcessError:
            return
        if done:
            continue
        for pid in _children():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.0002)


def _children() -> list[int]:
    me = os.getpid()
    try:
        with open(f"/proc/{me}/task/{me}/children") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:
        return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _of(pid) == me]


def _of(pid: int) -> int:
    """The parent of a process; 0 if it is gone."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _written(files: list[list[Any]], folder: str) -> str:
    """Write the files below a new folder; why they cannot be written, "" if they were."""
    os.mkdir(folder)
    try:
        _write_files(files, folder)
    except OSError as error:  # a name that is too long, a disk that is full
        return f"the tree cannot be written: {error.strerror}"
    return ""


def _write_files(files: list[list[Any]], folder: str) -> None:
    """Write `[path, kind, data in base64, executable]` below a folder."""
    for path, kind, data, executable in files:
        here = os.path.join(folder, path)
        os.makedirs(os.path.dirname(here), exist_ok=True)
        content = base64.b64decode(data)
        if kind == "dir":
            os.makedirs(here, exist_ok=True)
        elif kind == "link":
            os.symlink(os.fsdecode(content), here)
        else:
            with open(here, "wb") as file:
                file.write(content)
            if executable:
                os.chmod(here, 0o755)


if __name__ == "__main__":
    main(sys.argv)
