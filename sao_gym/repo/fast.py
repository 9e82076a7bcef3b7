"""Grading inside a learning loop: many small tasks, a few milliseconds each.

The rules are those of the sealed grader (carried source files only, every expected test seen), the
runner is the same, `runner_parent.py` with `runner_functions.py`, and forks a process for each
test; only the parent has the pipe that answers go through.

It is meant for the small procedural family. What differs from `grade`: one box serves many gradings
(`warm.py`), so code that leaves files or takes memory elsewhere in it could disturb or help a later
one. `regrade` judges the same patches again in fresh boxes.
"""

from __future__ import annotations

from types import TracebackType

from sao_gym.repo import runner_functions
from sao_gym.repo.carry import carry
from sao_gym.repo.grade import plan_of, verdict
from sao_gym.repo.task import RepoTask, Verdict
from sao_gym.repo.warm import Warm
from sao_gym.sandbox import Sandbox
from sao_gym.tree import Patch, Tree


class FastGrader:
    """Grades tasks of the runner `functions` in warm boxes; safe to call from threads."""

    def __init__(self, sandbox: Sandbox, *, workers: int = 1) -> None:
        """The sandbox stays its owner's to close."""
        self._warm = Warm(sandbox, runner_functions, workers=workers)

    def grade(self, task: RepoTask, fix: Tree | Patch) -> Verdict:
        """As `sao_gym.repo.grade.grade`.

        Raises:
            MachineryError: no box can be had, or its interpreter does not answer at all.
        """
        if task.runner != "functions":
            raise ValueError(f"{task.id}: runner {task.runner!r}; the fast grader runs functions")
        return verdict(task, self._warm.ask(plan_of(task), carry(task, fix).tree))

    def close(self) -> None:
        """End the interpreters. Waits for gradings that are under way; twice is harmless."""
        self._warm.close()

    def __enter__(self) -> FastGrader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
