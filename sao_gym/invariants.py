r"""What holds in every run, whatever was declared: checked over the events of one that has ended.

    rollout   started -> turn 0, sampled 1, turn 1, ... -> finished -> trained
                    \--> failed, or dropped (also while it waits): one end, and nothing after it
    version   updated one by one, published one by one after that, sampled from only then

Nothing here knows the loop: numbers are counted again from the events alone, in one pass.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from sao_gym.errors import InvariantError
from sao_gym.events import (
    CheckpointTaken,
    Clocks,
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
from sao_gym.types import Completion, Terminated, Trajectory


class Violation(InvariantError):
    """An invariant does not hold."""

    def __init__(self, what: str, at: int) -> None:
        """`at`: the index of the event, from 0."""
        super().__init__(f"event {at}: {what}")
        self.what, self.at = what, at


class Hang(Violation):
    """The run does not end."""


def check(
    history: Sequence[tuple[float, Event]],
    *,
    slots: int,
    max_lag: int,
    batch_size: int,
    group_size: int = 1,
    reward_late: bool = False,
    context: float = math.inf,
) -> None:
    """Check a whole run, from its first event to `RunEnded`.

    Args:
        history: (seconds, event) as the loop yielded them.
        slots: rollouts that may act at the same time.
        max_lag: versions that the oldest token of a trained rollout may be behind.
        batch_size: rollouts of one update.
        group_size: rollouts that share a task, and are trained on together.
        reward_late: a rollout that ends under another concept is judged by that one.
        context: tokens that a segment may be long.

    Raises:
        Violation: the first event with which something is wrong.
    """
    run = _Run(
        slots=slots,
        max_lag=max_lag,
        batch_size=batch_size,
        group_size=group_size,
        reward_late=reward_late,
        context=context,
    )
    before = -math.inf
    for at, (seconds, event) in enumerate(history):
        run.at = at
        run.expect(seconds >= before, f"time goes back from {before} to {seconds}")
        run.expect(not run.ended, f"{type(event).__name__} after the end of the run")
        before = seconds
        run.see(seconds, event)
    run.at = max(0, len(history) - 1)
    run.expect(run.ended, "the last event is not RunEnded")


@dataclass(slots=True)
class _Rollout:
    """What was seen of one rollout. `turns` answered by the environment, `sampled` by the policy:
    an action is in the making whenever the second is the smaller or equal."""

    started: RolloutStarted
    rewards: list[float] = field(default_factory=list)
    sampled: list[Completion] = field(default_factory=list)
    begun: bool = False
    """The environment answered `reset`."""
    over: bool = False
    """Its environment ended the episode."""
    finished: bool = False
    fate: str = ""
    tokens: int = 0
    weighted: int = 0
    """Sum over the tokens of the version that sampled each."""
    oldest: int | None = None
    newest: int = 0


@dataclass(slots=True, kw_only=True)
class _Run:
    """Everything counted so far."""

    slots: int
    max_lag: int
    batch_size: int
    group_size: int
    reward_late: bool
    context: float
    at: int = 0
    ended: bool = False
    rollouts: list[_Rollout] = field(default_factory=list)
    issued: Counter[int] = field(default_factory=Counter)
    """Task -> rollouts started."""
    lost: Counter[int] = field(default_factory=Counter)
    """Task -> rollouts dropped or failed."""
    acting: int = 0
    open: int = 0
    gone: int = 0
    """Dropped or failed."""
    completed: int = 0
    consumed: int = 0
    tokens: int = 0
    updated: int = 0
    published: int = 0

    def expect(self, holds: bool, what: str) -> None:
        if not holds:
            raise Violation(what, self.at)

    def see(self, seconds: float, event: Event) -> None:
        match event:
            case RolloutStarted():
                self._started(event)
            case EnvironmentStepped():
                self._stepped(event)
            case TurnSampled(completion=done):
                self._sampled(done)
            case RolloutFinished(trajectory=trajectory):
                self._finished(trajectory)
            case RolloutFailed(rollout=number):
                rollout = self._open(number, "failed")
                self.expect(not rollout.finished, f"rollout {number} failed after it had finished")
                self._lost(rollout, "failed")
            case RolloutDropped():
                self._dropped(event)
            case UpdateFinished():
                self._updated(event)
            case PolicyPublished(version=version):
                self.expect(
                    version == self.published + 1,
                    f"version {version} was published after version {self.published}",
                )
                self.expect(version <= self.updated, f"version {version} is published but not made")
                self.published = version
            case Evaluated(version=version):
                self.expect(
                    version <= self.published,
                    f"version {version} was evaluated, but {self.published} is published",
                )
            case CheckpointTaken(update=update):
                self.expect(update == self.updated, f"a checkpoint of update {update} is early")
            case RunEnded(clocks=clocks):
                self._ended(seconds, clocks)

    # -- rollouts ----------------------------------------------------------------------------

    def _started(self, event: RolloutStarted) -> None:
        number, task = event.rollout, event.task.index
        self.expect(number == len(self.rollouts), f"rollout {number} started out of order")
        self.expect(
            event.version <= self.published,
            f"rollout {number} began with version {event.version}, which is not published",
        )
        self.rollouts.append(_Rollout(event))
        self.issued[task] += 1
        self.acting += 1
        self.open += 1
        self.expect(self.acting <= self.slots, f"{self.acting} rollouts act in {self.slots} slots")
        kept, quota = len(self.rollouts) - self.gone, self.published + self.max_lag + 1
        self.expect(
            kept <= quota * self.batch_size,
            f"rollout {number} makes {kept} in use; version {self.published} and max_lag "
            f"{self.max_lag} allow {quota * self.batch_size}",
        )
        again = self.lost[task] if self.group_size > 1 else 0
        self.expect(
            self.issued[task] <= self.group_size + again,
            f"task {task} was issued {self.issued[task]} times to a group of {self.group_size} "
            f"that lost {again}",
        )

    def _open(self, number: int, what: str) -> _Rollout:
        self.expect(0 <= number < len(self.rollouts), f"rollout {number} {what} before its start")
        rollout = self.rollouts[number]
        self.expect(not rollout.fate, f"rollout {number} {what} after it was {rollout.fate}")
        return rollout

    def _stepped(self, event: EnvironmentStepped) -> None:
        number = event.rollout
        rollout = self._open(number, "was stepped")
        expected = len(rollout.rewards) + 1 if rollout.begun else 0
        self.expect(
            event.turn == expected and len(rollout.sampled) == expected and not rollout.over,
            f"rollout {number}: the environment answered turn {event.turn} out of order",
        )
        if rollout.begun:
            rollout.rewards.append(event.reward)
        rollout.begun = True
        rollout.over = event.terminated or event.truncated

    def _sampled(self, done: Completion) -> None:
        number = done.rollout
        rollout = self._open(number, "was sampled")
        expected = len(rollout.sampled) + 1
        self.expect(
            done.turn == expected
            and rollout.begun
            and len(rollout.rewards) == expected - 1
            and not rollout.over
            and not rollout.finished,
            f"rollout {number}: turn {done.turn} was sampled out of order",
        )
        for span in done.versions:
            self.expect(
                span.version <= self.published,
                f"rollout {number}: version {span.version} sampled before its publish",
            )
            self.expect(
                span.version >= rollout.newest, f"rollout {number}: the version sampled decreases"
            )
            rollout.newest = span.version
            rollout.weighted += span.version * span.tokens
            if rollout.oldest is None:
                rollout.oldest = span.version
        rollout.sampled.append(done)
        rollout.tokens += len(done.action_ids)
        self.tokens += len(done.action_ids)

    def _finished(self, trajectory: Trajectory) -> None:
        number = trajectory.rollout
        rollout = self._open(number, "finished")
        self.expect(not rollout.finished, f"rollout {number} finished twice")
        self.expect(
            trajectory.task == rollout.started.task
            and trajectory.concept_start == rollout.started.concept,
            f"rollout {number} finished with another task or concept than it began with",
        )
        self.expect(
            len(rollout.rewards) == len(rollout.sampled) > 0, f"rollout {number} ended in mid-turn"
        )
        self.expect(
            rollout.over or not isinstance(trajectory.outcome, Terminated),
            f"rollout {number} is called terminated, but its environment did not say so",
        )
        self.expect(
            [(t.action_ids, t.logprobs, t.versions) for t in trajectory.turns]
            == [(s.action_ids, s.logprobs, s.versions) for s in rollout.sampled],
            f"rollout {number}: its trajectory holds other tokens than were sampled",
        )
        late = self.reward_late and trajectory.concept_scored != trajectory.concept_start
        self.expect(
            late or [turn.reward for turn in trajectory.turns] == rollout.rewards,
            f"rollout {number}: its trajectory holds other rewards than its steps",
        )
        self.expect(
            _longest_segment(trajectory) <= self.context,
            f"rollout {number} holds a segment longer than the context",
        )
        rollout.finished = True
        self.acting -= 1
        self.completed += 1

    def _dropped(self, event: RolloutDropped) -> None:
        number = event.rollout
        rollout = self._open(number, "was dropped")
        aged = 0 if rollout.oldest is None else self.updated - rollout.oldest
        self.expect(0 <= event.lag <= aged, f"rollout {number} was dropped at lag {event.lag}")
        self.expect(
            event.reason != "stale" or (rollout.finished and event.lag > self.max_lag),
            f"rollout {number} was dropped as stale at lag {event.lag}",
        )
        self._lost(rollout, "dropped")

    def _lost(self, rollout: _Rollout, fate: str) -> None:
        rollout.fate = fate
        self.acting -= not rollout.finished
        self.open -= 1
        self.gone += 1
        self.lost[rollout.started.task.index] += 1

    # -- versions ----------------------------------------------------------------------------

    def _updated(self, event: UpdateFinished) -> None:
        version, numbers = event.version, event.rollouts
        self.expect(version == self.updated + 1, f"update {version} came after {self.updated}")
        self.expect(
            len(numbers) == len(set(numbers)) == self.batch_size,
            f"update {version} took rollouts {numbers}, not {self.batch_size} distinct ones",
        )
        batch = [self._open(number, "was trained") for number in numbers]
        for number, rollout in zip(numbers, batch, strict=True):
            self.expect(rollout.finished, f"rollout {number} was trained before it had finished")
            rollout.fate = "trained"
        groups = Counter(rollout.started.task.index for rollout in batch)
        self.expect(
            set(groups.values()) <= {self.group_size},
            f"update {version} took {dict(groups)} of the tasks, not groups of {self.group_size}",
        )
        self._check_lag(event, batch)
        self.open -= len(batch)
        self.consumed += len(batch)
        self.updated = version

    def _check_lag(self, event: UpdateFinished, batch: Sequence[_Rollout]) -> None:
        learner = event.version - 1
        largest = max(learner - (rollout.oldest or 0) for rollout in batch)
        tokens = sum(rollout.tokens for rollout in batch)
        mean = learner - sum(rollout.weighted for rollout in batch) / tokens
        self.expect(
            event.lag_max == largest, f"lag_max is {event.lag_max}, but its tokens say {largest}"
        )
        self.expect(
            math.isclose(event.lag_mean, mean, rel_tol=1e-9, abs_tol=1e-9),
            f"lag_mean is {event.lag_mean}, but its tokens say {mean}",
        )
        self.expect(largest <= self.max_lag, f"lag {largest} is above max_lag {self.max_lag}")

    # -- the end -----------------------------------------------------------------------------

    def _ended(self, seconds: float, clocks: Clocks) -> None:
        left = [n for n, rollout in enumerate(self.rollouts) if not rollout.fate]
        self.expect(not left, f"rollouts {left[:8]} have no end")
        counted = Clocks(
            started=len(self.rollouts),
            completed=self.completed,
            consumed=self.consumed,
            version=self.published,
            tokens=self.tokens,
            seconds=seconds,
        )
        self.expect(clocks == counted, f"the clocks show {clocks}, counted were {counted}")
        self.ended = True


def _longest_segment(trajectory: Trajectory) -> int:
    """In tokens."""
    longest = length = 0
    for turn in trajectory.turns:
        length = 0 if turn.restart else length
        length += len(turn.observation_ids) + len(turn.action_ids)
        longest = max(longest, length)
    return longest
