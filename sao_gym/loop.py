"""The event loop. Read this file first.

    timeline ---> ConceptChanged
                       |  which world new rollouts are drawn from
                       v
    admission -> RolloutStarted -> EnvironmentStepped -> TurnSampled --+
        ^                            ^       |            (engine)     |
        |                            +-------|-- next turn ------------+
        |                                    v  terminated or truncated
        |   RolloutFailed                RolloutFinished
        |   (machinery broke)                |
        |                                    v
        |   RolloutDropped <- too stale - [ waiting ]
        |                                    |  learner idle and `select` finds a batch
        |                                    v
        +---- PolicyPublished <------- UpdateFinished
              the engine loads the weights when this is handled, never earlier

`run` owns all mutable state and is the only place that reacts to events. For each event: apply
it; then drop what is too stale, train if the learner is idle and a batch is ready, admit while
slots are free; then yield it, with its effects in place. Recorders, metrics and progress bars are
plain `for` loops over the result. What time is (simulated or real) and where work happens is the
executor's business; the loop is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import assert_never

from sao_gym.acting import Acting
from sao_gym.admission import free_slots
from sao_gym.clocks import RunClocks
from sao_gym.drift import Drift
from sao_gym.errors import FailuresError, StalledError, some
from sao_gym.events import (
    ConceptChanged,
    DropReason,
    EnvironmentStepped,
    Evaluated,
    Event,
    PolicyPublished,
    RolloutDropped,
    RolloutFailed,
    RolloutFinished,
    RolloutStarted,
    RunEnded,
    TurnSampled,
    UpdateFinished,
)
from sao_gym.failures import FailureCount
from sao_gym.limits import Limits
from sao_gym.pool import EnvironmentPool
from sao_gym.protocols import Agent, Executor, Learner, TextEnv
from sao_gym.stream import TaskStream
from sao_gym.timeline import Timeline
from sao_gym.types import Concept, Task, Trajectory


def run(
    *,
    seed: int,
    timeline: Timeline,
    make_environment: Callable[[], TextEnv],
    agent: Agent,
    learner: Learner,
    executor: Executor,
    limits: Limits,
    evaluate_every: int | None = None,
) -> Iterator[tuple[float, Event]]:
    """Yield (seconds, event) until a budget is reached, the last of them `RunEnded`.

    Only `group_size`, `batch_size` and `select` of the learner are used here; its updates are the
    executor's work. Raises FailuresError above `limits.stop_above` (after `RunEnded`) and
    StalledError if work is open but nothing can happen any more.
    """
    clocks = RunClocks(executor)
    drift = Drift(timeline, clocks, seed=seed)
    acting = Acting(
        agent=agent,
        executor=executor,
        environments=EnvironmentPool(make_environment),
        drift=drift,
        context=limits.context,
    )
    loop = _Loop(
        clocks=clocks,
        drift=drift,
        acting=acting,
        learner=learner,
        executor=executor,
        limits=limits,
        bounds=limits.bounds(),
        evaluate_every=evaluate_every,
        stream=TaskStream(seed=seed, group_size=learner.group_size),
        failures=FailureCount(stop_above=limits.stop_above, after=limits.failures_after),
    )
    loop.follow_drift()
    while (event := executor.next()) is not None:
        loop.apply(event)
        reason = loop.decide()
        yield executor.now, event
        if reason is not None:
            for last in loop.end(reason):
                yield executor.now, last
            if reason == "failures":
                raise FailuresError(loop.failures.line(loop.clocks.completed))
            return
    stalled = None if executor.interrupted else loop.stall_line()
    for last in loop.end("stalled" if stalled else "interrupted"):
        yield executor.now, last
    if stalled:
        raise StalledError(stalled)


@dataclass(slots=True, kw_only=True)
class _Loop:
    """All mutable state of a run, and one method for each kind of event that changes it."""

    clocks: RunClocks
    drift: Drift
    acting: Acting
    learner: Learner
    executor: Executor
    limits: Limits
    bounds: tuple[tuple[str, str, float], ...]
    evaluate_every: int | None
    stream: TaskStream
    failures: FailureCount

    trained: int = 0
    """Updates finished: the learner's own version, the published one plus what is on its way."""
    admitted: int = 0
    waiting: list[Trajectory] = field(default_factory=list)
    training: tuple[Trajectory, ...] = ()
    dropping: dict[int, RolloutDropped] = field(default_factory=dict)
    """Decided, but not yet handled."""
    fresh: bool = False
    """Whether `waiting` changed since `select` last looked."""
    aged: bool = False
    """Whether something that waits may have become stale since that was last looked at."""
    evaluated: int = -1
    """The last version sent to evaluation."""
    evaluations: int = 0
    """`Evaluated` events still to come."""

    def follow_drift(self) -> None:
        """Announce the change points that the clocks have reached."""
        while (change := self.drift.due()) is not None:
            self.executor.emit(change)

    # -- events ------------------------------------------------------------------------------

    def apply(self, event: Event) -> None:
        match event:
            case EnvironmentStepped():
                self.acting.environment_stepped(event)
            case TurnSampled(completion=completion):
                self.clocks.tokens += len(completion.action_ids)
                self.acting.turn_sampled(event)
            case RolloutStarted(rollout=rollout):
                successor = self.acting.open[rollout].successor
                if successor is None:
                    self.acting.begin(event)
                else:
                    self._abort(rollout, successor)
            case RolloutFinished(trajectory=trajectory):
                self.acting.finished(trajectory.rollout)
                self.clocks.completed += 1
                self.waiting.append(trajectory)
                self.fresh = self.aged = True
            case RolloutDropped(rollout=rollout):
                del self.dropping[rollout]
            case RolloutFailed():
                self._failed(event)
            case UpdateFinished():
                self._updated(event)
            case PolicyPublished(version=version):
                self.executor.load(version)
                self.clocks.version = version
                if self.evaluate_every and version % self.evaluate_every == 0:
                    self._evaluate()
            case ConceptChanged():
                self._concept_changed(event)
            case Evaluated():
                self.evaluations -= 1
            case RunEnded():
                raise AssertionError("the loop alone ends a run")
            case _:
                assert_never(event)
        self.follow_drift()

    def _failed(self, event: RolloutFailed) -> None:
        rollout = self.acting.close(event.rollout)
        self.admitted -= 1
        self.failures.add(event.failure)
        self._lose(rollout.task, rollout.concept_start)

    def _updated(self, event: UpdateFinished) -> None:
        self.trained = event.version
        self.clocks.consumed += len(event.rollouts)
        self.training = ()
        self.fresh = self.aged = True
        self.executor.publish(event.version)

    def _concept_changed(self, event: ConceptChanged) -> None:
        if self.evaluate_every:
            self._evaluate()
        if self.drift.inflight == "abort" and event.phase != "window_began":
            for number in self.acting.overtaken(event.concept):
                self._abort(number, event.concept)

    def _abort(self, number: int, successor: Concept) -> None:
        rollout = self.acting.close(number)
        self._drop(number, "concept_changed", self._lag(rollout.oldest_version))
        self._lose(rollout.task, successor)

    # -- decisions ---------------------------------------------------------------------------

    def decide(self) -> str | None:
        """Drop, train, admit; return why the run is over, or None."""
        reason = self._budget_reached()
        if reason is None:
            self._drop_stale()
            self._train()
            self._admit()
            reason = self._drained()
        if reason is None or reason == "failures":
            return reason
        if self.evaluate_every and self.evaluated != self.clocks.version:
            self._evaluate()
        return None if self.evaluations else reason

    def _budget_reached(self) -> str | None:
        if self.failures.exceeded(self.clocks.completed):
            return "failures"
        for name, clock, bound in self.bounds:
            if self.clocks.value(clock) >= bound:
                return name
        return None

    def _drained(self) -> str | None:
        """All rollouts of the budget have started, ended and been used as far as they can be."""
        limit = self.limits.rollouts
        if limit is None or self.clocks.started < limit:
            return None
        busy = (
            self.acting.open or self.training or self.fresh or self.clocks.version != self.trained
        )
        return None if busy else "rollouts"

    def _drop_stale(self) -> None:
        """Drop waiting trajectories that the learner may no longer use."""
        if not self.aged:
            return
        self.aged = False
        lags = [(t, self._lag(t.oldest_version)) for t in self.waiting]
        stale = [(t, lag) for t, lag in lags if lag > self.limits.max_lag]
        self.waiting = [t for t, lag in lags if lag <= self.limits.max_lag]
        for trajectory, lag in stale:
            self._drop(trajectory.rollout, "stale", lag)
            self._lose(trajectory.task, trajectory.concept_start)

    def _train(self) -> None:
        """Start an update if the learner is idle and finds a batch."""
        if self.training or not self.fresh:
            return
        self.fresh = False
        chosen = self.learner.select(self.waiting)
        if not chosen:
            return
        by_rollout = {trajectory.rollout: trajectory for trajectory in self.waiting}
        batch = tuple(by_rollout.pop(number) for number in chosen)
        self.waiting = list(by_rollout.values())
        self.training = batch
        total = sum(trajectory.action_tokens for trajectory in batch)
        lags = [t.mean_lag(self.trained) * t.action_tokens for t in batch]
        oldest = max(self._lag(trajectory.oldest_version) for trajectory in batch)
        self.executor.train(self.trained + 1, batch, sum(lags) / total, oldest)

    def _admit(self) -> None:
        """Start rollouts while slots are free and what they make can still be used."""
        if len(self.acting.open) >= self.limits.slots:
            return
        room = free_slots(
            running=len(self.acting.open),
            slots=self.limits.slots,
            admitted=self.admitted,
            version=self.clocks.version,
            batch_size=self.learner.batch_size,
            max_lag=self.limits.max_lag,
        )
        if self.limits.rollouts is not None:
            room = min(room, self.limits.rollouts - self.clocks.started)
        for _ in range(room):
            task, concept = self.stream.next(self.drift.concept)
            event = RolloutStarted(
                rollout=self.clocks.started, task=task, concept=concept, version=self.clocks.version
            )
            self.acting.start(event)
            self.clocks.started += 1
            self.admitted += 1
            self.executor.emit(event)
            self.follow_drift()

    def _lose(self, task: Task, concept: Concept) -> None:
        if self.stream.lose(task, concept):
            return
        rest = [t for t in self.waiting if t.task.index == task.index]
        self.waiting = [t for t in self.waiting if t.task.index != task.index]
        for trajectory in rest:
            lag = self._lag(trajectory.oldest_version)
            self._drop(trajectory.rollout, "group_abandoned", lag)

    def _evaluate(self) -> None:
        concepts = self.drift.evaluated()
        self.evaluated = self.clocks.version
        self.evaluations += len(concepts)
        self.executor.evaluate(self.clocks.version, concepts, self.clocks.started)

    def _lag(self, oldest: int | None) -> int:
        return 0 if oldest is None else self.trained - oldest

    def _drop(self, number: int, reason: DropReason, lag: int) -> None:
        self.admitted -= 1
        self.dropping[number] = RolloutDropped(rollout=number, reason=reason, lag=lag)
        self.executor.emit(self.dropping[number])

    # -- the end -----------------------------------------------------------------------------

    def end(self, reason: str) -> Iterator[Event]:
        """Close everything; every rollout without a fate is dropped visibly."""
        self.acting.environments.close()
        yield from self.dropping.values()
        lost: list[tuple[int, int | None]] = []
        for number in list(self.acting.open):
            lost.append((number, self.acting.close(number).oldest_version))
        lost += [(t.rollout, t.oldest_version) for t in (*self.training, *self.waiting)]
        for number, oldest in sorted(lost):
            yield RolloutDropped(rollout=number, reason="run_ended", lag=self._lag(oldest))
        yield RunEnded(reason=reason, clocks=self.clocks.read())

    def stall_line(self) -> str:
        waiting = [trajectory.rollout for trajectory in self.waiting]
        return (
            f"nothing can happen any more at {self.executor.now:.3f} s: open rollouts "
            f"{some(self.acting.open)}, waiting {some(waiting)}, version "
            f"{self.clocks.version}; the learner needs {self.learner.batch_size} a batch, "
            f"cluster.slots is {self.limits.slots}, max_lag {self.limits.max_lag}"
        )
