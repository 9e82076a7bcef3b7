"""Which tasks may be used: gold resolved k times of k, the empty patch 0 times of k."""

from __future__ import annotations

from dataclasses import dataclass

from sao_gym.errors import MachineryError
from sao_gym.repo.grade import EMPTY, grade
from sao_gym.repo.task import RepoTask, Verdict
from sao_gym.sandbox import Sandbox


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """What the checks of one task said."""

    task: str
    admitted: bool
    why: str = ""
    """One line, if it is quarantined."""
    gold: tuple[bool, ...] = ()
    """Of each run with the gold patch, whether it was resolved."""
    empty: tuple[bool, ...] = ()
    """The same of each run without a fix."""

    @property
    def flake_rate(self) -> float:
        """The share of runs of one tree that said other than most runs of it, at its worst."""
        return max(map(_minority, (self.gold, self.empty)))


def check_task(task: RepoTask, sandbox: Sandbox, times: int = 3) -> Admission:
    """Grade gold and the empty patch `times` times each. Broken machinery quarantines too."""
    if task.gold is None:
        return Admission(task=task.id, admitted=False, why="it has no gold patch")
    gold: list[Verdict] = []
    empty: list[Verdict] = []
    try:
        for _ in range(times):
            gold.append(grade(task, task.gold, sandbox=sandbox))
            empty.append(grade(task, EMPTY, sandbox=sandbox))
    except MachineryError as error:
        return Admission(task=task.id, admitted=False, why=f"{error.kind}: {error}")
    why = _why(gold, empty)
    return Admission(
        task=task.id,
        admitted=not why,
        why=why,
        gold=tuple(v.resolved for v in gold),
        empty=tuple(v.resolved for v in empty),
    )


def _why(gold: list[Verdict], empty: list[Verdict]) -> str:
    bad = [v for v in gold if not v.resolved]
    if bad:
        return f"gold resolved {len(gold) - len(bad)} of {len(gold)} times: {bad[0].detail}"
    resolved = sum(v.resolved for v in empty)
    if resolved:
        return f"resolved {resolved} of {len(empty)} times without a fix"
    return ""


def _minority(said: tuple[bool, ...]) -> float:
    return min(said.count(True), said.count(False)) / len(said) if said else 0.0
