"""Real time: the wall clock, an engine thread, a learner thread, a pool of environment threads.

    loop <--- inbox <-------------+--- engine thread: ticks while requests are active
      |                           +--- environment threads: reset, step
      |                           +--- learner thread: one update at a time
      +--- requests, jobs ------->+--- evaluation thread

The loop and the scenario are those of the simulation; only the order of events is the world's.
All threads are daemons and none is trusted: who does not answer in time is left to itself, an
engine that dies is restarted, and what breaks for good is raised on the loop's thread, in `next`.

What was asked for and not yet handed out as an event is kept in one record, which only the loop's
thread touches. That record is the state of a checkpoint: work that is under way, and answers that
nobody has heard, count as not done, and are asked for again.
"""

from __future__ import annotations

import contextlib
import math
import queue
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, assert_never

from sao_gym import boundary
from sao_gym.errors import RunError, SaoGymError, StalledError, some
from sao_gym.events import (
    Event,
    FaultHandled,
    PolicyPublished,
    TurnSampled,
    UpdateFinished,
)
from sao_gym.executors.agenda import Agenda
from sao_gym.executors.calls import SHORTEST, suffer
from sao_gym.executors.engine_thread import EngineThread
from sao_gym.executors.supervision import WORKER_LOST, answered, timed_out
from sao_gym.executors.workers import Done, Workers, broken
from sao_gym.faults import Faults, Patience
from sao_gym.protocols import Engine, EnvironmentCall, Evaluator, TextEnv, Trainer
from sao_gym.types import Completion, Concept, Failed, Request, Trajectory, Update, Weights

_POLL_SECONDS = 0.1
_CLOSE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class _Call:
    rollout: int
    turn: int


@dataclass(frozen=True, slots=True)
class _Train:
    version: int
    rollouts: tuple[int, ...]
    lag_mean: float
    lag_max: int


@dataclass(frozen=True, slots=True, eq=False)
class _Evaluation:
    version: int
    concepts: tuple[Concept, ...]
    started: int
    weights: Weights


_Message: TypeAlias = Completion | FaultHandled | SaoGymError | Done
"""What a thread says to the loop's."""


