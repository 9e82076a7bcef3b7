"""A supervisor as a child process of ours, and the socket to it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence

_STOP_SECONDS = 5.0


class LocalLink:
    """`Link` to a child process. The child ends when the socket closes, so also with us."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        removed: Callable[[bool], None],
        files: Sequence[int] = (),
        user: int | None = None,
    ) -> None:
        """`files` are handed to the child.

        `removed` is called when it has ended, and told whether it ended in good order.
        """
        self._removed = removed
        self._socket, theirs = socket.socketpair()
        try:
            self._process: subprocess.Popen[bytes] = subprocess.Popen(
                command,
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.PIPE,
                env=dict(environment),
                cwd="/",
                pass_fds=tuple(files),
                start_new_session=True,
                user=user,
                group=user,
                extra_groups=None if user is None else [],
            )
        except OSError:
            self._socket.close()
            removed(True)
            raise
        finally:
            theirs.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, data: bytes, deadline: float) -> None:
        self._socket.settimeout(_left(deadline))
        self._socket.sendall(data)

    def receive(self, size: int, deadline: float) -> bytes:
        parts = bytearray(size)
        view, got = memoryview(parts), 0
        while got < size:
            self._socket.settimeout(_left(deadline))
            more = self._socket.recv_into(view[got:])
            if not more:
                raise EOFError("it ended")
            got += more
        return bytes(parts)

    def wake(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> str:
        self._socket.close()  # tells the child to end
        try:
            _, said = self._process.communicate(timeout=_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            said = b""  # what it left may hold its pipe; the reaper ends that
            self._process.wait()
            assert self._process.stderr is not None
            self._process.stderr.close()
        self._removed(self._process.returncode == 0)
        return said.decode("utf-8", "replace")


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
