"""Groups: several rollouts of one task, each judged by what the others earned."""

from __future__ import annotations

from typing import NamedTuple, Self

from pydantic import BaseModel, ConfigDict, model_validator
from torch import Tensor

from sao_gym.learners.ops.advantages import group_normalised, per_token, uninformative_groups
from sao_gym.learners.ops.batch import Batch
from sao_gym.learners.ops.metrics import advantage_metrics
from sao_gym.learners.ops.optim import (
    BatchSize,
    Coefficient,
    GradientNorm,
    LearningRate,
    MicroBatchSize,
)


class GroupConfig(BaseModel):
    """What a scenario may set for any learner that waits for whole groups."""

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
    normalise_std: bool = True
    """Divide by the group's standard deviation; false as in Dr. GRPO."""
    micro_batch_size: MicroBatchSize = None
    """Rollouts per forward-backward pass; changes memory, not the result."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.group_size < 2:
            raise ValueError("group_size must be at least 2: a group of one has no baseline")
        if self.batch_size % self.group_size:
            raise ValueError(
                f"batch_size {self.batch_size} is not a multiple of group_size {self.group_size}"
            )
        return self


class GroupAdvantages(NamedTuple):
    tokens: Tensor
    """(N, A): the trajectory's advantage on each of its action tokens."""
    metrics: dict[str, float]


def group_advantages(rows: Batch, *, normalise_std: bool) -> GroupAdvantages:
    """Reward minus the group's mean, over its standard deviation if asked for."""
    whole = group_normalised(rows.totals, rows.groups, scale=normalise_std)
    advantages = per_token(whole, rows.mask)
    metrics = advantage_metrics(advantages, rows.mask) | {
        "reward_mean": float(rows.totals.mean()),
        "zero_advantage_groups": float(uninformative_groups(rows.totals, rows.groups)),
    }
    return GroupAdvantages(advantages, metrics)
