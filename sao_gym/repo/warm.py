"""A process that is kept warm: it is asked over its pipes, and forks to answer.

Its protocol is that of `runner_parent.py` in mode `serve`: eight bytes of length, then JSON.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import struct
import subprocess
import time
from collections.abc import Sequence
from typing import Any

from sao_gym.tree import Tree

GRACE = 5.0
"""Seconds on top of a plan's own time limit."""


class WarmProcess:
    """Started in `folder`, which is removed when it is closed."""

    def __init__(self, command: Sequence[str], folder: str) -> None:
        """Raises OSError if it cannot be started; the folder is removed then."""
        self.asked = 0
        self.folder = folder
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd=folder,
                env={"PATH": os.defpath, "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"},
                start_new_session=True,
            )
        except OSError:
            self.remove_folder()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, plan: dict[str, Any], tree: Tree) -> dict[str, Any]:
        """Its answer to a plan about a tree, which it writes into a folder of its own.

        Raises:
            TimeoutError: none came within the plan's `seconds` and `GRACE`.
            OSError, EOFError: it is gone.
        """
        self.asked += 1
        files = [
            [path, entry.kind, base64.b64encode(entry.data).decode(), entry.executable]
            for path, entry in tree.items()
        ]
        folder = f"job-{self.asked}"
        message = json.dumps(plan | {"folder": folder, "root": folder, "files": files}).encode()
        deadline = time.monotonic() + plan["seconds"] + GRACE
        assert self._process.stdin is not None
        self._process.stdin.write(struct.pack(">Q", len(message)) + message)
        self._process.stdin.flush()
        (size,) = struct.unpack(">Q", self._read(8, deadline))
        answer: dict[str, Any] = json.loads(self._read(size, deadline))
        return answer

    def close(self) -> None:
        """End it; one that does not end by itself is killed."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        try:
            self._process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.remove_folder()

    def remove_folder(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def _read(self, size: int, deadline: float) -> bytes:
        assert self._process.stdout is not None
        data, source = b"", self._process.stdout.fileno()
        while len(data) < size:
            if not select.select([source], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError("no answer in time")
            part = os.read(source, size - len(data))
            if not part:
                raise EOFError("it has ended")
            data += part
        return data
