"""Where tests run and fixes are graded: boxes that all environments of a process share.

                       run (what the agent sees)     grade (what is rewarded)
    warm               forked in a box that waits    `FastGrader`, forked in a box that waits
    fresh              a box of the episode's own    the sealed grader, a fresh box each time

Tasks with another test runner than `functions` always get fresh boxes. A box is a Docker container
if an engine answers, else bubblewrap's, else a plain process, or what was asked for. Nothing is
started before it is needed; all ends with the process.
"""

from __future__ import annotations

import atexit
import os
import threading
from dataclasses import replace
from typing import Literal, NamedTuple, TypeAlias

from sao_gym.envs.repo_fix import runner
from sao_gym.repo import grade
from sao_gym.repo.fast import FastGrader
from sao_gym.repo.task import RepoTask, Verdict
from sao_gym.repo.warm import Warm
from sao_gym.sandbox import Box, BoxSpec, Sandbox
from sao_gym.sandboxes import Kind, open_sandbox
from sao_gym.sandboxes.kept import KeptSandbox
from sao_gym.sandboxes.pool import WarmPool
from sao_gym.tree import Patch, Tree

Boxes: TypeAlias = Literal["warm", "fresh"]

_WORKERS = 2


class Outcome(NamedTuple):
    """How one test ended, as the agent sees it."""

    test: str
    """`PATH::FUNCTION`, or a path alone if the file cannot be run."""
    passed: bool
    why: str


class Bench:
    """Runs and grades; safe to call from threads.

    Raises MachineryError if a box cannot be had or breaks, and InputError if sandboxes of the kind
    that was asked for do not work here.
    """

    def __init__(self, kind: Kind, boxes: Boxes = "warm") -> None:
        self._kind, self._boxes = kind, boxes
        self._lock = threading.RLock()
        self._sandbox: Sandbox | None = None
        self._pool: WarmPool | None = None
        self._runs: Warm | None = None
        self._grades: FastGrader | None = None

    @property
    def isolation(self) -> str:
        """One line for the user: where tests run."""
        return self._opened().isolation

    def tests(self, task: RepoTask) -> Tests:
        """Where an episode runs its tests."""
        if task.runner != "functions":
            return Tests(task, kept=KeptSandbox(self._pooled()))
        if not self._warm(task):
            return Tests(task, own=Warm(self._pooled(), runner))
        with self._lock:
            if self._runs is None:
                self._runs = Warm(self._opened(), runner, workers=_WORKERS)
            return Tests(task, shared=self._runs)

    def grade(self, task: RepoTask, patch: Patch) -> Verdict:
        """Judge a fix."""
        if not self._warm(task):
            return grade.grade(task, patch, sandbox=self._pooled())
        with self._lock:
            if self._grades is None:
                self._grades = FastGrader(self._opened(), workers=_WORKERS)
            grader = self._grades
        return grader.grade(task, patch)

    def box(self, task: RepoTask) -> Box:
        """A box for one episode; those of the base image are started ahead."""
        return self._pooled().start(grade.box_of(task))

    def close(self) -> None:
        """End what was started; what is needed later is started again."""
        with self._lock:
            runs, self._runs = self._runs, None
            grades, self._grades = self._grades, None
            pool, self._pool = self._pool, None
            sandbox, self._sandbox = self._sandbox, None
        for part in (runs, grades, pool, sandbox):
            if part is not None:
                part.close()

    def _warm(self, task: RepoTask) -> bool:
        return self._boxes == "warm" and task.runner == "functions"

    def _opened(self) -> Sandbox:
        with self._lock:
            if self._sandbox is None:
                self._sandbox = open_sandbox(self._kind)
            return self._sandbox

    def _pooled(self) -> WarmPool:
        with self._lock:
            if self._pool is None:
                self._pool = WarmPool(self._opened(), BoxSpec(), _WORKERS)
            return self._pool


class Tests:
    """The test runs of one episode."""

    def __init__(
        self,
        task: RepoTask,
        *,
        shared: Warm | None = None,
        own: Warm | None = None,
        kept: KeptSandbox | None = None,
    ) -> None:
        """One of the three: warm boxes of all, a warm box or a plain one of this episode alone."""
        self._task, self._warm, self._kept = task, shared or own, kept
        self._mine = own or kept

    def run(self, tree: Tree) -> list[Outcome]:
        """Run the tests that lie in `tree`.

        Raises:
            MachineryError: a box cannot be had or breaks, and the tests are not to blame.
        """
        seen = {path: entry for path, entry in tree.items() if grade.is_test_file(path)}
        if self._kept is not None:
            mine = replace(self._task, tests=seen)
            answer = grade.run_tests(mine, tree, sandbox=self._kept, everything=True)
            rows = [(name, passed, why) for name, (passed, why) in answer["outcomes"].items()]
        else:
            assert self._warm is not None
            modules = sorted(path for path, entry in seen.items() if entry.kind == "file")
            plan = {"modules": modules, "seconds": self._task.seconds}
            answer = self._warm.ask(plan, tree)
            rows = answer.get("outcomes", [])
        outcomes = [Outcome(name, bool(passed), str(why)) for name, passed, why in rows]
        if answer.get("timed_out"):
            outcomes.append(
                Outcome("", False, f"the tests did not end within {self._task.seconds:g} s")
            )
        elif not outcomes:
            outcomes.append(Outcome("", False, str(answer.get("why") or "there are no tests")))
        return outcomes

    def close(self) -> None:
        """End what belongs to the episode alone."""
        if self._mine is not None:
            self._mine.close()


_SHARED: dict[tuple[int, Kind, Boxes], Bench] = {}
"""By process, too: one that was forked must not use the pipes of its parent."""
_LOCK = threading.Lock()


def shared_bench(kind: Kind, boxes: Boxes = "warm") -> Bench:
    """The bench of this process."""
    key = (os.getpid(), kind, boxes)
    with _LOCK:
        if key not in _SHARED:
            _SHARED[key] = Bench(kind, boxes)
            atexit.register(_SHARED[key].close)
        return _SHARED[key]
