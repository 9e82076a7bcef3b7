"""Test runs a few milliseconds long: each forked from an interpreter that waits in a box.

The interpreter is `runner_parent.py` in its mode `serve`, with a worker beside it; it writes each
tree into an empty folder, runs what the plan asks for, and removes all of it. Messages are eight
bytes of length, then JSON. A box is renewed after `PER_BOX` runs, and after one that did not end.
"""

from __future__ import annotations

import base64
import json
import queue
import struct
import threading
import time
from typing import Any

from sao_gym.errors import MachineryError
from sao_gym.repo import runner_parent
from sao_gym.repo.grade import source
from sao_gym.sandbox import WORK, Box, BoxSpec, Sandbox
from sao_gym.tree import Entry, Tree

PER_BOX = 2000
GRACE = 5.0
"""Seconds on top of a plan's own time limit."""

_FOLDER = "jobs"
_LARGEST = 64 << 20  # bytes of an answer
_NOTHING = {"modules": [], "watched": [], "only": [], "seconds": 10.0, "each": 10.0}
"""A plan without tests."""


class Warm:
    """At most `workers` boxes with an interpreter in each; safe to call from threads."""

    def __init__(self, sandbox: Sandbox, worker: Any, *, workers: int = 1) -> None:
        """`worker`: the module with `work(plan)`; it is sent into the box as source.

        The sandbox stays its owner's to close.
        """
        self._sandbox, self._worker, self._workers = sandbox, worker, workers
        self._closing = threading.Lock()
        self._free: queue.LifoQueue[_Server | None] = queue.LifoQueue()
        for _ in range(workers):
            self._free.put(None)

    def ask(self, plan: dict[str, Any], tree: Tree) -> dict[str, Any]:
        """The worker's answer to a plan, which it is given with the tree.

        An interpreter that was lost, or does not answer, is replaced and asked once more. After the
        second time it is what it ran: `timed_out` if there was no answer in time, else `tampered`
        and `why`.

        Raises:
            MachineryError: `engine` or `image`, no box can be had; `grader`, the worker fails twice
                or cannot even run nothing.
        """
        server = self._free.get()
        try:
            for _ in range(2):  # lost by chance, or by what it ran
                server = last = self._fresh(server)
                answer = last.ask(plan, tree)
                if answer is not None:
                    return answer
            if last.erred:
                raise MachineryError("grader", f"the test runner: {last.why}")
            server = probe = self._fresh(server)
            if probe.ask(_NOTHING, {}) is None:
                raise MachineryError("grader", f"the test runner does not answer: {probe.why}")
            if last.late:
                return {"outcomes": {}, "timed_out": True}
            return {
                "outcomes": {},
                "tampered": True,
                "why": "the tests ended their own runner",
            }
        except BaseException:
            _close(server)
            server = None
            raise
        finally:
            self._free.put(server)

    def close(self) -> None:
        """End what waits; runs under way are waited for. It can be used again."""
        with self._closing:  # two at once would each wait for what the other holds
            for server in [self._free.get() for _ in range(self._workers)]:
                _close(server)
                self._free.put(None)

    def _fresh(self, server: _Server | None) -> _Server:
        """This one, or a new one if it cannot be used again."""
        if server is not None and server.usable():
            return server
        _close(server)
        try:
            return _Server(self._sandbox.start(BoxSpec()), self._worker)
        except MachineryError as error:
            if error.kind != "box":
                raise
        # one of a pool may have died before it was taken
        return _Server(self._sandbox.start(BoxSpec()), self._worker)


class _Server:
    """One interpreter."""

    def __init__(self, box: Box, worker: Any) -> None:
        self.late = self.erred = self.broken = False
        self.asked, self.why = 0, ""
        self.box = box
        try:
            modules = {"parent.py": source(runner_parent), "worker.py": source(worker)}
            files = {name: Entry("file", text) for name, text in modules.items()}
            box.put({**files, _FOLDER: Entry("dir")})
            # not -I, which would ignore PYTHONHASHSEED; the environment is ours
            command = ["python3", "-s", "-S", "-B", "../parent.py", "../worker.py", "serve"]
            self._held = box.hold(
                command, cwd=f"{WORK}/{_FOLDER}", environment={"PYTHONHASHSEED": "0"}
            )
        except BaseException:
            box.close()
            raise

    def ask(self, plan: dict[str, Any], tree: Tree) -> dict[str, Any] | None:
        """The answer to a plan; None if there is none: `late`, `erred` and `why` tell more."""
        self.asked += 1
        self.broken = True
        files = [
            [path, entry.kind, base64.b64encode(entry.data).decode(), entry.executable]
            for path, entry in tree.items()
        ]
        job = plan | {"folder": "job", "root": "job", "files": files}
        deadline = time.monotonic() + plan["seconds"] + GRACE
        try:
            answer = self._asked(json.dumps(job).encode(), deadline)
        except (MachineryError, ValueError) as error:
            self.late = isinstance(error, MachineryError) and error.kind == "timeout"
            self.why = str(error)
            return None
        self.erred, self.why = "error" in answer, str(answer.get("error", ""))
        self.broken = self.erred or "lost" in answer
        return None if self.broken else answer

    def _asked(self, message: bytes, deadline: float) -> dict[str, Any]:
        self._held.send(struct.pack(">Q", len(message)) + message, deadline)
        (size,) = struct.unpack(">Q", self._held.receive(8, deadline))
        if size > _LARGEST:
            raise ValueError(f"an answer of {size} bytes")
        answer: dict[str, Any] = json.loads(self._held.receive(size, deadline))
        return answer

    def usable(self) -> bool:
        """Whether it may be asked again."""
        return not self.broken and self.asked < PER_BOX

    def close(self) -> None:
        self.box.close()


def _close(server: _Server | None) -> None:
    if server is not None:
        server.close()
