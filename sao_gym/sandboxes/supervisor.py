"""The process that runs commands inside a box: one program for all three kinds.

    request   >II header length, payload length; header (JSON), payload
    answer    >cI "o" and a chunk of what was asked for, any number of times;
              then ">cI" "x" and how it ended (JSON)
    hold      after its answer both ends of the channel are the command's own

Its source is handed to the Python of the box (3.7 or newer), with that of `supervisor_system` and
`supervisor_trees`; the three import the standard library and each other. Where it is process 1 of
the box nothing inside can kill, stop or trace it, and it kills whatever a command left behind with
one call. It ends, and all with it, when its channel closes: a killed owner leaves nothing. It
serves one request at a time and is single-threaded.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import struct
import sys
import time
from typing import Any

from sao_gym.sandboxes.supervisor_system import (
    Kept,
    childless,
    complain,
    drain,
    exit_code,
    kill,
    kill_below,
    limit,
    memory_file,
    prctl,
    prefer_to_kill,
    reap,
)
from sao_gym.sandboxes.supervisor_trees import guarded, read_tree, write_tree

_CHUNK = 1 << 18


class _Closed(Exception):
    """The owner is gone."""


class Supervisor:
    """Answers requests on a channel until it closes."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.alone = os.getpid() == 1
        os.umask(0o022)
        # away from 0, 1 and 2, which a command gets its own of; neither is inherited by one
        self.asks, self.says = os.dup(0), os.dup(1)
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(null, 1)
        self.prctl = prctl(required=self.alone)
        self.prctl(4, 0)  # PR_SET_DUMPABLE: a command of the same user cannot trace this process
        self.prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: orphans come here
        self.wake, wake = os.pipe()
        os.set_blocking(self.wake, False)
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if not self.alone:  # the kernel keeps from process 1 what it has no handler for
            signal.signal(signal.SIGTERM, self._terminated)

    def serve(self) -> None:
        try:
            self._say(b"x", b"{}")
            while True:
                sizes = struct.unpack(">II", self._read(8))
                request = json.loads(self._read(sizes[0]))
                payload = self._read(sizes[1])
                try:
                    answer = getattr(self, "_" + request.pop("op"))(payload, **request)
                except OSError as error:
                    answer = {"error": str(error)}
                self._say(b"x", json.dumps(answer).encode())
        except _Closed:
            pass
        finally:
            self._kill_all(0)

    def _run(
        self,
        payload: bytes,
        command: list[str],
        seconds: float,
        cwd: str,
        environment: dict[str, str],
        output: int,
    ) -> dict[str, Any]:
        began = time.monotonic()
        read, write = os.pipe()
        kept = Kept(output)
        given = memory_file(payload)
        child = os.fork()
        if child == 0:
            self._become(command, cwd, environment, (given, write, write))
        os.close(write)
        os.close(given)
        code = self._pump(child, read, began + seconds, kept)
        text, cut = kept.whole()
        self._say(b"o", text)
        timed_out = code is None
        return {
            "code": 124 if timed_out else code,
            "timed_out": timed_out,
            "cut": cut,
            "seconds": time.monotonic() - began,
        }

    def _hold(
        self, payload: bytes, command: list[str], cwd: str, environment: dict[str, str]
    ) -> dict[str, Any]:
        """Hand the channel to a command; end with it, or with the owner. Never returns."""
        self._say(b"x", b"{}")
        child = os.fork()
        if child == 0:
            self._become(command, cwd, environment, (self.asks, self.says, 2))
        poll = select.poll()
        poll.register(self.asks, 0)  # only its end: what comes through it is not for us
        poll.register(self.wake, select.POLLIN)
        while reap(child) is None:
            if any(fd == self.asks for fd, _ in poll.poll()):
                break
            drain(self.wake)
        raise _Closed

    def _get(self, payload: bytes, at: str, limit: int) -> dict[str, Any]:
        return self._apart(lambda write: read_tree(at, limit, write), stream=True)

    def _put(self, payload: bytes, at: str) -> dict[str, Any]:
        return self._apart(lambda _: write_tree(at, payload), stream=False)

    def _apart(self, work: Any, stream: bool) -> dict[str, Any]:
        """Do something in a child, so that it cannot take this process along."""
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os._exit(guarded(work, write))
        os.close(write)
        kept = Kept(2000)
        code = self._pump(child, read, None, self if stream else kept)
        return {"code": code, "detail": kept.whole()[0].decode("utf-8", "replace")}

    def add(self, data: bytes) -> None:
        """A sink that passes on."""
        self._say(b"o", data)

    def _pump(self, child: int, read: int, deadline: float | None, sink: Any) -> int | None:
        """Read until the child ends, then end what it left; its code, None if time was over."""
        poll = select.poll()
        for fd in (read, self.wake, self.asks):
            poll.register(fd, select.POLLIN)
        status = None
        try:
            while status is None:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    self._kill_all(child)
                    break
                for fd, _ in poll.poll(None if left is None else min(left, 3600) * 1000 + 1):
                    if fd == self.asks:
                        raise _Closed  # nobody asks while an answer is due: the other end closed
                    if fd == read:
                        data = os.read(read, _CHUNK)
                        if data:
                            sink.add(data)
                        else:
                            poll.unregister(read)
                    else:
                        drain(self.wake)
                status = reap(child)
            self._kill_all(child)
            self._rest(read, sink)
        finally:
            os.close(read)
        return None if status is None else exit_code(status)

    def _rest(self, read: int, sink: Any) -> None:
        """What still lies in the pipe; nobody writes any more."""
        os.set_blocking(read, False)
        while True:
            try:
                data = os.read(read, _CHUNK)
            except BlockingIOError:
                return
            if not data:
                return
            sink.add(data)

    def _kill_all(self, child: int) -> None:
        """Kill every process of the box but this one, and wait until they are gone."""
        if child and not self.alone and not sys.platform.startswith("linux"):
            kill(os.killpg, child)  # its orphans do not come here
        while True:
            if self.alone:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(-1, signal.SIGKILL)
            elif childless():
                return
            else:
                kill_below(os.getpid())
            try:
                while os.waitpid(-1, 0 if self.alone else os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                return
            time.sleep(0.001)

    def _become(
        self,
        command: list[str],
        cwd: str,
        environment: dict[str, str],
        standard: tuple[int, int, int],
    ) -> None:
        """In the child: turn into the command, with these three for 0, 1 and 2. Never returns."""
        code = 126
        try:
            self.prctl(4, 1)
            if not self.alone:
                self.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
            os.setsid()
            for to, fd in enumerate(standard):
                os.dup2(fd, to)
            os.closerange(3, 64)
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGPIPE):
                signal.signal(number, signal.SIG_DFL)
            prefer_to_kill()
            limit(self.config["rlimits"])
            os.chdir(cwd)
            os.execvpe(command[0], command, dict(os.environ, **environment))
        except FileNotFoundError:
            code = 127
            missing = command[0] if os.path.isdir(cwd) else "folder " + cwd
            complain("not found: " + missing)
        except (OSError, ValueError) as error:
            complain(f"cannot run {command[0]}: {error}")
        finally:
            os._exit(code)

    def _terminated(self, *_: Any) -> None:
        self._kill_all(0)
        os._exit(143)

    def _say(self, kind: bytes, data: bytes) -> None:
        rest = memoryview(struct.pack(">cI", kind, len(data)) + data)
        try:
            while rest:
                rest = rest[os.write(self.says, rest) :]
        except OSError:
            raise _Closed from None

    def _read(self, size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            try:
                data = os.read(self.asks, min(size - len(parts), 1 << 20))
            except OSError:
                data = b""
            if not data:
                raise _Closed
            parts += data
        return bytes(parts)


if __name__ == "__main__":
    Supervisor(json.loads(sys.argv[1])).serve()
