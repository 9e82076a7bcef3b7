"""The verbs: everything that can happen in a run, as one closed union of past-tense records.

An event says what happened and carries what a reader needs, never a callback. `to_record` gives
the JSON object of one line of `events.jsonl`: `{"t": seconds, "event": name, ...fields}`.

Fate of a rollout: after `RolloutStarted` it ends in exactly one of
`UpdateFinished.rollouts` (trained on), `RolloutDropped` or `RolloutFailed`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from operator import attrgetter
from typing import Any, Literal, TypeAlias

from sao_gym.types import Completion, Concept, Failed, Task, Trajectory, Truncated

DropReason: TypeAlias = Literal["stale", "concept_changed", "group_abandoned", "run_ended"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
    """Every clock of a run at one instant; a timeline runs on one of them."""

    started: int = 0
    """Rollouts started."""
    completed: int = 0
    """Rollouts finished (not failed)."""
    consumed: int = 0
    """Rollouts trained on."""
    version: int = 0
    """Published policy version."""
    tokens: int = 0
    """Action tokens sampled in finished turns."""
    seconds: float = 0.0
    """Virtual or wall seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConceptChanged:
    """The timeline passed a change point: the start of the run, a drift window's begin or end."""

    segment: int
    """Index of the concept segment that holds (at `window_began`: that is being left)."""
    concept: Concept
    """The concept that holds (at `window_began`: that is being approached)."""
    kind: Literal["start", "abrupt", "gradual", "incremental"]
    phase: Literal["changed", "window_began", "window_ended"]
    clocks: Clocks


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutStarted:
    rollout: int
    task: Task
    concept: Concept
    version: int
    """Published version at the start; what sampled each token stands in `TurnSampled`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentStepped:
    """The environment answered; `turn` 0 is the answer to `reset`, turn n to the n-th action."""

    rollout: int
    turn: int
    observation: str
    reward: float
    terminated: bool
    truncated: bool
    seconds: float
    """How long it took."""
    record: Mapping[str, Any] | None = None
    """What the environment leaves for a reader of the log (`info["record"]`), if anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnSampled:
    """The policy finished an action; `completion.turn` counts from 1."""

    completion: Completion


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutFinished:
    """A trajectory is complete and waits for the learner."""

    trajectory: Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutDropped:
    rollout: int
    reason: DropReason
    lag: int
    """Learner version minus the oldest version in the rollout; 0 if it holds no tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutFailed:
    rollout: int
    failure: Failed


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateFinished:
    """The learner consumed a batch. Nobody samples from the result before `PolicyPublished`."""

    version: int
    rollouts: tuple[int, ...]
    lag_mean: float
    """Token-weighted learner version minus sampling version, when the update began."""
    lag_max: int
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyPublished:
    """The engine samples from `version` from this event on, never before it."""

    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """Side evaluation of the published policy on a fixed instance set of one concept."""

    version: int
    concept: str
    score: float | None
    """Mean reward over the instances; None if the environment failed in all of them."""
    instances: int
    """Those that did not fail."""
    started: int
    """The `started` clock, for plots over rollouts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultHandled:
    """A part of the machinery failed, and what was done about it.

    What fails inside one rollout is not told here but as its `RolloutFailed`.
    """

    fault: str
    """`engine_dies`, `update_raises`, `publish_lost`, ...: a kind of `sao_gym.faults`."""
    key: int
    """Which engine tick, update or publish it struck."""
    attempt: int
    """0 at first, then the number of retries before it."""
    outcome: str
    """`restarted`, `retried`, `reloaded`, `late`, `skipped`, ..."""
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmRaised:
    """Training shows a sign of collapse; see `sao_gym.guards`. The run goes on."""

    alarm: str
    version: int
    """The update that showed it."""
    value: float
    bound: float
    """What `value` has passed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointTaken:
    """The state of the run after the event before this one; who reads it may keep it on a disk."""

    update: int
    """Updates finished."""
    scheduled: bool
    """False: the run was interrupted here. Such a checkpoint has no line in the log."""
    state: bytes = field(repr=False, compare=False)
    """What `sao_gym.loop.run` goes on from (in the form of `sao_gym.plain`). Not in the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded:
    reason: str
    clocks: Clocks


Event: TypeAlias = (
    ConceptChanged
    | RolloutStarted
    | EnvironmentStepped
    | TurnSampled
    | RolloutFinished
    | RolloutDropped
    | RolloutFailed
    | UpdateFinished
    | PolicyPublished
    | Evaluated
    | FaultHandled
    | AlarmRaised
    | CheckpointTaken
    | RunEnded
)


def to_record(time: float, event: Event) -> dict[str, Any]:
    """One event as a JSON-ready object. Turns are not repeated in `RolloutFinished`."""
    return {"t": time, "event": type(event).__name__, **_body(event)}


def _body(event: Event) -> dict[str, Any]:
    match event:
        case EnvironmentStepped(record=record):
            body = _fields(event)
            if record is None:
                del body["record"]
            return body
        case TurnSampled(completion=completion):
            return _fields(completion)
        case RolloutFinished(trajectory=trajectory):
            return _finished(trajectory)
        case RolloutStarted(task=task, concept=concept):
            return {
                "rollout": event.rollout,
                "task": task.index,
                "task_seed": task.seed,
                "concept": concept.id,
                "params": dict(concept.params),
                "version": event.version,
            }
        case RolloutFailed(failure=failure):
            return {"rollout": event.rollout, "kind": failure.kind, "detail": failure.detail}
        case ConceptChanged(concept=concept, clocks=clocks):
            return {
                "segment": event.segment,
                "concept": concept.id,
                "params": dict(concept.params),
                "kind": event.kind,
                "phase": event.phase,
                "clocks": _fields(clocks),
            }
        case UpdateFinished(metrics=metrics):
            return _fields(event) | {"metrics": dict(metrics)}
        case CheckpointTaken(update=update):
            return {"update": update}
        case RunEnded(clocks=clocks):
            return {"reason": event.reason, "clocks": _fields(clocks)}
        case _:
            return _fields(event)


def _finished(done: Trajectory) -> dict[str, Any]:
    restarts = [index for index, turn in enumerate(done.turns) if turn.restart]
    return {
        "rollout": done.rollout,
        "task": done.task.index,
        "concept_start": done.concept_start.id,
        "concept_scored": done.concept_scored.id,
        "reward": done.reward,
        "outcome": type(done.outcome).__name__.lower(),
        "limit": done.outcome.limit if isinstance(done.outcome, Truncated) else None,
        "turns": len(done.turns),
        "observation_ids": [turn.observation_ids for turn in done.turns],
        "rewards": [turn.reward for turn in done.turns],
        "action_tokens": done.action_tokens,
        "oldest_version": done.oldest_version,
        "newest_version": done.newest_version,
        "started_at": done.timing.started,
    } | ({"restarts": restarts} if restarts else {})


def _fields(value: Any) -> dict[str, Any]:
    """The fields of a record as a dict, in order."""
    names = value.__slots__
    return dict(zip(names, _getter(names)(value), strict=True))


@cache
def _getter(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    return attrgetter(*names) if len(names) > 1 else lambda value: (getattr(value, names[0]),)
