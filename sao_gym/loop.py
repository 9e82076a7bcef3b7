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

A checkpoint is what this file and the executor hold, after an event was applied and before
anything was decided, while no update is under way. Given it, `run` decides and goes on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, assert_never

from sao_gym import events as ev
from sao_gym import plain
from sao_gym.acting import Acting
from sao_gym.admission import free_slots
from sao_gym.clocks import RunClocks
from sao_gym.drift import Drift
from sao_gym.errors import FailuresError, RunError, SaoGymError, StalledError, some
from sao_gym.events import DropReason, Event
from sao_gym.failures import FailureCount
from sao_gym.guards import Guards, Thresholds
from sao_gym.limits import Bounds, Limits
from sao_gym.pool import EnvironmentPool
from sao_gym.protocols import Agent, Executor, Learner, TextEnv
from sao_gym.stream import TaskStream
from sao_gym.timeline import Timeline
from sao_gym.types import Concept, Task, Trajectory
from sao_gym.waiting import Waiting, lags


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
    checkpoint_every: int | None = None,
    guards: Guards | None = None,
    resume: bytes | None = None,
) -> Iterator[tuple[float, Event]]:
    """Yield (seconds, event) until a budget is reached, the last of them `RunEnded`.

    Only `group_size`, `batch_size` and `select` of the learner are used here; its updates are the
    executor's work. `checkpoint_every`: updates between two `CheckpointTaken`, which change nothing
    else. `resume`: the state of one, to go on from. After `executor.interrupt()` the update under
    way is finished, a last checkpoint taken and the run ended.

    Raises, after `RunEnded`: FailuresError above `limits.stop_above`, StalledError if work is open
    but nothing can happen any more, RunError if a part broke or the guards stopped the training.
    """
    clocks = RunClocks(executor)
    drift = Drift(timeline, clocks, seed=seed)
    pool = EnvironmentPool(make_environment)
    loop = _Loop(
        clocks=clocks,
        drift=drift,
        acting=Acting(agent, executor, pool, drift, context=limits.context),
        learner=learner,
        executor=executor,
        limits=limits,
        bounds=Bounds(limits),
        rollouts=math.inf if limits.rollouts is None else limits.rollouts,
        evaluate_every=evaluate_every,
        stream=TaskStream(seed=seed, group_size=learner.group_size, tasks=limits.tasks),
        failures=FailureCount(stop_above=limits.stop_above, after=limits.failures_after),
        guards=guards or Guards(Thresholds()),
        checkpoint_every=checkpoint_every or math.inf,
    )
    if resume is None:
        loop.follow_drift()
    else:
        loop.load_state_dict(plain.loads(resume))
    reason: str | None = None
    error: SaoGymError | None = None
    while reason is None:
        happened: list[Event] = []
        try:
            reason = loop.advance(happened)
        except SaoGymError as raised:
            reason, error = loop.broken(raised)
        for event in happened:
            yield executor.now, event
    for event in loop.end(reason):
        yield executor.now, event
    if error is not None:
        raise error


