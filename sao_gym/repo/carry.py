"""From the agent's tree to the tree that is graded: source files as bytes, everything else ours.

    the task's pristine tree  +  the agent's source files  +  the task's test files, on top

Never taken from the agent, neither added, changed nor removed:

* paths of the task's `tests`, and what would stand in their way (a file or link above them);
* names in `HELD`: test files, `conftest.py`, configuration that pytest or tox reads, files that the
  interpreter runs by itself (`sitecustomize.py`, `usercustomize.py`, `*.pth`), compiled files;
* everything in a folder named in `HELD_FOLDERS`: test folders, caches of compiled files, metadata
  with entry points, git's own files;
* new modules at the root or in `src` that would stand before the standard library or pytest;
* links that lead out of the tree, or to a path that is held.

A task may declare exceptions: `extra["carried"]` and `extra["held"]` are lists of patterns, matched
against the whole path and the name; `carried` wins over all but the task's own test files. The
result is a value, so nothing can change between the check and the use.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import NamedTuple

from sao_gym.repo.task import RepoTask
from sao_gym.tree import Entry, Patch, Tree, apply, between

HELD = (
    *("test_*.py", "*_test.py", "conftest.py"),
    *("pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini"),
    *("setup.cfg", "pyproject.toml"),
    *("sitecustomize.py", "usercustomize.py", "*.pth", "*.pyc", "*.pyo"),
)
"""Patterns of file names."""

HELD_FOLDERS = ("test", "tests", "__pycache__", "*.egg-info", "*.dist-info", ".git")
"""Patterns of folder names, at any depth. An entry of that name itself is held too."""

_TRUSTED_MODULES = frozenset(sys.stdlib_module_names) | {"pytest", "_pytest", "pluggy"}
_LINKS = 40
"""So many links are followed, as the kernel does."""


class Carried(NamedTuple):
    """What is graded."""

    tree: dict[str, Entry]
    dropped: tuple[str, ...]
    """Paths that the agent had changed and that were left out, sorted."""


def carry(task: RepoTask, fix: Tree | Patch) -> Carried:
    """The tree to grade, from what the agent made of the task's tree."""
    patch = fix if isinstance(fix, Patch) else between(task.tree, fix)
    held = _Held(task)
    changed = {path: e for path, e in patch.written.items() if task.tree.get(path) != e}
    written = {path: e for path, e in changed.items() if not held(path)}
    removed = tuple(path for path in patch.removed if path in task.tree and not held(path))
    made = apply(task.tree, Patch(written, removed))
    for path in [p for p, e in written.items() if e.kind == "link" and _astray(made, p, held)]:
        _undo(made, task.tree, path)
    tree = _unobstructed(made, task.tests, written)
    wanted = set(changed) | {path for path in patch.removed if path in task.tree}
    after = apply(task.tree, patch)
    return Carried(tree, tuple(sorted(p for p in wanted if tree.get(p) != after.get(p))))


def is_held(task: RepoTask, path: str) -> bool:
    """Whether what an agent makes of `path` is never graded."""
    return _Held(task)(path)


class _Held:
    """Which paths belong to the grader."""

    def __init__(self, task: RepoTask) -> None:
        self.tests = frozenset(task.tests)
        self.above = {above for path in task.tests for above in _above(path)}
        self.more = tuple(map(str, task.extra.get("held", ())))
        self.freed = tuple(map(str, task.extra.get("carried", ())))
        self.pristine = _modules(task.tree)

    def __call__(self, path: str) -> bool:
        if path in self.tests or path in self.above:
            return True
        *folders, name = path.split("/")
        if not {"", ".", ".."}.isdisjoint((*folders, name)):
            return True  # no path below the root
        if _matches(self.freed, path, name):
            return False
        return (
            _matches(HELD + self.more, path, name)
            or any(fnmatchcase(part, p) for part in (*folders, name) for p in HELD_FOLDERS)
            or any(above in self.tests for above in _above(path))
            or (_module(path) in _TRUSTED_MODULES and _module(path) not in self.pristine)
        )


def _matches(patterns: tuple[str, ...], path: str, name: str) -> bool:
    return any(fnmatchcase(name, p) or fnmatchcase(path, p) for p in patterns)


def _above(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:n]) for n in range(1, len(parts))]


def _module(path: str) -> str:
    """The name under which a path could be imported as a top-level module, if any; else ""."""
    first, below, _ = path.removeprefix("src/").partition("/")
    return first.split(".")[0] if below or first.endswith((".py", ".so")) else ""


def _modules(tree: Tree) -> frozenset[str]:
    return frozenset(_module(path) for path in tree)


def _astray(tree: Mapping[str, Entry], path: str, held: _Held) -> bool:
    """Whether the link at `path` leads out of the tree, in a circle, or to a held path."""
    todo: list[str] = path.split("/")
    at: list[str] = []
    for _ in range(_LINKS * 64):
        if not todo:
            return bool(at) and held("/".join(at))
        part = todo.pop(0)
        if part in ("", "."):
            continue
        if part == "..":
            if not at:
                return True
            at.pop()
            continue
        at.append(part)
        entry = tree.get("/".join(at))
        if entry is not None and entry.kind == "link":
            target = os.fsdecode(entry.data)
            if target.startswith("/") or not target:
                return True
            at.pop()
            todo = target.split("/") + todo
    return True


def _undo(made: dict[str, Entry], pristine: Tree, path: str) -> None:
    if path in pristine:
        made[path] = pristine[path]
    else:
        del made[path]


def _unobstructed(made: dict[str, Entry], tests: Tree, written: Tree) -> dict[str, Entry]:
    """`made` with `tests` on top, and no entry below one that is no folder.

    The test files come first, then what is pristine, then what the agent wrote.
    """
    tree = dict(made) | dict(tests)
    rank = {path: (path not in tests) + (path not in tests and path in written) for path in tree}
    for path in sorted(tree):
        for above in _above(path):
            entry = tree.get(above)
            if entry is None:
                continue
            if entry.kind == "dir" or rank[above] > rank[path]:
                del tree[above]
            else:
                tree.pop(path, None)
    return tree
