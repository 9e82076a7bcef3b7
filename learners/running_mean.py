"""Single rollouts against a running mean: SAO's critic-free baseline (arXiv 2607.07508, 4.5).

    A = R - mean of the last W rewards, from before this batch  ->  -f(r) A log pi

A window as long as the batch flushes in one update; sweep W to see how a baseline's inertia costs
after a drift.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from sao_gym.learners.ops.advantages import RunningMean as Window
from sao_gym.learners.ops.advantages import per_token, whiten
from sao_gym.learners.ops.batch import collate
from sao_gym.learners.ops.losses import dis_loss
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
from sao_gym.learners.ops.select import oldest
from sao_gym.learners.ops.selftest import check_on_policy
from sao_gym.protocols import LearnerSetup
from sao_gym.types import Trajectory, Update


class RunningMean:
    """Single-rollout policy gradient with a running-mean baseline and double-sided masking."""

    class Config(BaseModel):
        """What a scenario may set in `learner.params`."""

        model_config = ConfigDict(extra="forbid", frozen=True)

        batch_size: BatchSize = 32
        """Rollouts, each of its own task, per update."""
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
        window: int = Field(default=128, ge=1)
        """W: rewards the mean is taken over (paper: 128)."""
        scope: Literal["global", "prompt"] = "global"
        """One window for all, or one for each prompt (same first observation)."""
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
        self._objective = partial(dis_loss, eps_low=config.eps_low, eps_high=config.eps_high)
        self._overall = Window(config.window)
        self._by_prompt = Window(config.window)
        self.relative_cost = self.policy.relative_cost

    def select(self, waiting: Sequence[Trajectory]) -> list[int]:
        return oldest(waiting, self.batch_size)

    def update(self, batch: Sequence[Trajectory]) -> Update:
        rows = collate(batch, self._pad_id, self.policy.device)
        baselines = self._baselines(batch)
        advantages = per_token(rows.totals - rows.totals.new_tensor(baselines), rows.mask)
        if self.config.whiten:
            advantages = whiten(advantages, rows.mask)
        moved, skipped, metrics = self.policy.improve(rows, advantages, self._objective)
        metrics |= advantage_metrics(advantages, rows.mask) | {
            "reward_mean": float(rows.totals.mean()),
            "baseline_mean": sum(baselines) / len(baselines),
            "policy_moved": float(moved),
            "skipped_steps": float(skipped),
        }
        return Update(weights=self.policy.weights() if moved else None, metrics=metrics)

    def self_test(self, rollouts: Sequence[Trajectory]) -> None:
        check_on_policy(self.policy.model, rollouts, pad_id=self._pad_id)

    def state_dict(self) -> dict[str, Any]:
        return {
            "policy": self.policy.state_dict(),
            "overall": self._overall.state_dict(),
            "by_prompt": self._by_prompt.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.policy.load_state_dict(state["policy"])
        self._overall.load_state_dict(state["overall"])
        self._by_prompt.load_state_dict(state["by_prompt"])

    def _baselines(self, batch: Sequence[Trajectory]) -> list[float]:
        """One per rollout, from earlier batches alone; then this batch enters the windows.

        A prompt never seen takes the overall mean, the very first batch its own mean.
        """
        rewards = [trajectory.reward for trajectory in batch]
        overall = self._overall.baseline("")
        default = sum(rewards) / len(rewards) if overall is None else overall
        baselines = [default] * len(batch)
        if self.config.scope == "prompt":
            prompts: list[Hashable] = [t.turns[0].observation_ids for t in batch]
            known = [self._by_prompt.baseline(prompt) for prompt in prompts]
            baselines = [default if mean is None else mean for mean in known]
            self._by_prompt.add(prompts, rewards)
        self._overall.add([""] * len(batch), rewards)
        return baselines
