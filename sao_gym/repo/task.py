"""A repository task and a verdict on a fix, as values.

RepoTask: the tree an agent is given, what is wrong with it, and how a fix is judged
Patch (sao_gym.tree): what the agent made of it
Verdict: which of the expected tests passed, in a fresh box
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from sao_gym.tree import Patch, Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class RepoTask:
    """One repository with one fault."""

    id: str
    instruction: str
    """What the agent is told."""
    tree: Tree
    """What the agent works on; no history, nothing that gives the fix away."""
    tests: Tree
    """Test files, `conftest.py` included, as the grader puts them in place. What the agent made of
    files at these paths is never carried over."""
    fail_to_pass: tuple[str, ...]
    """Names of tests that fail now and must pass."""
    pass_to_pass: tuple[str, ...] = ()
    """Names of tests that pass now and must go on to."""
    gold: Patch | None = None
    """A fix that is known to be right, for admission checks and warm starts."""
    runner: Literal["functions", "pytest", "swebench"] = "functions"
    """`functions`: module-level `test_*` functions, run by a small runner of ours with the standard
    library alone; `pytest`; or a SWE-bench instance, judged by its own harness's parser."""
    image: str = "base"
    root: str | None = None
    """Where the image expects the tree (SWE-bench: /testbed); what it has there, a history with
    later commits, say, is hidden from the agent. None: it may lie anywhere."""
    setup: str = ""
    """Shell commands that stand before each of the agent's, to find the image's own Python, say."""
    seconds: float = 30.0
    """Time limit of the test run."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """What an importer kept besides (the SWE-bench instance, Harbor's files)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a fresh box said of a fix. Machinery that breaks raises MachineryError instead."""

    resolved: bool
    passed: tuple[str, ...]
    """Of the expected tests."""
    failed: tuple[str, ...]
    """Of the expected tests: seen, and not passed."""
    missing: tuple[str, ...]
    """Of the expected tests: never seen. They count as failed."""
    detail: str = ""
    """One line: why, if it is not resolved."""

    @property
    def share(self) -> float:
        """Passed share of the expected tests (partial credit, where a task declares it)."""
        total = len(self.passed) + len(self.failed) + len(self.missing)
        return len(self.passed) / total if total else 0.0
