"""SAO: single-rollout asynchronous optimisation (arXiv 2607.07508).

    batch of single rollouts
      |  critic: K fits to the returns             V before the first fit
      |  advantages: GAE over action tokens from V
      |  policy: one step down -f(r) A log pi      f masks ratios outside the band (DIS)
      v  new weights

The critic moves K times before the policy moves once. Where the paper is silent, a field of
`Config` says what is done.

A batch none of whose fits could be applied (its gradients are not finite) teaches nothing: the
policy does not move, and warm-up, `policy_every` and `critic_lag` do not count it.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from functools import partial
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor

from sao_gym.learners.ops.advantages import whiten
from sao_gym.learners.ops.batch import Batch, collate
from sao_gym.learners.ops.critic import ATTENTION, Critic, Fit, ValueModel, Values
from sao_gym.learners.ops.losses import dis_loss
from sao_gym.learners.ops.metrics import advantage_metrics, explained_variance, masked_mean
from sao_gym.learners.ops.optim import (
    BatchSize,
    Coefficient,
    GradientNorm,
    LearningRate,
    MicroBatchSize,
    WidthAbove,
    WidthBelow,
)
from sao_gym.learners.ops.policy import METRICS, Policy
from sao_gym.learners.ops.returns import Estimate, adaptive_lambda, gae, rewards_to_go
from sao_gym.learners.ops.select import oldest
from sao_gym.learners.ops.selftest import check_on_policy
from sao_gym.protocols import LearnerSetup
from sao_gym.types import Trajectory, Update

Lambda = Annotated[float, Field(ge=0, le=1)]


class Sao:
    """One rollout per prompt, a critic, token-level GAE, double-sided masking."""

    class Config(BaseModel):
        """What a scenario may set in `learner.params`."""

        model_config = ConfigDict(extra="forbid", frozen=True)

        batch_size: BatchSize = 32
        """Rollouts, each of its own task, per update."""
        learning_rate: LearningRate = 8e-4
        """Of the policy."""
        max_grad_norm: GradientNorm = 1.0
        """Gradient clip of the policy."""
        kl: Coefficient = 0.0
        """Weight of the KL to the policy as it was at the start. The paper has none."""
        eps_low: WidthBelow = 0.3
        """Width of the accepted band below ratio 1 (paper: 0.3 maths, 0.8 coding)."""
        eps_high: WidthAbove = 5.0
        """Width of the accepted band above ratio 1 (paper: 5 maths, 3 coding)."""
        gamma: Lambda = 1.0
        """Discount per action token."""
        policy_lambda: Lambda | Literal["adaptive"] = "adaptive"
        """GAE lambda of the policy's advantages; adaptive: 1 - 1 / (alpha * action tokens)."""
        alpha: float = Field(default=1.5, ge=1)
        """Of the adaptive lambda."""
        whiten: bool = False
        """Advantages to zero mean and unit variance over the batch's action tokens."""
        bootstrap_truncated: bool = False
        """Add the critic's value where a truncated episode was cut; else its reward is all."""
        advantages_from: Literal["pre_fit", "post_fit"] = "pre_fit"
        """Values from before or after this batch's critic fits. After: a critic that memorises the
        batch leaves no advantage."""
        policy_every: int = Field(default=1, ge=1)
        """The policy moves at every n-th update, the critic at each (delayed update)."""
        critic_updates: int = Field(default=2, ge=1)
        """K: critic fits per update, before the policy's."""
        critic_learning_rate: LearningRate = 2e-3
        """Of the critic; faster than the policy (two time scales)."""
        critic_lr_warmup: int = Field(default=0, ge=0)
        """Fits over which the critic's learning rate rises to it."""
        critic_max_grad_norm: GradientNorm = 10.0
        """Gradient clip of the critic."""
        critic_lambda: Lambda = 1.0
        """Lambda of the critic's targets; 1: the Monte-Carlo return."""
        critic_warmup: int = Field(default=10, ge=0)
        """Updates at the start in which only the critic moves."""
        critic_lag: int = Field(default=0, ge=0)
        """If n > 0, advantages come from a copy of the critic that is renewed every n updates."""
        frozen: tuple[str, ...] = (ATTENTION,)
        """Patterns of critic parameters that never train; empty: all train."""
        head_init: Literal["rollouts", "zero", "normal"] = "rollouts"
        """Value head at the start: fitted to the first batch's returns, zero, or random."""
        head_ridge: float = Field(default=1.0, gt=0)
        """Penalty of that fit, relative to the mean variance of a hidden unit."""
        micro_batch_size: MicroBatchSize = None
        """Rollouts per forward-backward pass; changes memory, not the result."""

        @model_validator(mode="after")
        def _consistent(self) -> Sao.Config:
            if self.head_init == "rollouts" and self.critic_warmup == 0:
                raise ValueError(
                    "head_init: rollouts fits the critic to the first batch, which must not train "
                    "the policy too; set critic_warmup >= 1 or head_init: zero"
                )
            if self.policy_lambda != "adaptive" and self.alpha != 1.5:
                raise ValueError("alpha has no effect unless policy_lambda is adaptive")
            if self.head_init != "rollouts" and self.head_ridge != 1.0:
                raise ValueError("head_ridge has no effect unless head_init is rollouts")
            if self.critic_lag and self.advantages_from == "post_fit":
                raise ValueError("critic_lag and advantages_from: post_fit exclude each other")
            return self

    group_size = 1

    def __init__(self, setup: LearnerSetup, config: Config) -> None:
        self.config = config
        self.batch_size = config.batch_size
        self._pad_id = setup.pad_id
        std = setup.model.config.get_text_config().initializer_range
        self.critic = Critic(
            ValueModel(
                setup.model,
                head_std=std if config.head_init == "normal" else 0.0,
                seed=setup.seed,
            ),
            frozen=config.frozen,
            learning_rate=config.critic_learning_rate,
            warmup=config.critic_lr_warmup,
            max_grad_norm=config.critic_max_grad_norm,
            micro_batch_size=config.micro_batch_size,
        )
        self.policy = Policy(
            setup.model,
            learning_rate=config.learning_rate,
            max_grad_norm=config.max_grad_norm,
            kl=config.kl,
            micro_batch_size=config.micro_batch_size,
        )
        self._lagged = deepcopy(self.critic) if config.critic_lag else None
        self._objective = partial(dis_loss, eps_low=config.eps_low, eps_high=config.eps_high)
        self._updates = 0
        extra_pass = bool(config.critic_lag) or config.advantages_from == "post_fit"
        self.relative_cost = (
            self.policy.relative_cost / config.policy_every
            + config.critic_updates
            + (1 / 3 if extra_pass else 0)
        )

    def select(self, waiting: Sequence[Trajectory]) -> list[int]:
        return oldest(waiting, self.batch_size)

    def update(self, batch: Sequence[Trajectory]) -> Update:
        rows = collate(batch, self._pad_id, self.policy.device)
        if self._updates == 0 and self.config.head_init == "rollouts":
            returns = rewards_to_go(rows.rewards, rows.mask, gamma=self.config.gamma)
            self.critic.initialise_head(rows, returns, self.config.head_ridge)
        self._renew_lagged_critic()
        fits = self._fit_critic(rows)
        first = fits[0]
        lam = self._policy_lambda(rows)
        advantages = self._estimate(rows, self._policy_values(rows, first), lam).advantages
        if self.config.whiten:
            advantages = whiten(advantages, rows.mask)
        moved, skipped, metrics = False, False, dict.fromkeys(METRICS, float("nan"))
        if not all(fit.skipped for fit in fits):
            self._updates += 1
            if self._policy_is_due():
                moved, skipped, metrics = self.policy.improve(rows, advantages, self._objective)
        targets = self._estimate(rows, first.values, self.config.critic_lambda).returns
        metrics |= advantage_metrics(advantages, rows.mask) | {
            "reward_mean": float(rows.totals.mean()),
            "critic_loss": first.loss,
            "critic_grad_norm": first.norm,
            "explained_variance": explained_variance(first.values.tokens, targets, rows.mask).value,
            "value_mean": masked_mean(first.values.tokens, rows.mask),
            "lambda_mean": float(lam.mean()),
            "policy_moved": float(moved),
            "skipped_steps": float(sum(fit.skipped for fit in fits) + skipped),
        }
        return Update(weights=self.policy.weights() if moved else None, metrics=metrics)

    def self_test(self, rollouts: Sequence[Trajectory]) -> None:
        check_on_policy(self.policy.model, rollouts, pad_id=self._pad_id)

    def state_dict(self) -> dict[str, Any]:
        return {
            "policy": self.policy.state_dict(),
            "critic": self.critic.state_dict(),
            "lagged": None if self._lagged is None else self._lagged.state_dict(),
            "updates": self._updates,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.policy.load_state_dict(state["policy"])
        self.critic.load_state_dict(state["critic"])
        if self._lagged is not None:
            self._lagged.load_state_dict(state["lagged"])
        self._updates = state["updates"]

    def _policy_is_due(self) -> bool:
        beyond = self._updates - self.config.critic_warmup
        return beyond > 0 and beyond % self.config.policy_every == 0

    def _renew_lagged_critic(self) -> None:
        if self._lagged is not None and self._updates % self.config.critic_lag == 0:
            self._lagged.load_state_dict(self.critic.state_dict())

    def _fit_critic(self, rows: Batch) -> list[Fit]:
        """K fits; what the first of them saw is the critic before this batch."""
        return [
            self.critic.fit(
                rows,
                lambda part, values: (
                    self._estimate(part, values, self.config.critic_lambda).returns
                ),
            )
            for _ in range(self.config.critic_updates)
        ]

    def _policy_values(self, rows: Batch, first: Fit) -> Values:
        if self._lagged is not None:
            return self._lagged.predict(rows)
        if self.config.advantages_from == "post_fit":
            return self.critic.predict(rows)
        return first.values

    def _policy_lambda(self, rows: Batch) -> Tensor:
        if self.config.policy_lambda == "adaptive":
            return adaptive_lambda(rows.lengths, self.config.alpha)
        return torch.full_like(rows.totals, self.config.policy_lambda, dtype=torch.float32)

    def _estimate(self, rows: Batch, values: Values, lam: Tensor | float) -> Estimate:
        cut = torch.where(rows.truncated, values.cut, 0)
        return gae(
            rows.rewards,
            values.tokens,
            rows.mask,
            lam=lam,
            gamma=self.config.gamma,
            bootstrap=cut if self.config.bootstrap_truncated else None,
        )
