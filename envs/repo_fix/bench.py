"""Where tests run and fixes are graded: processes that all environments of a process share.

                       run (what the agent sees)     grade (what is rewarded)
    functions          a warm process, fork by run   `FastGrader`: a warm process, fork by test
    docker, or other   a box each time               the sealed grader, a fresh box each time
    test runners

The warm ones run in bubblewrap if that works and was not ruled out (`process`), or as plain
processes, for code that is trusted. Nothing is started before it is needed; all ends with the
process.
"""

from __future__ import annotations

import atexit
import os
import queue
import shutil
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from sao_gym.envs.repo_fix import runner
from sao_gym.errors import MachineryError
from sao_gym.repo import grade, runner_parent
from sao_gym.repo.fast import FastGrader, bubblewrap_works
from sao_gym.repo.task import RepoTask, Verdict
from sao_gym.repo.warm import WarmProcess
from sao_gym.sandbox import Box, BoxSpec, Sandbox
from sao_gym.sandboxes import owner
from sao_gym.sandboxes.pool import WarmPool
from sao_gym.tree import Patch, Tree

Kind: TypeAlias = Literal["auto", "docker", "bubblewrap", "process"]

_WORKERS = 2
_WRAP = (
    *("bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"),
    *("--ro-bind", "/usr", "/usr", "--symlink", "usr/lib", "/lib"),
    *("--symlink", "usr/lib64", "/lib64", "--symlink", "usr/bin", "/bin"),
    *("--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--tmpfs", "/jobs"),
)


class Outcome(NamedTuple):
    """How one test ended, as the agent sees it."""

    test: str
    """`PATH::FUNCTION`, or a path alone if the file cannot be run."""
    passed: bool
    why: str


class Bench:
    """Runs and grades; safe to call from threads."""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self._lock = threading.Lock()
        self._fast: FastGrader | None = None
        self._sandbox: Sandbox | None = None
        self._pool: WarmPool | None = None
        self._free: queue.LifoQueue[_Warm | None] = queue.LifoQueue()
        for _ in range(_WORKERS):
            self._free.put(None)

    @property
    def isolation(self) -> str:
        """One line for the user: where small tests run."""
        if self._kind == "docker":
            return self._opened().isolation
        if self._isolated():
            return "bubblewrap: no network, own files and processes, no capabilities"
        return "process: no isolation at all; tests run as you, for code that is trusted"

    def run(self, task: RepoTask, tree: Tree) -> list[Outcome]:
        """Run the tests that lie in `tree`.

        Raises:
            MachineryError: the sandbox broke, not the tests.
        """
        if self._kind == "docker" or task.runner != "functions":
            return self._boxed(task, tree)
        plan = {"modules": _modules(tree), "seconds": task.seconds}
        warm = self._free.get()
        try:
            if warm is None:
                warm = _Warm(isolated=self._isolated())
            answer = warm.ask(plan, tree)
        except BaseException:
            if warm is not None:
                warm.close()
            warm = None
            raise
        finally:
            self._free.put(warm)
        if "outcomes" in answer:
            return [Outcome(*row) for row in answer["outcomes"]]
        return [Outcome("", False, str(answer["why"]))]

    def grade(self, task: RepoTask, patch: Patch) -> Verdict:
        """Judge a fix.

        Raises:
            MachineryError: the grader broke, not the fix.
        """
        if self._kind == "docker" or task.runner != "functions":
            return grade.grade(task, patch, sandbox=self._pooled())
        with self._lock:
            if self._fast is None:
                self._fast = FastGrader(workers=_WORKERS, isolated=self._isolated())
        return self._fast.grade(task, patch)

    def box(self, task: RepoTask) -> Box:
        """A box for one episode; those of the base image are started ahead.

        Raises:
            MachineryError: it cannot be had.
        """
        return self._pooled().start(BoxSpec(image=task.image))

    def close(self) -> None:
        """End what was started; what is needed later is started again."""
        with self._lock:
            fast, self._fast = self._fast, None
            sandbox, self._sandbox = self._sandbox, None
            pool, self._pool = self._pool, None
        taken = [self._free.get() for _ in range(_WORKERS)]  # waits for runs that are under way
        for warm in taken:
            if warm is not None:
                warm.close()
            self._free.put(None)
        if fast is not None:
            fast.close()
        if pool is not None:
            pool.close()
        if sandbox is not None:
            sandbox.close()

    def _isolated(self) -> bool:
        if self._kind == "bubblewrap" and not bubblewrap_works():
            raise MachineryError("engine", "bubblewrap does not work here")
        return self._kind != "process" and bubblewrap_works()

    def _opened(self) -> Sandbox:
        from sao_gym.sandboxes import open_sandbox

        with self._lock:
            if self._sandbox is None:
                self._sandbox = open_sandbox(self._kind)
            return self._sandbox

    def _pooled(self) -> WarmPool:
        sandbox = self._opened()
        with self._lock:
            if self._pool is None:
                self._pool = WarmPool(sandbox, BoxSpec(), _WORKERS)
            return self._pool

    def _boxed(self, task: RepoTask, tree: Tree) -> list[Outcome]:
        seen = {path: entry for path, entry in tree.items() if grade.is_test_file(path)}
        mine = replace(task, tests=seen)
        answer = grade.run_tests(mine, tree, sandbox=self._pooled(), everything=True)
        outcomes = [
            Outcome(name, bool(row[0]), str(row[1])) for name, row in answer["outcomes"].items()
        ]
        if answer.get("timed_out"):
            outcomes.append(Outcome("", False, f"the tests did not end within {task.seconds:g} s"))
        if not seen:
            outcomes.append(Outcome("", False, "there are no test files"))
        return outcomes


