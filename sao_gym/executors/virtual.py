"""Simulated time: a discrete-event simulation around a real model and real environments.

    heap of (time, priority, serial) --next()--> event, with `now` moved to its time
        ^                                |
        |  latency drawn by key          |  a decode tick is due: one `engine.step()`
        +--- reset, step, train, publish-+

Only durations are simulated. Work is done when it is asked for (an update possibly by another
process meanwhile) and its event lies in the future; a tick samples with the weights that are
loaded when the tick is due. Simultaneous events come in a total order: by kind, then in the order
in which they were asked for. So a run is a pure function of scenario and seed.

Declared faults (`sao_gym.faults`) strike where the real ones would: at a call to an environment, a
tick, an update, a publish. What comes of them is decided here, in virtual time.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from sao_gym import boundary, rng
from sao_gym.boundary import Step
from sao_gym.errors import RunError, StalledError, some
from sao_gym.events import (
    EnvironmentStepped,
    Evaluated,
    Event,
    FaultHandled,
    PolicyPublished,
    RolloutFailed,
    TurnSampled,
    UpdateFinished,
)
from sao_gym.executors.supervision import (
    WORKER_LOST,
    answered,
    attempts,
    load_verified,
    make_call,
    restart,
    timed_out,
)
from sao_gym.faults import FaultKind, Faults, Patience
from sao_gym.latency import Latency, TimeModel
from sao_gym.protocols import Engine, EnvironmentCall, Evaluator, TextEnv, Trainer
from sao_gym.types import Concept, Failed, Request, Trajectory, Update, Weights


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


@dataclass(frozen=True, slots=True)
class _Broken:
    """A part is due to have failed for good."""

    line: str


_Item: TypeAlias = Event | _Tick | _Train | _Broken

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
        faults: Faults | None = None,
        patience: Patience | None = None,
    ) -> None:
        """`update_cost`: forward-backward passes of an update; `weights`: those of version 0."""
        self._engine, self._trainer, self._evaluator = engine, trainer, evaluator
        self._time, self._seed, self._update_cost = time, seed, update_cost
        self._faults, self._patience = faults or Faults(), patience or Patience()
        self._published = weights
        self._version = 0
        self._unpublished: dict[int, Update] = {}
        self._heap: list[tuple[float, int, int, _Item]] = []
        self._serial = 0
        self._open: set[int] = set()
        self._requests: dict[int, Request] = {}
        self._ticking = False
        self._ticks = 0
        self._deaths = 0
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
        while self._heap:
            if self._heap[0][0] - self._now > self._patience.watchdog:
                raise StalledError(f"no event for {self._patience.watchdog:g} virtual seconds")
            time, _, _, item = heapq.heappop(self._heap)
            self._now = max(self._now, time)  # what a leap of the clock has overtaken is late
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
                case _Broken(line=line):
                    raise RunError(line)
                case _:
                    return item
        return None

    def waiting_for(self) -> str:
        items = [item for *_, item in self._heap]
        steps = [i.rollout for i in items if isinstance(i, EnvironmentStepped | RolloutFailed)]
        updates = [i.version for i in items if isinstance(i, _Train)]
        publishes = [i.version for i in items if isinstance(i, PolicyPublished)]
        return (
            f"environment: rollouts {some(steps)}; engine: {some(self._requests)}; "
            f"learner: updates {some(updates)}; publishes {some(publishes)}"
        )

    def close(self) -> None:
        self._trainer.close()

    # -- what the loop asks for ----------------------------------------------------------------

    def emit(self, event: Event) -> None:
        self._push(self._now, event)

    def ask(self, rollout: int, call: EnvironmentCall) -> None:
        self._open.add(rollout)
        seconds = self._draw(self._time.environment, "environment", rollout, call.turn)
        limit = self._patience.environment
        rule = self._faults.environment(rollout, call.turn)
        fault = None if rule is None else rule.kind
        answer: Step | Failed
        if fault == "worker_lost":
            answer = WORKER_LOST
        elif fault == "environment_hangs":
            answer, seconds = timed_out(limit), limit
        else:
            if rule is not None and fault == "environment_slow":
                seconds *= rule.times
            answer = make_call(call, fault)
            if seconds > limit:
                answer, seconds = timed_out(limit), limit
        self._push(self._now + seconds, answered(rollout, call.turn, answer, seconds))

    def dispose(self, env: TextEnv) -> None:
        boundary.close(env)

    def sample(self, request: Request) -> None:
        self._requests[request.rollout] = request
        self._engine.submit(request)
        self._keep_ticking()

    def release(self, rollout: int) -> None:
        self._open.discard(rollout)
        self._requests.pop(rollout, None)
        self._engine.release(rollout)

    def train(
        self, version: int, batch: Sequence[Trajectory], lag_mean: float, lag_max: int
    ) -> None:
        begin = self._retried("update_raises", version, self._now, 0.0)
        if begin is None:
            return
        poison = self._faults.struck("update_nan", version) is not None
        if poison:
            self._told("update_nan", version, "skipped", "gradients were not finite")
        self._trainer.start(batch, poison=poison)
        due = self._draw(self._time.update, "update", version) * self._update_cost
        rollouts = tuple(trajectory.rollout for trajectory in batch)
        self._push(begin + due, _Train(version, rollouts, lag_mean, lag_max))

    def publish(self, version: int) -> None:
        # one transfer at a time, so versions arrive in order
        seconds = self._draw(self._time.publish, "publish", version)
        if (rule := self._faults.struck("publish_late", version)) is not None:
            seconds *= rule.times
            self._told("publish_late", version, "late", f"{seconds:g} s under way")
        begin = max(self._now, self._publish_free)
        sent = self._retried("publish_lost", version, begin, seconds)
        # behind one that is lost for good nothing arrives: the run breaks
        self._publish_free = math.inf if sent is None else sent + seconds
        if sent is not None:
            self._push(self._publish_free, PolicyPublished(version=version))

    def load(self, version: int) -> None:
        weights = self._unpublished.pop(version).weights
        if weights is not None:
            self._published = weights
        self._version = version
        if self._faults.struck("engine_stale", version) is None:
            self._engine.load(weights, version)
        for event in load_verified(self._engine, self._published, version, self._patience):
            self.emit(event)

    def evaluate(self, version: int, concepts: Sequence[Concept], started: int) -> None:
        assert self._evaluator is not None
        for result in self._evaluator.evaluate(self._published, concepts):
            self._push(self._now, result.event(version, started))

    # -- inside --------------------------------------------------------------------------------

    def _push(self, time: float, item: _Item) -> None:
        priority = _PRIORITY.get(type(item), 5)
        heapq.heappush(self._heap, (time, priority, self._serial, item))
        self._serial += 1

    def _draw(self, latency: Latency, purpose: str, *key: int) -> float:
        return latency.draw(rng.uniform(self._seed, f"latency/{purpose}", *key))

    def _told(self, fault: FaultKind, key: int, outcome: str, detail: str) -> None:
        self.emit(FaultHandled(fault=fault, key=key, attempt=0, outcome=outcome, detail=detail))

    def _retried(self, fault: FaultKind, key: int, begin: float, lost: float) -> float | None:
        """When the first attempt that `fault` spares begins; None if the run breaks before it."""
        found = attempts(self._faults, self._patience, fault, key, begin=begin, lost=lost)
        for at, event in found.told:
            self._push(at, event)
        if found.begin is None:
            at, line = found.broken
            self._push(at, _Broken(line))
        return found.begin

    def _keep_ticking(self) -> None:
        if self._engine.active and not self._ticking:
            self._tick_in(0.0)

    def _tick_in(self, seconds: float) -> None:
        self._ticking = True
        self._ticks += 1
        seconds += self._draw(self._time.decode, "decode", self._ticks)
        self._push(self._now + seconds, _Tick())

    def _tick(self) -> None:
        self._ticking = False
        if not self._requests:
            return
        if self._faults.struck("engine_dies", self._ticks) is not None:
            self._restart_engine()
            return
        for completion in self._engine.step():
            del self._requests[completion.rollout]
            self._push(self._now, TurnSampled(completion=completion))
        self._deaths = 0
        self._keep_ticking()

    def _restart_engine(self) -> None:
        if self._deaths == self._patience.retries:
            raise RunError(f"the engine died {self._deaths + 1} times in a row")
        requests = list(self._requests.values())
        pause = self._patience.pause(self._deaths)
        for event in restart(
            self._engine,
            self._published,
            self._version,
            requests,
            tick=self._ticks,
            attempt=self._deaths,
            patience=self._patience,
        ):
            self.emit(event)
        self._deaths += 1
        self._tick_in(pause)

    def _trained(self, item: _Train) -> UpdateFinished:
        update = self._trainer.finish()
        self._unpublished[item.version] = update
        if (rule := self._faults.struck("clock_jumps", item.version)) is not None:
            self._now += rule.leap
            self._told("clock_jumps", item.version, "late", f"time leapt by {rule.leap:g} s")
        return UpdateFinished(
            version=item.version,
            rollouts=item.rollouts,
            lag_mean=item.lag_mean,
            lag_max=item.lag_max,
            metrics=update.metrics,
        )

    # -- state ---------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        return {
            "now": self._now,
            "heap": [(t, p, n, _plain(item)) for t, p, n, item in sorted(self._heap)],
            "serial": self._serial,
            "open": sorted(self._open),
            "requests": list(self._requests.values()),
            "ticking": self._ticking,
            "ticks": self._ticks,
            "deaths": self._deaths,
            "publish_free": self._publish_free,
            "version": self._version,
            "published": self._published,
            "unpublished": dict(self._unpublished),
            "engine": self._engine.state_dict(),
            "learner": self._trainer.state(),
            "evaluator": None if self._evaluator is None else self._evaluator.state_dict(),
            "unanswered": [],  # every call was made when it was asked for
        }

    def load_state_dict(self, state: dict[str, Any], calls: Mapping[int, EnvironmentCall]) -> None:
        assert not calls
        self._now, self._serial = state["now"], state["serial"]
        self._heap = [(t, p, n, _item(plain)) for t, p, n, plain in state["heap"]]
        self._open = set(state["open"])
        self._requests = {request.rollout: request for request in state["requests"]}
        self._ticking, self._ticks = state["ticking"], state["ticks"]
        self._deaths, self._publish_free = state["deaths"], state["publish_free"]
        self._version, self._published = state["version"], state["published"]
        self._unpublished = dict(state["unpublished"])
        self._engine.load_state_dict(state["engine"], self._published)
        self._trainer.restore(state["learner"])
        if self._evaluator is not None:
            self._evaluator.load_state_dict(state["evaluator"], self._published)


def _plain(item: _Item) -> Any:
    """An item of the heap for a checkpoint, which is only taken while no update is under way."""
    assert not isinstance(item, _Train)
    match item:
        case _Tick():
            return "tick"
        case _Broken(line=line):
            return {"broken": line}
    return item


def _item(plain: Any) -> _Item:
    if plain == "tick":
        return _Tick()
    if isinstance(plain, dict):
        return _Broken(plain["broken"])
    event: Event = plain
    return event
