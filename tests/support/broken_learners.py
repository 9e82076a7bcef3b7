"""Learners that break one rule each, for `test_contract.py`."""

from __future__ import annotations

import torch

from sao_gym.learners.grpo import Grpo
from sao_gym.types import Update


class Learner(Grpo):
    """A real learner, small; each subclass breaks one promise."""

    def __init__(self, setup):
        super().__init__(setup, self.Config(group_size=2, batch_size=4))


class NoGroups(Learner):
    def __init__(self, setup):
        super().__init__(setup)
        self.group_size = 0


class GroupsDoNotFit(Learner):
    def __init__(self, setup):
        super().__init__(setup)
        self.group_size = 3


class CostsLessThanNothing(Learner):
    def __init__(self, setup):
        super().__init__(setup)
        self.relative_cost = -1.0


class SelectsAnAbsentOne(Learner):
    def select(self, waiting):
        chosen = super().select(waiting)
        return chosen and [*chosen[:-1], 10**6]


class StopsSelecting(Learner):
    def __init__(self, setup):
        super().__init__(setup)
        self.updates = 0

    def update(self, batch):
        self.updates += 1
        return super().update(batch)

    def select(self, waiting):
        return [] if self.updates > 1 else super().select(waiting)


class SelectDependsOnUpdates(StopsSelecting):
    """Once it has been trained it passes over the oldest rollout."""

    def select(self, waiting):
        return Learner.select(self, waiting[self.group_size * (self.updates == 1) :])


class SelectsTooMany(Learner):
    def select(self, waiting):
        return [t.rollout for t in waiting] if len(waiting) >= self.batch_size else []


class SelectsNewestFirst(Learner):
    def select(self, waiting):
        return super().select(waiting)[::-1]


class SelectsTwice(Learner):
    def select(self, waiting):
        chosen = super().select(waiting)
        return chosen[:1] + chosen[:-1]


class SelectsTooEarly(Learner):
    def select(self, waiting):
        return super().select(waiting) or [t.rollout for t in waiting]


class SelectConsumes(Learner):
    def select(self, waiting):
        chosen = super().select(waiting)
        if isinstance(waiting, list) and len(waiting) > self.batch_size:
            waiting.pop()
        return chosen


class SelectRemembers(Learner):
    """Gives each rollout once, as if it owned the queue."""

    def __init__(self, setup):
        super().__init__(setup)
        self.given = set()

    def select(self, waiting):
        chosen = super().select([t for t in waiting if t.rollout not in self.given])
        if len(waiting) == 2 * self.batch_size:
            self.given |= set(chosen)
        return chosen


class RenamesWeights(Learner):
    def update(self, batch):
        done = super().update(batch)
        weights = {f"model.{name}": t for name, t in done.weights.items()}
        return Update(weights=weights, metrics=done.metrics)


class LeaksTheGraph(Learner):
    def update(self, batch):
        done = super().update(batch)
        weights = {name: t.clone().requires_grad_() for name, t in done.weights.items()}
        return Update(weights=weights, metrics=done.metrics)


class HandsOutTensors(Learner):
    def update(self, batch):
        done = super().update(batch)
        return Update(weights=done.weights, metrics={**done.metrics, "loss": torch.tensor(1.0)})


class MetricsComeAndGo(Learner):
    calls = 0

    def update(self, batch):
        done = super().update(batch)
        self.calls += 1
        extra = {"warm_up": 1.0} if self.calls == 1 else {}
        return Update(weights=done.weights, metrics={**done.metrics, **extra})


class ReturnsItsOwnWeights(Learner):
    def __init__(self, setup):
        super().__init__(setup)
        self.model = setup.model

    def update(self, batch):
        done = super().update(batch)
        return Update(weights=self.model.state_dict(), metrics=done.metrics)


class DrawsGlobally(Learner):
    def update(self, batch):
        torch.rand(1)
        return super().update(batch)


class StartsAtRandom(Learner):
    def __init__(self, setup):
        with torch.no_grad():
            for parameter in setup.model.parameters():
                parameter += 0.01 * torch.rand_like(parameter)
        super().__init__(setup)


class DependsOnTheLearnersNumber(Learner):
    made = 0

    def __init__(self, setup):
        super().__init__(setup)
        type(self).made += 1
        self.number = self.made

    def update(self, batch):
        done = super().update(batch)
        weights = {name: t + 1e-3 * self.number for name, t in done.weights.items()}
        return Update(weights=weights, metrics=done.metrics)


class ReportsItsNumber(DependsOnTheLearnersNumber):
    def update(self, batch):
        done = Learner.update(self, batch)
        return Update(weights=done.weights, metrics={**done.metrics, "number": self.number})


class ForgetsTheOptimizer(Learner):
    def load_state_dict(self, state):
        fresh = self.state_dict()
        super().load_state_dict(state)
        kept = {k: v for k, v in state["policy"].items() if "optim" not in k}
        super().load_state_dict({"policy": {**fresh["policy"], **kept}})


class HandsOutLiveState(Learner):
    """The optimizer's own tensors, which the next update moves."""

    def __init__(self, setup):
        super().__init__(setup)
        self.model = setup.model

    def state_dict(self):
        return {**super().state_dict(), "live": self.model.state_dict()}
