"""Simulated time: a discrete-event simulation around a real model and real environments.

    heap of (time, priority, serial) --next()--> event, with `now` moved to its time
        ^                                |
        |  latency drawn by key          |  a decode tick is due: one `engine.step()`
        +--- reset, step, train, publish-+

Only durations are simulated. Work is done when it is asked for (an update possibly by another
process meanwhile) and its event lies in the future; a tick samples with the weights that are
loaded when the tick is due. Simultaneous events come in a total order: by kind, then in the order
in which they were asked for. So a run is a pure function of scenario and seed.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from sao_gym import boundary, rng
from sao_gym.boundary import Step
from sao_gym.events import (
    EnvironmentStepped,
    Evaluated,
    Event,
    PolicyPublished,
    RolloutFailed,
    TurnSampled,
    UpdateFinished,
)
from sao_gym.latency import Latency
from sao_gym.protocols import Engine, Evaluator, TextEnv, Trainer
from sao_gym.types import Concept, Failed, Request, Task, Trajectory, Update, Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeModel:
    """How long things take, in virtual seconds."""

    decode: Latency
    """One tick of the engine: one token for every active sequence."""
    environment: Latency
    """One `reset` or `step`."""
    update: Latency
    """One policy forward-backward pass over a batch."""
    publish: Latency
    """From the end of an update until the engine samples from its result."""


@dataclass(frozen=True, slots=True)
class _Tick:
    """The engine is due to advance."""


@dataclass(frozen=True, slots=True)
class _Train:
    """An update is due to end."""

    version: int
    rollouts: tuple[int, ...]
    lag_mean: float
    lag_max: int


_Item: TypeAlias = Event | _Tick | _Train

_PRIORITY: dict[type, int] = {
    PolicyPublished: 1,
    _Train: 2,
    # everything else in between, in the order it was asked for
    _Tick: 8,
    Evaluated: 9,
}


class VirtualExecutor:
    """`Executor` in simulated time. Deterministic: no clock, no thread, no generator state."""

    def __init__(
        self,
        *,
        engine: Engine,
        trainer: Trainer,
        evaluator: Evaluator | None,
        time: TimeModel,
        seed: int,
        weights: Weights,
        update_cost: float = 1.0,
    ) -> None:
        """`update_cost`: forward-backward passes of an update; `weights`: those of version 0."""
        self._engine, self._trainer, self._evaluator = engine, trainer, evaluator
        self._time, self._seed, self._update_cost = time, seed, update_cost
        self._published = weights
        self._unpublished: dict[int, Update] = {}
        self._heap: list[tuple[float, int, int, _Item]] = []
        self._serial = itertools.count()
        self._open: set[int] = set()
        self._ticking = False
        self._ticks = 0
        self._publish_free = 0.0
        self._now = 0.0
        self._interrupted = False

    @property
    def now(self) -> float:
        return self._now

    @property
    def interrupted(self) -> bool:
        return self._interrupted

    def weights(self) -> Weights:
        return self._published

    def interrupt(self) -> None:
        self._interrupted = True

    def next(self) -> Event | None:
        while self._heap and not self._interrupted:
            self._now, _, _, item = heapq.heappop(self._heap)
            match item:
                case EnvironmentStepped(rollout=rollout) | RolloutFailed(rollout=rollout):
                    if rollout in self._open:
                        return item
                case _Tick():
                    self._tick()
                case _Train():
                    return self._trained(item)
                case TurnSampled(completion=done):
                    if done.rollout in self._open:
                        return item
                case _:
                    return item
        return None

    def close(self) -> None:
        self._trainer.close()

    # -- what the loop asks for ----------------------------------------------------------------

    def emit(self, event: Event) -> None:
        self._push(self._now, event)

    def reset(self, rollout: int, env: TextEnv, task: Task, concept: Concept) -> None:
        self._open.add(rollout)
        self._answer(rollout, 0, boundary.reset(env, task, concept))

    def step(
        self, rollout: int, turn: int, env: TextEnv, action: str, concept: Concept | None = None
    ) -> None:
        self._answer(rollout, turn, boundary.step(env, action, concept))

    def sample(self, request: Request) -> None:
        self._engine.submit(request)
        self._keep_ticking()

    def release(self, rollout: int) -> None:
        self._open.discard(rollout)
        self._engine.release(rollout)

    def train(
        self, version: int, batch: Sequence[Trajectory], lag_mean: float, lag_max: int
    ) -> None:
        self._trainer.start(batch)
        due = self._draw(self._time.update, "update", version) * self._update_cost
        rollouts = tuple(trajectory.rollout for trajectory in batch)
        self._push(self._now + due, _Train(version, rollouts, lag_mean, lag_max))

    def publish(self, version: int) -> None:
        # one transfer at a time, so versions arrive in order
        begin = max(self._now, self._publish_free)
        self._publish_free = begin + self._draw(self._time.publish, "publish", version)
        self._push(self._publish_free, PolicyPublished(version=version))

    def load(self, version: int) -> None:
        weights = self._unpublished.pop(version).weights
        self._engine.load(weights, version)
        if weights is not None:
            self._published = weights

    def evaluate(self, version: int, concepts: Sequence[Concept], started: int) -> None:
        assert self._evaluator is not None
        for result in self._evaluator.evaluate(self._published, concepts):
            self._push(self._now, result.event(version, started))

    # -- inside --------------------------------------------------------------------------------

    def _push(self, time: float, item: _Item) -> None:
        priority = _PRIORITY.get(type(item), 5)
        heapq.heappush(self._heap, (time, priority, next(self._serial), item))

    def _draw(self, latency: Latency, purpose: str, *key: int) -> float:
        return latency.draw(rng.uniform(self._seed, f"latency/{purpose}", *key))

    def _answer(self, rollout: int, turn: int, answer: Step | Failed) -> None:
        seconds = self._draw(self._time.environment, "environment", rollout, turn)
        event: Event
        if isinstance(answer, Failed):
            event = RolloutFailed(rollout=rollout, failure=answer)
        else:
            event = EnvironmentStepped(
                rollout=rollout,
                turn=turn,
                observation=answer.observation,
                reward=answer.reward,
                terminated=answer.terminated,
                truncated=answer.truncated,
                seconds=seconds,
            )
        self._push(self._now + seconds, event)

    def _keep_ticking(self) -> None:
        if self._engine.active and not self._ticking:
            self._ticking = True
            self._ticks += 1
            seconds = self._draw(self._time.decode, "decode", self._ticks)
            self._push(self._now + seconds, _Tick())

    def _tick(self) -> None:
        self._ticking = False
        for completion in self._engine.step():
            self._push(self._now, TurnSampled(completion=completion))
        self._keep_ticking()

    def _trained(self, item: _Train) -> UpdateFinished:
        update = self._trainer.finish()
        self._unpublished[item.version] = update
        return UpdateFinished(
            version=item.version,
            rollouts=item.rollouts,
            lag_mean=item.lag_mean,
            lag_max=item.lag_max,
            metrics=update.metrics,
        )
