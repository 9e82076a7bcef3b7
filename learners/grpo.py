"""GRPO (arXiv 2402.03300) with clip-higher (DAPO, arXiv 2503.14476): the group is the baseline.

    G rollouts of a task  ->  A = (R - mean of the group) / std of the group  ->  clipped surrogate

The ratio is taken to the sampler's recorded log-probs, as for every learner here.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

from sao_gym.learners.ops.advantages import group_normalised, per_token, uninformative_groups
from sao_gym.learners.ops.batch import collate
from sao_gym.learners.ops.losses import clip_loss
from sao_gym.learners.ops.metrics import advantage_metrics
from sao_gym.learners.ops.optim import (
    BatchSize,
    Coefficient,
    GradientNorm,
    LearningRate,
    MicroBatchSize,
    WidthAbove,
    WidthBelow,
)
from sao_gym.learners.ops.policy import Policy
from sao_gym.learners.ops.select import complete_groups
from sao_gym.learners.ops.selftest import check_on_policy
from sao_gym.protocols import LearnerSetup
from sao_gym.types import Trajectory, Update


class Grpo:
    """Group-relative policy optimisation: waits for whole groups, needs no critic."""

    class Config(BaseModel):
        """What a scenario may set in `learner.params`."""

        model_config = ConfigDict(extra="forbid", frozen=True)

        group_size: BatchSize = 8
        """Rollouts per task."""
        batch_size: BatchSize = 32
        """Rollouts per update; a multiple of `group_size`."""
        learning_rate: LearningRate = 8e-4
        """Of the policy."""
        max_grad_norm: GradientNorm = 1.0
        """Gradient clip."""
        kl: Coefficient = 0.0
        """Weight of the KL to the policy as it was at the start."""
        eps_low: WidthBelow = 0.2
        """Width of the clip below ratio 1."""
        eps_high: WidthAbove = 0.28
        """Width of the clip above ratio 1."""
        normalise_std: bool = True
        """Divide by the group's standard deviation; false as in Dr. GRPO."""
        micro_batch_size: MicroBatchSize = None
        """Rollouts per forward-backward pass; changes memory, not the result."""

        @model_validator(mode="after")
        def _consistent(self) -> Grpo.Config:
            if self.group_size < 2:
                raise ValueError("group_size must be at least 2: a group of one has no baseline")
            if self.batch_size % self.group_size:
                raise ValueError(
                    f"batch_size {self.batch_size} is not a multiple of "
                    f"group_size {self.group_size}"
                )
            return self

    def __init__(self, setup: LearnerSetup, config: Config) -> None:
        self.config = config
        self.group_size = config.group_size
        self.batch_size = config.batch_size
        self._pad_id = setup.pad_id
        self.policy = Policy(
            setup.model,
            learning_rate=config.learning_rate,
            max_grad_norm=config.max_grad_norm,
            kl=config.kl,
            micro_batch_size=config.micro_batch_size,
        )
        self._objective = partial(clip_loss, eps_low=config.eps_low, eps_high=config.eps_high)
        self.relative_cost = self.policy.relative_cost

    def select(self, waiting: Sequence[Trajectory]) -> list[int]:
        return complete_groups(waiting, self.batch_size, self.group_size)

    def update(self, batch: Sequence[Trajectory]) -> Update:
        rows = collate(batch, self._pad_id, self.policy.device)
        advantages = per_token(
            group_normalised(rows.totals, rows.groups, scale=self.config.normalise_std), rows.mask
        )
        moved, metrics = self.policy.improve(rows, advantages, self._objective)
        metrics |= advantage_metrics(advantages, rows.mask) | {
            "reward_mean": float(rows.totals.mean()),
            "zero_advantage_groups": float(uninformative_groups(rows.totals, rows.groups)),
            "policy_moved": float(moved),
        }
        return Update(weights=self.policy.weights() if moved else None, metrics=metrics)

    def self_test(self, rollouts: Sequence[Trajectory]) -> None:
        check_on_policy(self.policy.model, rollouts, pad_id=self._pad_id)

    def state_dict(self) -> dict[str, Any]:
        return {"policy": self.policy.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.policy.load_state_dict(state["policy"])
