"""GRPO+DIS: GRPO's group baseline with SAO's double-sided mask in place of PPO's clip.

    G rollouts of a task  ->  A = (R - mean of the group) / std of the group  ->  -f(r) A log pi

The paper's (arXiv 2607.07508) own strong baseline: against `grpo` it isolates the mask, against
`sao` the single rollout and the critic.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from sao_gym.learners.ops.batch import collate
from sao_gym.learners.ops.groups import GroupConfig, group_advantages
from sao_gym.learners.ops.losses import dis_loss
from sao_gym.learners.ops.optim import WidthAbove, WidthBelow
from sao_gym.learners.ops.policy import Policy
from sao_gym.learners.ops.select import complete_groups
from sao_gym.learners.ops.selftest import check_on_policy
from sao_gym.protocols import LearnerSetup
from sao_gym.types import Trajectory, Update


class GrpoDis:
    """Group-relative advantages, double-sided masking."""

    class Config(GroupConfig):
        """What a scenario may set in `learner.params`."""

        eps_low: WidthBelow = 0.3
        """Width of the accepted band below ratio 1 (paper: 0.3 maths, 0.8 coding)."""
        eps_high: WidthAbove = 5.0
        """Width of the accepted band above ratio 1 (paper: 5 maths, 3 coding)."""

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
        self._objective = partial(dis_loss, eps_low=config.eps_low, eps_high=config.eps_high)
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
