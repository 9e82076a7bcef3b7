"""Supervised learning: raise the log-probability of every action token of the batch.

It ignores rewards. A warm start feeds it demonstrations; fed rollouts it imitates itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict

from sao_gym.learners.ops.batch import collate
from sao_gym.learners.ops.losses import imitation_loss
from sao_gym.learners.ops.optim import BatchSize, GradientNorm, LearningRate, MicroBatchSize
from sao_gym.learners.ops.policy import Policy
from sao_gym.learners.ops.select import oldest
from sao_gym.learners.ops.selftest import check_on_policy
from sao_gym.protocols import LearnerSetup
from sao_gym.types import Trajectory, Update


class Imitation:
    """Maximum likelihood on whatever it is given."""

    class Config(BaseModel):
        model_config = ConfigDict(extra="forbid", frozen=True)

        batch_size: BatchSize = 32
        """Trajectories per update."""
        learning_rate: LearningRate = 1e-3
        """Of the policy."""
        max_grad_norm: GradientNorm = 1.0
        """Gradient clip."""
        micro_batch_size: MicroBatchSize = None
        """Trajectories per forward-backward pass; changes memory, not the result."""

    group_size = 1
    relative_cost = 1.0

    def __init__(self, setup: LearnerSetup, config: Config) -> None:
        self.config = config
        self.batch_size = config.batch_size
        self._pad_id = setup.pad_id
        self.policy = Policy(
            setup.model,
            learning_rate=config.learning_rate,
            max_grad_norm=config.max_grad_norm,
            kl=0.0,
            micro_batch_size=config.micro_batch_size,
        )

    def select(self, waiting: Sequence[Trajectory]) -> list[int]:
        return oldest(waiting, self.batch_size)

    def update(self, batch: Sequence[Trajectory]) -> Update:
        rows = collate(batch, self._pad_id, self.policy.device)
        loss, step = self.policy.imitate(rows, imitation_loss)
        metrics = {
            "policy_loss": loss,
            "grad_norm": step.norm,
            "reward_mean": float(rows.totals.mean()),
            "policy_moved": float(step.moved),
            "skipped_steps": float(step.skipped),
        }
        return Update(weights=self.policy.weights() if step.moved else None, metrics=metrics)

    def self_test(self, rollouts: Sequence[Trajectory]) -> None:
        check_on_policy(self.policy.model, rollouts, pad_id=self._pad_id)

    def state_dict(self) -> dict[str, Any]:
        return {"policy": self.policy.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.policy.load_state_dict(state["policy"])
