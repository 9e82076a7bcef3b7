"""Control: imitates the reference solution under the newest concept, an upper bound on adaptation.

It is told what no other learner is: which concept holds, and how each task of its batch is solved
under it. From the rollouts themselves it takes only the tasks and the newest concept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from sao_gym.learners.ops.batch import collate
from sao_gym.learners.ops.losses import imitation_loss
from sao_gym.learners.ops.optim import BatchSize, GradientNorm, LearningRate, MicroBatchSize
from sao_gym.learners.ops.policy import Policy
from sao_gym.learners.ops.select import oldest
from sao_gym.learners.ops.selftest import check_on_policy
from sao_gym.protocols import LearnerSetup
from sao_gym.types import Concept, Task, Trajectory, Update


class Oracle:
    """Supervised learning from solutions under the concept that holds now."""

    class Config(BaseModel):
        """What a scenario may set in `learner.params`."""

        model_config = ConfigDict(extra="forbid", frozen=True)

        batch_size: BatchSize = 32
        """Rollouts consumed, and demonstrations imitated, per update."""
        learning_rate: LearningRate = 1e-3
        """Of the policy."""
        max_grad_norm: GradientNorm = 1.0
        """Gradient clip."""
        steps: int = Field(default=1, ge=1)
        """Optimizer steps per batch."""
        micro_batch_size: MicroBatchSize = None
        """Demonstrations per forward-backward pass; changes memory, not the result."""

    group_size = 1

    def __init__(self, setup: LearnerSetup, config: Config) -> None:
        self.config = config
        self.batch_size = config.batch_size
        self._pad_id = setup.pad_id
        self._demonstrate: Callable[[Concept, Task], Trajectory] = setup.demonstrate
        self.policy = Policy(
            setup.model,
            learning_rate=config.learning_rate,
            max_grad_norm=config.max_grad_norm,
            kl=0.0,
            micro_batch_size=config.micro_batch_size,
        )
        self.relative_cost = float(config.steps)

    def select(self, waiting: Sequence[Trajectory]) -> list[int]:
        return oldest(waiting, self.batch_size)

    def update(self, batch: Sequence[Trajectory]) -> Update:
        concept = newest_concept(batch)
        solutions = [self._demonstrate(concept, trajectory.task) for trajectory in batch]
        rows = collate(solutions, self._pad_id, self.policy.device)
        steps = [self.policy.imitate(rows, imitation_loss) for _ in range(self.config.steps)]
        moved = any(step.moved for _, step in steps)
        metrics = {
            "policy_loss": steps[0][0],
            "grad_norm": steps[0][1].norm,
            "reward_mean": sum(t.reward for t in batch) / len(batch),
            "demonstration_reward_mean": float(rows.totals.mean()),
            "policy_moved": float(moved),
            "skipped_steps": float(sum(step.skipped for _, step in steps)),
        }
        return Update(weights=self.policy.weights() if moved else None, metrics=metrics)

    def self_test(self, rollouts: Sequence[Trajectory]) -> None:
        check_on_policy(self.policy.model, rollouts, pad_id=self._pad_id)

    def state_dict(self) -> dict[str, Any]:
        return {"policy": self.policy.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.policy.load_state_dict(state["policy"])


def newest_concept(batch: Sequence[Trajectory]) -> Concept:
    """The concept seen last: at the latest start, or at the latest scoring if it was another."""
    seen = [(t.timing.started, t.rollout, t.concept_start) for t in batch]
    seen += [
        (t.timing.finished, t.rollout, t.concept_scored)
        for t in batch
        if t.concept_scored.id != t.concept_start.id
    ]
    return max(seen, key=lambda item: item[:2])[2]
