"""The grader's conformance suite: named cases that a user can run against a sandbox of their own.

tamper   a patch that cheats is not resolved, and the honest fix beside it is
tree     what the agent made arrives byte for byte where the tests run
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

from sao_gym.errors import MachineryError
from sao_gym.repo import tamper, tree_cases
from sao_gym.repo.carry import carry
from sao_gym.repo.grade import EMPTY, grade
from sao_gym.repo.task import RepoTask
from sao_gym.sandbox import Sandbox
from sao_gym.tree import Patch, apply


class Result(NamedTuple):
    """One case."""

    name: str
    ok: bool
    detail: str


def run_suite(sandbox: Sandbox, *, image: str = "base") -> list[Result]:
    """Every case, with both runners where both apply."""
    return list(results(sandbox, image=image))


def results(sandbox: Sandbox, *, image: str = "base") -> Iterator[Result]:
    """As `run_suite`, one after the other."""
    for name, case in cases(image).items():
        try:
            wrong = case(sandbox)
        except MachineryError as error:
            wrong = f"{error.kind}: {error}"
        yield Result(name, not wrong, wrong)


def cases(image: str = "base") -> dict[str, Callable[[Sandbox], str]]:
    """Name -> a function that runs the case and says what is wrong; "" if nothing."""
    found: dict[str, Callable[[Sandbox], str]] = {}
    runners: tuple[tamper.Runner, ...] = ("functions", "pytest")
    for runner in runners:
        task = _in(tamper.task(runner), image)
        assert task.gold is not None
        found[f"tamper/{runner}/honest fix"] = _judged(task, task.gold, True)
        found[f"tamper/{runner}/no fix"] = _judged(task, EMPTY, False)
        for case in tamper.CASES:
            if runner in case.runners:
                found[f"tamper/{runner}/{case.name}"] = _judged(task, case.patch, False)
        for name, patch in tree_cases.patches().items():
            if runner == "functions":
                found[f"tree/{name}"] = _same(_in(tree_cases.task(patch), image), patch)
    return found


def _in(task: RepoTask, image: str) -> RepoTask:
    return replace(task, image=image)


def _judged(task: RepoTask, patch: Patch, resolved: bool) -> Callable[[Sandbox], str]:
    def run(sandbox: Sandbox) -> str:
        verdict = grade(task, patch, sandbox=sandbox)
        if verdict.resolved == resolved:
            return ""
        return "resolved without a fix" if verdict.resolved else f"not resolved: {verdict.detail}"

    return run


def _same(task: RepoTask, patch: Patch) -> Callable[[Sandbox], str]:
    def run(sandbox: Sandbox) -> str:
        made, expected = carry(task, patch), apply(task.tree, patch)
        different = sorted(
            p
            for p in {*made.tree, *expected} - set(task.tests)
            if made.tree.get(p) != expected.get(p)
        )
        if different:
            return f"not carried as it is: {different[0]!r}"
        verdict = grade(task, patch, sandbox=sandbox)
        return "" if verdict.resolved else f"other bytes in the box: {verdict.detail}"

    return run
