"""A shell on a task's tree: one box an episode, one block of commands a call.

The tree is a repository of one commit: whatever came before or after it is not there.
"""

from __future__ import annotations

from sao_gym.envs.repo_fix.normalise import normalise
from sao_gym.envs.repo_fix.tools import ToolError
from sao_gym.errors import MachineryError
from sao_gym.repo.task import RepoTask
from sao_gym.sandbox import WORK, Box
from sao_gym.tree import Patch, between

# One commit, the same every time; an image without git goes without.
_HISTORY = """
command -v git >/dev/null || exit 0
git init -q . && git config user.name agent && git config user.email agent@localhost
export GIT_AUTHOR_DATE="2000-01-01T00:00:00Z" GIT_COMMITTER_DATE="2000-01-01T00:00:00Z"
git add -A -f . && git commit -q --no-verify --allow-empty -m "The task"
"""
_ENVIRONMENT = {"PYTHONHASHSEED": "0", "COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}
_SECONDS = 120.0  # for the commit
_ADDED = 64 << 20  # bytes that an agent may leave besides


class Terminal:
    """Owns its box until `close`."""

    def __init__(self, box: Box, task: RepoTask, *, seconds: float) -> None:
        """Put the task's tree into an empty box; `seconds`: time limit of a call.

        Raises:
            MachineryError: the box broke.
        """
        self._box, self._task, self._seconds = box, task, seconds
        self._root = task.root or WORK
        try:
            box.put(task.tree, at=self._root)
            made = box.run(["sh", "-c", _HISTORY], seconds=_SECONDS, cwd=self._root)
            if made.code:
                said = made.output.decode("utf-8", "replace").strip().splitlines()[-1:]
                raise MachineryError("image", f"{task.id}: no repository: {''.join(said)}")
        except BaseException:
            box.close()
            raise

    def run(self, commands: str) -> str:
        """What commands printed, made reproducible, and how they ended if not well.

        Raises:
            MachineryError: the box broke.
        """
        before = f"{self._task.setup}\n" if self._task.setup else ""
        ran = self._box.run(
            ["bash", "-c", before + commands],
            seconds=self._seconds,
            cwd=self._root,
            environment=_ENVIRONMENT,
        )
        text = normalise(ran.output.decode("utf-8", "backslashreplace"))
        if text and not text.endswith("\n"):
            text += "\n"
        if ran.timed_out:
            return f"{text}[stopped after {self._seconds:g} s]\n"
        return f"{text}[exit code {ran.code}]\n" if ran.code or not text else text

    def patch(self) -> Patch:
        """What has become of the tree.

        Raises:
            ToolError: it holds far more than it did.
            MachineryError: the box broke.
        """
        given = sum(len(entry.data) for entry in self._task.tree.values())
        try:
            return between(self._task.tree, self._box.get(self._root, limit=2 * given + _ADDED))
        except MachineryError as error:
            if error.kind != "too_large":
                raise
        raise ToolError("the repository holds too much; remove what it does not need")

    def close(self) -> None:
        self._box.close()
