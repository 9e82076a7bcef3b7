"""Imitate what was rewarded, forget the rest. Written against the protocol alone."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict

from sao_gym.protocols import LearnerSetup
from sao_gym.types import Trajectory, Update


class BestOf:
    """Maximum likelihood on the rollouts of a batch that earned something."""

    class Config(BaseModel):
        model_config = ConfigDict(extra="forbid", frozen=True)

        batch_size: int = 16
        learning_rate: float = 1e-2

    group_size = 1
    relative_cost = 1.0

    def __init__(self, setup: LearnerSetup, config: Config) -> None:
        self.batch_size = config.batch_size
        self._model = setup.model
        self._optimizer = torch.optim.Adam(self._model.parameters(), lr=config.learning_rate)

    def select(self, waiting: Sequence[Trajectory]) -> list[int]:
        if len(waiting) < self.batch_size:
            return []
        return [trajectory.rollout for trajectory in waiting[: self.batch_size]]

    def update(self, batch: Sequence[Trajectory]) -> Update:
        kept = [trajectory for trajectory in batch if trajectory.reward > 0]
        metrics = {"reward_mean": sum(t.reward for t in batch) / len(batch), "kept": len(kept)}
        if not kept:
            return Update(weights=None, metrics=metrics)
        loss = torch.stack([self._loss(trajectory) for trajectory in kept]).mean()
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        weights = {name: w.detach().clone() for name, w in self._model.state_dict().items()}
        return Update(weights=weights, metrics=metrics | {"loss": loss.item()})

    def state_dict(self) -> dict[str, Any]:
        # a copy: the next update changes these tensors in place
        state = {"model": self._model.state_dict(), "optimizer": self._optimizer.state_dict()}
        return deepcopy(state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(deepcopy(state["optimizer"]))

    def _loss(self, trajectory: Trajectory) -> torch.Tensor:
        tokens: list[int] = []
        spoken: list[int] = []
        for turn in trajectory.turns:
            tokens += turn.observation_ids
            spoken += range(len(tokens), len(tokens) + len(turn.action_ids))
            tokens += turn.action_ids
        logits = self._model(torch.tensor([tokens])).logits[0]
        wanted = torch.tensor([tokens[at] for at in spoken])
        return torch.nn.functional.cross_entropy(logits[[at - 1 for at in spoken]], wanted)
