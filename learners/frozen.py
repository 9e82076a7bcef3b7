"""Control: consumes batches and never moves. What any learner does beyond it is learning.

The same as a learner with learning rate 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from sao_gym.learners.ops.optim import BatchSize
from sao_gym.learners.ops.select import oldest
from sao_gym.protocols import LearnerSetup
from sao_gym.types import Trajectory, Update


class Frozen:
    """Never changes the policy."""

    class Config(BaseModel):
        """What a scenario may set in `learner.params`."""

        model_config = ConfigDict(extra="forbid", frozen=True)

        batch_size: BatchSize = 32
        """Rollouts consumed per update."""
        relative_cost: float = Field(default=1.0, ge=0)
        """Virtual cost of an update, to keep pace with the learner it is compared to."""

    group_size = 1

    def __init__(self, setup: LearnerSetup, config: Config) -> None:
        self.batch_size = config.batch_size
        self.relative_cost = config.relative_cost

    def select(self, waiting: Sequence[Trajectory]) -> list[int]:
        return oldest(waiting, self.batch_size)

    def update(self, batch: Sequence[Trajectory]) -> Update:
        rewards = [trajectory.reward for trajectory in batch]
        metrics = {"reward_mean": sum(rewards) / len(rewards), "policy_moved": 0.0}
        return Update(weights=None, metrics=metrics)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing is learned, so nothing is restored."""