@dataclass(slots=True, kw_only=True)
class _Loop:
    """All mutable state of a run, and one method for each kind of event that changes it."""

    clocks: RunClocks
    drift: Drift
    acting: Acting
    learner: Learner
    executor: Executor
    limits: Limits
    bounds: Bounds
    rollouts: float
    """Budget of rollouts."""
    evaluate_every: int | None
    stream: TaskStream
    failures: FailureCount
    guards: Guards
    checkpoint_every: float

    trained: int = 0
    """Updates finished: the learner's own version, the published one plus what is on its way."""
    admitted: int = 0
    waiting: Waiting = field(default_factory=Waiting)
    training: tuple[Trajectory, ...] = ()
    suspect: tuple[Trajectory, ...] = ()
    """The batch of the last update: what to look at if the guards stop the run."""
    dropping: dict[int, ev.RolloutDropped] = field(default_factory=dict)
    """Decided, but not yet handled."""
    evaluated: int = -1
    """The last version sent to evaluation."""
    evaluations: int = 0
    """`Evaluated` events still to come."""
    undecided: bool = False
    """The last event was applied before the checkpoint that was loaded."""

    def advance(self, happened: list[Event]) -> str | None:
        """Wait for an event, apply it and decide. Returns why the run is over, or None.

        What is to be yielded is added to `happened`. After a restored event only the decision is
        still to come.
        """
        if self.undecided:
            self.undecided = False
            return self.decide()
        event = self.executor.next()
        if event is None and not self.executor.interrupted:
            raise StalledError("nothing can happen any more")
        if event is not None:
            happened.append(event)
            self.apply(event)
        stop = self.executor.interrupted and not self.training
        due = isinstance(event, ev.UpdateFinished) and self.trained % self.checkpoint_every == 0
        if stop or due:
            state = plain.dumps(self.state_dict())
            happened.append(ev.CheckpointTaken(update=self.trained, scheduled=due, state=state))
        return "interrupted" if stop else self.decide()

    def follow_drift(self) -> None:
        """Announce the change points that the clocks have reached."""
        while (change := self.drift.due()) is not None:
            self.executor.emit(change)

    # -- events ------------------------------------------------------------------------------

    def apply(self, event: Event) -> None:
        match event:
            case ev.EnvironmentStepped():
                self.acting.environment_stepped(event)
            case ev.TurnSampled(completion=completion):
                self.clocks.tokens += len(completion.action_ids)
                self.acting.turn_sampled(event)
            case ev.RolloutStarted(rollout=rollout):
                successor = self.acting.open[rollout].successor
                if successor is None:
                    self.acting.begin(event)
                else:
                    self._abort(rollout, successor)
            case ev.RolloutFinished(trajectory=trajectory):
                self.acting.finished(trajectory.rollout)
                self.clocks.completed += 1
                self.waiting.add(trajectory)
                if self.stream.given_up(trajectory.task):
                    self._lose(trajectory.task, trajectory.concept_start)
            case ev.RolloutDropped(rollout=rollout):
                del self.dropping[rollout]
            case ev.RolloutFailed():
                self._failed(event)
            case ev.UpdateFinished():
                self._updated(event)
            case ev.PolicyPublished(version=version):
                self.executor.load(version)
                self.clocks.version = version
                if self.evaluate_every and version % self.evaluate_every == 0:
                    self._evaluate()
            case ev.ConceptChanged():
                self._concept_changed(event)
            case ev.Evaluated():
                self.evaluations -= 1
            case ev.FaultHandled() | ev.AlarmRaised():
                pass  # told to whoever watches
            case ev.CheckpointTaken() | ev.RunEnded():
                raise AssertionError("these are the loop's own")
            case _:
                assert_never(event)
        self.follow_drift()

    def _failed(self, event: ev.RolloutFailed) -> None:
        rollout = self.acting.close(event.rollout)
        self.admitted -= 1
        self.failures.add(event.failure)
        self._lose(rollout.task, rollout.concept_start)

    def _updated(self, event: ev.UpdateFinished) -> None:
        self.trained = event.version
        self.clocks.consumed += len(event.rollouts)
        for alarm in self.guards.observe(event, self.training):
            self.executor.emit(alarm)
        self.suspect, self.training = self.training, ()
        self.waiting.learner_moved()
        self.executor.publish(event.version)

    def _concept_changed(self, event: ev.ConceptChanged) -> None:
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
        """Drop, train, admit; return why the run is over, or None.

        Raises FailuresError or RunError if too much has gone wrong.
        """
        if self.failures.exceeded(self.clocks.completed):
            raise FailuresError(self.failures.line(self.clocks.completed))
        if self.guards.fatal is not None:
            raise RunError(self.guards.fatal, batch=self.suspect)
        reason = self.bounds.reached(self.clocks)
        if reason is None:
            self._drop_stale()
            self._train()
            self._admit()
            reason = self._drained()
        if reason is None:
            return None
        if self.evaluate_every and self.evaluated != self.clocks.version:
            self._evaluate()
        return None if self.evaluations else reason

    def _drained(self) -> str | None:
        """All rollouts of the budget have started, ended and been used as far as they can be."""
        busy = self.acting.open or self.training or self.waiting.fresh
        if busy or self.clocks.version != self.trained:
            return None
        if self.clocks.started >= self.rollouts:
            return "rollouts"
        return "tasks" if self.stream.exhausted else None

    def _drop_stale(self) -> None:
        """Drop waiting trajectories that the learner may no longer use."""
        for trajectory in self.waiting.take_older_than(self.trained - self.limits.max_lag):
            self._drop(trajectory.rollout, "stale", self._lag(trajectory.oldest_version))
            self._lose(trajectory.task, trajectory.concept_start)

    def _train(self) -> None:
        """Start an update if the learner is idle and finds a batch."""
        if self.training or not self.waiting.fresh:
            return
        if not (chosen := self.learner.select(self.waiting.look())):
            return
        self.training = batch = self.waiting.take(chosen)
        self.executor.train(self.trained + 1, batch, *lags(batch, self.trained))

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
        for _ in range(room):
            if self.stream.exhausted or self.clocks.started >= self.rollouts:
                return
            task, concept = self.stream.next(self.drift.concept)
            event = ev.RolloutStarted(
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
        for trajectory in self.waiting.take_group(task.index):
            self._drop(trajectory.rollout, "group_abandoned", self._lag(trajectory.oldest_version))

    def _evaluate(self) -> None:
        concepts = self.drift.evaluated()
        self.evaluated = self.clocks.version
        self.evaluations += len(concepts)
        self.executor.evaluate(self.clocks.version, concepts, self.clocks.started)

    def _lag(self, oldest: int | None) -> int:
        return 0 if oldest is None else self.trained - oldest

    def _drop(self, number: int, reason: DropReason, lag: int) -> None:
        self.admitted -= 1
        self.dropping[number] = ev.RolloutDropped(rollout=number, reason=reason, lag=lag)
        self.executor.emit(self.dropping[number])

    # -- the end -----------------------------------------------------------------------------

    def end(self, reason: str) -> Iterator[Event]:
        """Close everything; every rollout without a fate is dropped visibly."""
        self.acting.close_idle()
        yield from self.dropping.values()
        closed = [(number, self.acting.close(number)) for number in list(self.acting.open)]
        self.clocks.started -= sum(not rollout.begun for _, rollout in closed)  # nobody was told
        lost = [(number, rollout.oldest_version) for number, rollout in closed if rollout.begun]
        lost += [(t.rollout, t.oldest_version) for t in (*self.training, *self.waiting)]
        for number, oldest in sorted(lost):
            yield ev.RolloutDropped(rollout=number, reason="run_ended", lag=self._lag(oldest))
        yield ev.RunEnded(reason=reason, clocks=self.clocks.read())

    def broken(self, error: SaoGymError) -> tuple[str, SaoGymError]:
        """Why a run is over that `error` ended, and the error that tells all."""
        match error:
            case StalledError():
                return "stalled", StalledError(f"{error}; {self._waiting_line()}")
            case FailuresError():
                return "failures", error
            case RunError():
                error.batch = error.batch or self.training
        return "broken", error

    def _waiting_line(self) -> str:
        waiting = some([trajectory.rollout for trajectory in self.waiting])
        needed, limits = self.learner.batch_size, self.limits
        return (
            f"at {self.executor.now:.3f} s, version {self.clocks.version}: open rollouts "
            f"{some(self.acting.open)}, waiting {waiting} of the {needed} for a batch, "
            f"cluster.slots {limits.slots}, max_lag {limits.max_lag}; {self.executor.waiting_for()}"
        )

    def state_dict(self) -> dict[str, Any]:
        """Everything that is not built anew from the scenario. No update may be under way."""
        executor = self.executor.state_dict()
        acting = self.acting.state_dict(busy=executor["unanswered"])
        return (
            {name: getattr(self, name) for name in _PLAIN}
            | {name: getattr(self, name).state_dict() for name in _PARTS}
            | {"acting": acting, "executor": executor}
        )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up a run after the event that `state` followed."""
        for name in _PLAIN:
            setattr(self, name, state[name])
        for name in _PARTS:
            getattr(self, name).load_state_dict(state[name])
        calls, lost = self.acting.rebuild(state["acting"], state["executor"]["unanswered"])
        self.executor.load_state_dict(state["executor"], calls)
        for failed in lost:
            self.executor.emit(failed)
        self.undecided = True


_PLAIN = ("trained", "admitted", "evaluated", "evaluations", "dropping")
_PARTS = ("clocks", "drift", "stream", "failures", "guards", "waiting")
