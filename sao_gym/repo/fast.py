"""Grading inside a learning loop: many small tasks, a few milliseconds each.

A warm interpreter waits for trees, writes each into a folder of its own and forks a process for
each test: `runner_parent.py` in its mode `serve`, with the worker `runner_functions.py`. The rules
are those of the sealed grader (carried source files only, every expected test seen), and only the
parent has the pipe that answers go through.

It is meant for the small procedural family. What differs from `grade`: one sandbox serves many
gradings, so code that leaves files elsewhere in it could disturb or help a later one; it is renewed
after `PER_SERVER` gradings and after each that had to be stopped. `regrade` and evaluation judge
the same patches again in fresh boxes.
"""

from __future__ import annotations

import os
import queue
import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any

from sao_gym.errors import MachineryError
from sao_gym.repo import runner_functions, runner_parent
from sao_gym.repo.carry import carry
from sao_gym.repo.grade import plan_of, source, verdict
from sao_gym.repo.task import RepoTask, Verdict
from sao_gym.repo.warm import WarmProcess
from sao_gym.sandbox import WORK
from sao_gym.sandboxes import owner
from sao_gym.tree import Patch, Tree

PER_SERVER = 2000
_NOTHING = {"modules": [], "watched": [], "only": [], "seconds": 10.0, "each": 10.0}
"""A plan without tests."""


class FastGrader:
    """Grades tasks of the runner `functions` in warm processes; safe to call from threads."""

    def __init__(self, *, workers: int = 1, isolated: bool | None = None) -> None:
        """`isolated`: in bubblewrap (no network, own files and processes); None: if it works."""
        self.isolated = bubblewrap_works() if isolated is None else isolated
        self._free: queue.SimpleQueue[_Server | None] = queue.SimpleQueue()
        self._workers, self._closed = workers, False
        for _ in range(workers):
            self._free.put(None)

    def grade(self, task: RepoTask, fix: Tree | Patch) -> Verdict:
        """As `sao_gym.repo.grade.grade`.

        Raises:
            MachineryError: the warm process cannot be started, or does not answer at all.
        """
        if task.runner != "functions":
            raise ValueError(f"{task.id}: runner {task.runner!r}; the fast grader runs functions")
        tree = carry(task, fix).tree
        server = self._free.get()
        try:
            for _ in range(2):
                server = self._fresh(server)
                answer = server.ask(plan_of(task), tree)
                if answer is not None:
                    return verdict(task, answer)
                if server.late:
                    return verdict(task, {"outcomes": {}, "timed_out": True})
            return verdict(task, self._ended(server := self._fresh(server)))
        except BaseException:
            _close(server)
            server = None
            raise
        finally:
            self._free.put(server)

    def _fresh(self, server: _Server | None) -> _Server:
        """This process, or a new one if it cannot be used again."""
        if server is not None and server.usable():
            return server
        _close(server)
        return _Server(isolated=self.isolated)

    def _ended(self, server: _Server) -> dict[str, Any]:
        """What to say of tests that ended their own runner, if the runner is well without them."""
        if server.ask(_NOTHING, {}) is None:
            raise MachineryError("grader", "the grading process does not answer")
        return {"outcomes": {}, "tampered": True, "why": "the tests ended their own runner"}

    def close(self) -> None:
        """End the processes. Waits for gradings that are under way; closing twice is harmless."""
        if not self._closed:
            self._closed = True
            for _ in range(self._workers):
                _close(self._free.get())

    def __enter__(self) -> FastGrader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class _Server:
    """One warm process."""

    def __init__(self, *, isolated: bool) -> None:
        self.late, self.broken = False, False
        folder = owner.folder()
        command = _command(folder, isolated)
        try:
            self._process = WarmProcess(command, folder)
        except OSError as error:
            raise MachineryError("engine", f"{command[0]}: {error.strerror}") from None
        # once it answers, a bound file needs its name no more; so a killed owner leaves none
        if isolated and self.ask(_NOTHING, {}) is not None:
            self._process.remove_folder()

    @property
    def used(self) -> int:
        return self._process.asked

    def ask(self, plan: dict[str, Any], tree: Tree) -> dict[str, Any] | None:
        """The answer to a plan; None if there is none (`late` tells whether it took too long)."""
        self.broken = True
        try:
            answer = self._process.ask(plan, tree)
        except TimeoutError:
            self.late = True
            return None
        except (OSError, EOFError):
            return None
        self.broken = "lost" in answer
        if "error" in answer:
            raise MachineryError("grader", str(answer["error"]))
        return None if self.broken else answer

    def usable(self) -> bool:
        """Whether it may be asked again."""
        return not self.broken and self.used < PER_SERVER and self._process.alive

    def close(self) -> None:
        self._process.close()


def _close(server: _Server | None) -> None:
    if server is not None:
        server.close()


def _command(folder: str, isolated: bool) -> list[str]:
    for module in (runner_parent, runner_functions):
        name = module.__name__.rpartition(".")[2]
        (Path(folder) / f"{name}.py").write_bytes(source(module))
    python = shutil.which("python3", path=os.defpath) or sys.executable
    # not -I, which would ignore PYTHONHASHSEED; the environment is ours
    start = [python, "-s", "-S", "-B"]
    if not isolated:
        return [*start, "runner_parent.py", "runner_functions.py", "serve"]
    inside = [*start, "../runner_parent.py", "../runner_functions.py", "serve"]
    files = ["runner_parent.py", "runner_functions.py"]
    bound = [part for f in files for part in ("--ro-bind", f"{folder}/{f}", f"{WORK}/{f}")]
    return [*_WRAP, *bound, "--tmpfs", f"{WORK}/jobs", "--chdir", f"{WORK}/jobs", *inside]


_WRAP: Sequence[str] = (
    *(
        "bwrap",
        "--unshare-all",
        "--unshare-user",
        "--uid",
        "65534",
        "--gid",
        "65534",
        "--die-with-parent",
        "--new-session",
        "--cap-drop",
        "ALL",
    ),
    *(
        "--ro-bind",
        "/usr",
        "/usr",
        "--symlink",
        "usr/lib",
        "/lib",
        "--symlink",
        "usr/lib64",
        "/lib64",
    ),
    *("--symlink", "usr/bin", "/bin", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"),
)


@cache
def bubblewrap_works() -> bool:
    """Whether a process can be started in bubblewrap here."""
    if shutil.which("bwrap") is None:
        return False
    try:
        return (
            subprocess.run(
                [*_WRAP, "/usr/bin/python3", "-I", "-S", "-c", ""], timeout=20
            ).returncode
            == 0
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
