"""REINFORCE on single rollouts: the batch's mean reward is the baseline, no critic, masked ratios.

    A = R - mean R of the batch  ->  -f(r) A log pi

With `trust_region: sequence` whole rollouts are kept or rejected by their mean ratio.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from sao_gym.learners.ops.advantages import centred, per_token, whiten
from sao_gym.learners.ops.batch import collate
from sao_gym.learners.ops.losses import dis_loss
from sao_gym.learners.ops.metrics import advantage_metrics
from sao_gym.learners.ops.optim import (
    Coefficient,
    GradientNorm,
    LearningRate,
    MicroBatchSize,
    WidthAbove,
    WidthBelow,
)
from sao_gym.learners.ops.policy import Policy
from sao_gym.learners.ops.select import oldest
from sao_gym.learners.ops.selftest import check_on_policy
from sao_gym.protocols import LearnerSetup
from sao_gym.types import Trajectory, Update


class Reinforce:
    """Single-rollout REINFORCE with a batch-mean baseline and a trust region."""

    class Config(BaseModel):
        """What a scenario may set in `learner.params`."""

        model_config = ConfigDict(extra="forbid", frozen=True)

        batch_size: int = Field(default=32, ge=2)
        """Rollouts, each of its own task, per update; at least 2, or there is no baseline."""
        learning_rate: LearningRate = 8e-4
        """Of the policy."""
        max_grad_norm: GradientNorm = 1.0
        """Gradient clip."""
        kl: Coefficient = 0.0
        """Weight of the KL to the policy as it was at the start."""
        eps_low: WidthBelow = 0.3
        """Width of the accepted band below ratio 1."""
        eps_high: WidthAbove = 5.0
        """Width of the accepted band above ratio 1."""
        trust_region: Literal["token", "sequence"] = "token"
        """What the band judges: each token's ratio, or a rollout's geometric mean ratio."""
        leave_one_out: bool = False
        """Baseline of a rollout from the others alone (RLOO)."""
        whiten: bool = False
        """Advantages to zero mean and unit variance over the batch's action tokens."""
        micro_batch_size: MicroBatchSize = None
        """Rollouts per forward-backward pass; changes memory, not the result."""

    group_size = 1

    def __init__(self, setup: LearnerSetup, config: Config) -> None:
        self.config = config
        self.batch_size = config.batch_size
        self._pad_id = setup.pad_id
        self.policy = Policy(
            setup.model,
            learning_rate=config.learning_rate,
            max_grad_norm=config.max_grad_norm,
            kl=config.kl,
            micro_batch_size=config.micro_batch_size,
        )
        self._objective = partial(
            dis_loss,
            eps_low=config.eps_low,
            eps_high=config.eps_high,
            per_sequence=config.trust_region == "sequence",
        )
        self.relative_cost = self.policy.relative_cost

    def select(self, waiting: Sequence[Trajectory]) -> list[int]:
        return oldest(waiting, self.batch_size)

    def update(self, batch: Sequence[Trajectory]) -> Update:
        rows = collate(batch, self._pad_id, self.policy.device)
        advantages = per_token(
            centred(rows.totals, leave_one_out=self.config.leave_one_out), rows.mask
        )
        if self.config.whiten:
            advantages = whiten(advantages, rows.mask)
        moved, skipped, metrics = self.policy.improve(rows, advantages, self._objective)
        metrics |= advantage_metrics(advantages, rows.mask) | {
            "reward_mean": float(rows.totals.mean()),
            "policy_moved": float(moved),
            "skipped_steps": float(skipped),
        }
        return Update(weights=self.policy.weights() if moved else None, metrics=metrics)

    def self_test(self, rollouts: Sequence[Trajectory]) -> None:
        check_on_policy(self.policy.model, rollouts, pad_id=self._pad_id)

    def state_dict(self) -> dict[str, Any]:
        return {"policy": self.policy.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.policy.load_state_dict(state["policy"])
