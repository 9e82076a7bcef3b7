"""A shell on a task's tree: one box an episode, one block of commands a call."""

from __future__ import annotations

from sao_gym.envs.repo_fix.normalise import normalise
from sao_gym.repo.task import RepoTask
from sao_gym.sandbox import Box
from sao_gym.tree import Patch, between

_ENVIRONMENT = {"PYTHONHASHSEED": "0", "COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}


class Terminal:
    """Owns its box until `close`."""

    def __init__(self, box: Box, task: RepoTask, *, seconds: float) -> None:
        """Put the task's tree into an empty box; `seconds`: time limit of a call.

        Raises:
            MachineryError: the box broke.
        """
        self._box, self._task, self._seconds = box, task, seconds
        box.put(task.tree)

    def run(self, commands: str) -> str:
        """What commands printed, made reproducible, and how they ended if not well.

        Raises:
            MachineryError: the box broke.
        """
        ran = self._box.run(
            ["bash", "-c", commands], seconds=self._seconds, environment=_ENVIRONMENT
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
            MachineryError: the box broke, or holds too much.
        """
        return between(self._task.tree, self._box.get())

    def close(self) -> None:
        self._box.close()
