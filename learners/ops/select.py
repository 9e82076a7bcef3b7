"""Which waiting trajectories a learner trains on next; `waiting` is in order of completion."""

from __future__ import annotations

from collections.abc import Sequence

from sao_gym.types import Trajectory


def oldest(waiting: Sequence[Trajectory], batch_size: int) -> list[int]:
    """Rollout ids of the oldest `batch_size`, or nothing while there are fewer."""
    if len(waiting) < batch_size:
        return []
    return [trajectory.rollout for trajectory in waiting[:batch_size]]


def complete_groups(waiting: Sequence[Trajectory], batch_size: int, group_size: int) -> list[int]:
    """Rollout ids of the groups that were complete first, `batch_size` in all, or nothing.

    A group is all rollouts of one task; the ids keep the order of `waiting`.
    """
    members: dict[int, list[int]] = {}
    complete: list[list[int]] = []
    for trajectory in waiting:
        group = members.setdefault(trajectory.task.index, [])
        group.append(trajectory.rollout)
        if len(group) == group_size:
            complete.append(group)
            del members[trajectory.task.index]
    wanted = batch_size // group_size
    if len(complete) < wanted:
        return []
    chosen = {rollout for group in complete[:wanted] for rollout in group}
    return [trajectory.rollout for trajectory in waiting if trajectory.rollout in chosen]
