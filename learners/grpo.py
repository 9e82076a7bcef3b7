"""GRPO (arXiv 2402.03300) with clip-higher (DAPO, arXiv 2503.14476): the group is the baseline.

    G rollouts of a task  ->  A = (R - mean of the group) / std of the group  ->  clipped surrogate

The ratio is taken to the sampler's recorded log-probs, as for every learner here.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from sao_gym.learners.ops.batch import collate
from sao_gym.learners.ops.groups import GroupConfig, group_advantages
from sao_gym.learners.ops.losses import clip_loss
from sao_gym.learners.ops.optim import WidthAbove, WidthBelow
from sao_gym.learners.ops.policy import Policy
from sao_gym.learners.ops.select import complete_groups
from sao_gym.learners.ops.selftest import check_on_policy
from sao_gym.protocols import LearnerSetup
from sao_gym.types import Trajectory, Update


class Grpo:
    """Group-relative policy optimisation: waits for whole groups, needs no critic."""

    class Config(GroupConfig):
        """What a scenario may set in `learner.params`."""

        eps_low: WidthBelow = 0.2
        """Width of the clip below ratio 1."""
        eps_high: WidthAbove = 0.28
        """Width of the clip above ratio 1."""

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
        advantages, measured = group_advantages(rows, normalise_std=self.config.normalise_std)
        moved, skipped, metrics = self.policy.improve(rows, advantages, self._objective)
        metrics |= measured | {"policy_moved": float(moved), "skipped_steps": float(skipped)}
        return Update(weights=self.policy.weights() if moved else None, metrics=metrics)

    def self_test(self, rollouts: Sequence[Trajectory]) -> None:
        check_on_policy(self.policy.model, rollouts, pad_id=self._pad_id)

    def state_dict(self) -> dict[str, Any]:
        return {"policy": self.policy.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.policy.load_state_dict(state["policy"])
