"""Finished trajectories that wait for the learner, in order of completion."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sao_gym.types import Trajectory


def lags(batch: Sequence[Trajectory], version: int) -> tuple[float, int]:
    """Of a batch at learner version `version`: mean over its tokens, and largest version lag."""
    total = sum(trajectory.action_tokens for trajectory in batch)
    weighted = [t.mean_lag(version) * t.action_tokens for t in batch]
    return sum(weighted) / total, max(version - t.oldest_version for t in batch)


class Waiting:
    """A queue that remembers whether there is anything new to look at."""

    def __init__(self) -> None:
        self._queue: list[Trajectory] = []
        self.fresh = False
        """Whether it changed since a batch was last looked for."""
        self._aged = False
        """Whether something may have become stale since that was last looked at."""

    def __iter__(self) -> Iterator[Trajectory]:
        return iter(self._queue)

    def add(self, trajectory: Trajectory) -> None:
        self._queue.append(trajectory)
        self.learner_moved()

    def learner_moved(self) -> None:
        """The learner has another version or is idle again: everything is to be looked at."""
        self.fresh = self._aged = True

    def look(self) -> Sequence[Trajectory]:
        """All of them, for a learner to choose from; not `fresh` any more."""
        self.fresh = False
        return self._queue

    def take(self, chosen: Sequence[int]) -> tuple[Trajectory, ...]:
        """Remove these rollouts; in the order asked for."""
        by_rollout = {trajectory.rollout: trajectory for trajectory in self._queue}
        taken = tuple(by_rollout.pop(number) for number in chosen)
        self._queue = list(by_rollout.values())
        return taken

    def take_older_than(self, version: int) -> list[Trajectory]:
        """Remove those with a token sampled before policy `version`."""
        if not self._aged:
            return []
        self._aged = False
        old = [t for t in self._queue if t.oldest_version < version]
        if old:
            self._queue = [t for t in self._queue if t.oldest_version >= version]
        return old

    def take_group(self, task: int) -> list[Trajectory]:
        """Remove all rollouts of a task."""
        members = [t for t in self._queue if t.task.index == task]
        self._queue = [t for t in self._queue if t.task.index != task]
        return members

    def state_dict(self) -> dict[str, Any]:
        return {"queue": list(self._queue), "fresh": self.fresh, "aged": self._aged}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._queue = list(state["queue"])
        self.fresh, self._aged = state["fresh"], state["aged"]
