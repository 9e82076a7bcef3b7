"""The task stream: which task the next rollout gets, the same for every arm of a study."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from sao_gym import rng
from sao_gym.types import Concept, Task


class TaskStream:
    """Issues each task to `group_size` rollouts; a lost member of a group is issued again.

    A task's seed and (through `concept_for`) its concept depend on its index alone, whatever was
    trained, dropped or failed before. All members of a group act under the concept of the first.
    """

    def __init__(self, *, seed: int, group_size: int, tasks: int | None = None) -> None:
        """`tasks`: how many there are; None: without end."""
        self._seed, self._group_size, self._limit = seed, group_size, tasks
        self._tasks = 0
        self._left = 0
        self._current: tuple[Task, Concept] | None = None
        self._again: deque[tuple[Task, Concept]] = deque()
        self._lost: Counter[int] = Counter()

    @property
    def exhausted(self) -> bool:
        """Nothing is left to issue, unless a member of a group is lost."""
        return self._tasks == self._limit and not self._left and not self._again

    def next(self, concept_for: Callable[[Task], Concept]) -> tuple[Task, Concept]:
        """The next task and its concept; not to be asked for when the stream is `exhausted`."""
        if self._again:
            return self._again.popleft()
        if self._current is None or self._left == 0:
            task = Task(index=self._tasks, seed=rng.integer(self._seed, "task", self._tasks))
            self._current = (task, concept_for(task))
            self._tasks += 1
            self._left = self._group_size
        self._left -= 1
        return self._current

    def lose(self, task: Task, concept: Concept) -> bool:
        """A rollout of `task` was dropped or failed: issue it again.

        False if the group is given up (it lost two members for each that it needs): the caller
        drops the others, which would wait for ever. A group of one is complete without it.
        """
        if self._group_size == 1:
            return True
        self._lost[task.index] += 1
        if self.given_up(task):
            self._again = deque(entry for entry in self._again if entry[0] != task)
            if self._current is not None and self._current[0] == task:
                self._left = 0
            return False
        self._again.append((task, concept))
        return True

    def given_up(self, task: Task) -> bool:
        """The group of `task` has lost too many: who finishes of it would wait for ever."""
        return self._lost[task.index] > 2 * self._group_size

    def state_dict(self) -> dict[str, Any]:
        return {
            "tasks": self._tasks,
            "left": self._left,
            "current": self._current,
            "again": list(self._again),
            "lost": dict(self._lost),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._tasks, self._left = state["tasks"], state["left"]
        self._current = state["current"]
        self._again = deque(state["again"])
        self._lost = Counter(state["lost"])
