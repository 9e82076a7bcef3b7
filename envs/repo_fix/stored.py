"""Tasks from a folder (`tasks import`), and their reference solution: the recorded fix, written."""

from __future__ import annotations

import base64
from functools import lru_cache
from pathlib import Path
from shlex import quote

from sao_gym.envs.repo_fix.tools import ToolError, lines_of
from sao_gym.errors import InputError
from sao_gym.repo.store import load_admission, load_task, task_folders
from sao_gym.repo.task import RepoTask
from sao_gym.tree import Tree


@lru_cache(maxsize=8)
def stored(directory: str) -> tuple[RepoTask, ...]:
    """The tasks below a folder that were not found unfit, by id.

    Raises:
        InputError: there are none, or one is damaged.
    """
    tasks = []
    for folder in task_folders(Path(directory)):
        found = load_admission(folder)
        if found is None or found.admitted:
            tasks.append(load_task(folder))
    if not tasks:
        raise InputError(f"repo_fix: tasks: {directory} holds no admitted tasks")
    return tuple(sorted(tasks, key=lambda task: task.id))


def next_edit(task: RepoTask, tree: Tree, tool: str) -> str | None:
    """The next edit that writes the recorded fix; None once nothing is left that an edit can do."""
    if task.gold is None:
        return None
    for path, entry in sorted(task.gold.written.items()):
        try:
            wanted = entry.data.decode().removesuffix("\n")
            have = "".join(lines_of(tree, path)) if path in tree else None
        except (UnicodeDecodeError, ToolError):
            continue
        if have is None:
            return f"{tool} {path} 1 {wanted}"
        if have.removesuffix("\n") != wanted:
            return f"{tool} {path} 1-{max(1, len(have.splitlines()))} {wanted}"
    return None


def mending(task: RepoTask) -> str:
    """Commands that write the recorded fix."""
    if task.gold is None:
        return "true"
    commands = [f"rm -f {quote(path)}" for path in task.gold.removed]
    for path, entry in sorted(task.gold.written.items()):
        data = base64.b64encode(entry.data).decode()
        folder = path.rpartition("/")[0] or "."
        commands.append(f"mkdir -p {quote(folder)}; echo {data} | base64 -d > {quote(path)}")
    return "\n".join(commands)