class _Warm:
    """One warm process that runs tests."""

    def __init__(self, *, isolated: bool) -> None:
        folder = owner.folder()
        for module in (runner_parent, runner):
            name = f"{module.__name__.rpartition('.')[2]}.py"
            (Path(folder) / name).write_bytes(grade.source(module))
        try:
            self._process = WarmProcess(_command(folder, isolated), folder)
        except OSError as error:
            raise MachineryError("engine", f"the test runner: {error.strerror}") from None

    def ask(self, plan: dict[str, Any], tree: Tree) -> dict[str, Any]:
        try:
            answer = self._process.ask(plan, tree)
        except (OSError, EOFError) as error:
            raise MachineryError("engine", f"the test runner is gone: {error}") from None
        if "error" in answer or "lost" in answer:
            raise MachineryError("engine", f"the test runner: {answer.get('error', 'lost')}")
        return answer

    def close(self) -> None:
        self._process.close()


def _command(folder: str, isolated: bool) -> list[str]:
    python = shutil.which("python3", path=os.defpath) or sys.executable
    names = ("runner_parent.py", "runner.py")
    if not isolated:
        return [python, "-I", "-S", "-B", *names, "serve"]
    bound = [part for name in names for part in ("--ro-bind", f"{folder}/{name}", f"/{name}")]
    inside = [python, "-I", "-S", "-B", *(f"/{name}" for name in names), "serve"]
    return [*_WRAP, *bound, "--chdir", "/jobs", *inside]


def _modules(tree: Tree) -> list[str]:
    return sorted(p for p, e in tree.items() if e.kind == "file" and grade.is_test_file(p))


_SHARED: dict[tuple[int, Kind], Bench] = {}
"""By process, too: one that was forked must not use the pipes of its parent."""
_LOCK = threading.Lock()


def shared_bench(kind: Kind) -> Bench:
    """The bench of this process."""
    key = (os.getpid(), kind)
    with _LOCK:
        if key not in _SHARED:
            _SHARED[key] = Bench(kind)
            atexit.register(_SHARED[key].close)
        return _SHARED[key]