class LiveExecutor:
    """`Executor` on the wall clock."""

    def __init__(
        self,
        *,
        engine: Engine,
        trainer: Trainer,
        evaluator: Evaluator | None,
        workers: int,
        weights: Weights,
        faults: Faults | None = None,
        patience: Patience | None = None,
    ) -> None:
        """`workers`: environments that act at the same time; `weights`: those of version 0."""
        self._trainer, self._evaluator = trainer, evaluator
        self._faults, self._patience = faults or Faults(), patience or Patience()
        self._published = weights
        self._version = 0
        self._unpublished: dict[int, Update] = {}
        self._agenda = Agenda(self._faults, self._patience)
        self._publish_free = 0.0
        self._calls: dict[int, int] = {}
        """Rollout -> turn of the call that the environment has not answered."""
        self._requests: dict[int, Request] = {}
        self._training: int | None = None
        self._evaluations: list[_Evaluation] = []
        self._began, self._before, self._now = time.monotonic(), 0.0, 0.0
        self._silence = 0.0
        self._interrupted = False
        self._closing = threading.Event()
        self._inbox: queue.SimpleQueue[_Message] = queue.SimpleQueue()
        self._heard: deque[_Message] = deque()
        self._engine = EngineThread(
            engine, weights=weights, faults=self._faults, patience=self._patience, inbox=self._inbox
        )
        self._environments = Workers("environment", workers, self._inbox)
        self._learner = Workers("learner", 1, self._inbox)
        self._evaluation = Workers("evaluation", 1, self._inbox)
        self._disposals: list[threading.Thread] = []

    @property
    def now(self) -> float:
        """Wall seconds when the last event was handed out; all that follows from it is of then.

        Those of the run that this one continues and declared leaps are included.
        """
        return self._now

    @property
    def interrupted(self) -> bool:
        return self._interrupted

    def weights(self) -> Weights:
        return self._published

    def interrupt(self) -> None:
        self._interrupted = True

    def next(self) -> Event | None:
        waited = 0.0
        while True:
            self._watch()
            if (event := self._take()) is not None:
                self._silence, self._now = 0.0, self._clock()
                return event
            idle = not self._under_way() and self._inbox.empty()
            if idle or (self._interrupted and waited >= _POLL_SECONDS):
                self._now = self._clock()
                return None
            if self._silence >= self._patience.watchdog:
                raise StalledError(f"no event for {self._patience.watchdog:g} s")
            seconds = self._wait()
            waited += seconds
            self._silence += seconds

    def waiting_for(self) -> str:
        updates = [] if self._training is None else [self._training]
        evaluations = [evaluation.version for evaluation in self._evaluations]
        return (
            f"environment: rollouts {some(self._calls)}; engine: {some(self._requests)}; "
            f"learner: updates {some(updates)}; publishes {some(self._agenda.publishes)}; "
            f"evaluation: versions {some(evaluations)}"
        )

    def close(self) -> None:
        """End the threads. One that hangs is not waited for; it ends with the process."""
        self._closing.set()
        parts = (self._engine, self._environments, self._learner, self._evaluation)
        for part in parts:
            part.close()
        until = time.monotonic() + _CLOSE_SECONDS
        for part in parts:
            part.join(until)
        for thread in self._disposals:
            thread.join(max(0.0, until - time.monotonic()))
        self._trainer.close()

    # -- what the loop asks for ----------------------------------------------------------------

    def emit(self, event: Event) -> None:
        self._agenda.add(self.now, event)

    def ask(self, rollout: int, call: EnvironmentCall) -> None:
        self._calls[rollout] = call.turn
        self._environments.submit(_Call(rollout, call.turn), lambda: self._call(rollout, call))

    def dispose(self, env: TextEnv) -> None:
        thread = threading.Thread(target=boundary.close, args=(env,), name="disposal", daemon=True)
        thread.start()
        self._disposals = [old for old in self._disposals if old.is_alive()]
        self._disposals.append(thread)

    def sample(self, request: Request) -> None:
        self._requests[request.rollout] = request
        self._engine.submit(request)

    def release(self, rollout: int) -> None:
        self._calls.pop(rollout, None)
        self._requests.pop(rollout, None)
        self._engine.release(rollout)

    def train(
        self, version: int, batch: Sequence[Trajectory], lag_mean: float, lag_max: int
    ) -> None:
        self._training = version
        now = self.now
        begin = self._agenda.attempts("update_raises", version, now, lost=0.0)
        if begin is None:
            return
        poison = self._faults.struck("update_nan", version) is not None
        if poison:
            detail = "gradients were not finite"
            self._agenda.tell(now, "update_nan", version, "skipped", detail)
        pause = begin - now

        def work() -> Update:
            if self._closing.wait(pause):
                raise RunError("closed before the update began")
            self._trainer.start(batch, poison=poison)
            return self._trainer.finish()

        rollouts = tuple(trajectory.rollout for trajectory in batch)
        self._learner.submit(_Train(version, rollouts, lag_mean, lag_max), work)

    def publish(self, version: int) -> None:
        # the engine runs in this process: the transfer is the load itself, and takes no time
        seconds = 0.0
        if (rule := self._faults.struck("publish_late", version)) is not None:
            seconds = rule.times * SHORTEST
            detail = f"{seconds:g} s under way"
            self._agenda.tell(self.now, "publish_late", version, "late", detail)
        begin = max(self.now, self._publish_free)  # one at a time, so versions arrive in order
        sent = self._agenda.attempts("publish_lost", version, begin, lost=seconds)
        # behind one that is lost for good nothing arrives: the run breaks
        self._publish_free = math.inf if sent is None else sent + seconds
        if sent is not None:
            self._agenda.add(self._publish_free, PolicyPublished(version=version))

    def load(self, version: int) -> None:
        new = self._unpublished.pop(version).weights
        if new is not None:
            self._published = new
        self._version = version
        stale = self._faults.struck("engine_stale", version) is not None
        self._engine.load(new, self._published, version, stale=stale)

    def evaluate(self, version: int, concepts: Sequence[Concept], started: int) -> None:
        self._evaluate(_Evaluation(version, tuple(concepts), started, self._published))

    # -- hearing -------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Look after the threads: an engine that died, calls that take too long."""
        self._engine.watch()
        limit = self._patience.environment
        for task in self._environments.overdue(limit):
            self._heard.append(Done(task, timed_out(limit), limit))

    def _take(self) -> Event | None:
        """The next event that is due or that was heard of."""
        while True:
            item: Event | SaoGymError | None = self._agenda.take(self._clock())
            if item is None:
                if not self._heard:
                    return None
                item = self._understood(self._heard.popleft())
            if isinstance(item, SaoGymError):
                raise item
            if item is not None:
                return item

    def _wait(self) -> float:
        """Listen to the threads for a while; returns the seconds that it took."""
        began = time.monotonic()
        seconds = min(_POLL_SECONDS, self._agenda.seconds_left(self._clock()))
        with contextlib.suppress(queue.Empty):
            self._heard.append(self._inbox.get(timeout=seconds))
        return time.monotonic() - began

    def _under_way(self) -> bool:
        training = self._training is not None
        return any((self._calls, self._requests, self._agenda, self._evaluations, training))

    def _understood(self, message: _Message) -> Event | SaoGymError | None:
        """What a message leads to; None if it is of no interest, or led to something later."""
        match message:
            case Completion(rollout=rollout):
                known = self._requests.pop(rollout, None) is not None
                return TurnSampled(completion=message) if known else None
            case FaultHandled() | SaoGymError():
                return message
            case Done(task=_Call() as call):
                return self._answered(call, message)
            case Done(result=BaseException() as error):
                return broken(error)
            case Done(task=_Train() as task, result=update):
                return self._trained(task, update)
            case Done(task=evaluation, result=scores):
                self._evaluations.remove(evaluation)
                for score in scores:
                    self.emit(score.event(evaluation.version, evaluation.started))
                return None
            case _:
                assert_never(message)

    def _answered(self, call: _Call, done: Done) -> Event | SaoGymError | None:
        if self._calls.get(call.rollout) != call.turn:
            return None
        if isinstance(done.result, Exception):
            return broken(done.result)
        del self._calls[call.rollout]
        lost = isinstance(done.result, BaseException)
        answer: boundary.Step | Failed = WORKER_LOST if lost else done.result
        return answered(call.rollout, call.turn, answer, done.seconds)

    def _trained(self, task: _Train, update: Update) -> UpdateFinished:
        self._training = None
        self._unpublished[task.version] = update
        if (rule := self._faults.struck("clock_jumps", task.version)) is not None:
            self._before += rule.leap
            detail = f"time leapt by {rule.leap:g} s"
            self._agenda.tell(self.now, "clock_jumps", task.version, "late", detail)
        return UpdateFinished(
            version=task.version,
            rollouts=task.rollouts,
            lag_mean=task.lag_mean,
            lag_max=task.lag_max,
            metrics=update.metrics,
        )

    # -- inside --------------------------------------------------------------------------------

    def _clock(self) -> float:
        return time.monotonic() - self._began + self._before

    def _call(self, rollout: int, call: EnvironmentCall) -> boundary.Step | Failed:
        """Runs on an environment thread."""
        if self._calls.get(rollout) != call.turn:
            return WORKER_LOST  # dropped while it waited for a thread; nobody hears this
        return suffer(call, self._faults.environment(rollout, call.turn), self._closing)

    def _evaluate(self, evaluation: _Evaluation) -> None:
        evaluator = self._evaluator
        assert evaluator is not None
        self._evaluations.append(evaluation)
        self._evaluation.submit(
            evaluation, lambda: evaluator.evaluate(evaluation.weights, evaluation.concepts)
        )

    # -- state ---------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        assert self._training is None
        self._keep_faults()
        held = self._published
        return {
            "now": self.now,
            "agenda": self._agenda.state_dict(),
            "unanswered": sorted(self._calls),
            "requests": list(self._requests.values()),
            "evaluations": [
                # weights only if they are not the published ones, which stand below
                (e.version, e.concepts, e.started, None if e.weights is held else e.weights)
                for e in self._evaluations
            ],
            "ticks": self._engine.ticks,
            "publish_free": self._publish_free,
            "version": self._version,
            "published": self._published,
            "unpublished": dict(self._unpublished),
            "learner": self._trainer.state(),
        }

    def load_state_dict(self, state: dict[str, Any], calls: Mapping[int, EnvironmentCall]) -> None:
        self._began, self._before = time.monotonic(), state["now"]
        self._now = state["now"]
        self._publish_free = state["publish_free"]
        self._agenda.load_state_dict(state["agenda"])
        self._version, self._published = state["version"], state["published"]
        self._unpublished = dict(state["unpublished"])
        self._trainer.restore(state["learner"])
        self._engine.ticks = state["ticks"]
        self._engine.load(self._published, self._published, self._version)
        for request in state["requests"]:
            self.sample(request)
        for rollout, call in calls.items():
            self.ask(rollout, call)
        for version, concepts, started, weights in state["evaluations"]:
            held = self._published if weights is None else weights
            self._evaluate(_Evaluation(version, tuple(concepts), started, held))

    def _keep_faults(self) -> None:
        """What the engine thread told of faults becomes part of the record; the rest stays."""
        while not self._inbox.empty():
            self._heard.append(self._inbox.get())
        for event in [message for message in self._heard if isinstance(message, FaultHandled)]:
            self._heard.remove(event)
            self.emit(event)
