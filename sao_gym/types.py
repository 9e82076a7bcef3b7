"""The nouns: concepts, turns, trajectories, requests, updates.

Everything here is frozen and knows no clock, model or environment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

Weights: TypeAlias = Mapping[str, Any]
"""A policy's `state_dict`: parameter name -> tensor. Opaque outside engines and learners."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Concept:
    """One state of the world: a name and the parameters given to `Environment.reset`."""

    id: str
    params: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What is asked. Rollouts of one group share a task; every arm draws the same tasks."""

    index: int
    """Position in the task stream; also the group's name."""
    seed: int
    """Given to `Environment.reset(seed=)`."""


class VersionSpan(NamedTuple):
    """`tokens` consecutive tokens sampled by policy `version`."""

    version: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One observation, the action sampled for it, and the reward that followed."""

    observation_ids: tuple[int, ...]
    """Tokens given to the policy since its last action (in the first turn: the prompt)."""
    action_ids: tuple[int, ...]
    """Tokens sampled by the policy, a stop token included."""
    logprobs: tuple[float, ...]
    """Natural log-probability of each action token, recorded by the sampler."""
    versions: tuple[VersionSpan, ...]
    """Which policy version sampled each action token, run-length encoded by the sampler."""
    reward: float
    restart: bool = False
    """A new segment begins: `observation_ids` are all that the policy read, nothing before them."""

    def __post_init__(self) -> None:
        if len(self.logprobs) != len(self.action_ids):
            raise ValueError(
                f"{len(self.action_ids)} action tokens but {len(self.logprobs)} log-probs"
            )
        if sum(span.tokens for span in self.versions) != len(self.action_ids):
            raise ValueError(f"version spans {self.versions} do not cover the action tokens")


class Terminated(NamedTuple):
    """The task ended by its own rules."""


class Truncated(NamedTuple):
    """Something outside the task cut it short."""

    limit: str
    """`environment` (its own truncation), `context` (the model's window)."""


class Failed(NamedTuple):
    """The machinery broke. Never a reward: a failed rollout does not reach a learner."""

    kind: str
    """`environment` (it raised), `contract` (it broke its contract), `engine`, ..."""
    detail: str


Outcome: TypeAlias = Terminated | Truncated | Failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds on the run's clock (virtual or wall)."""

    started: float
    finished: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """One finished rollout: the unit a learner trains on."""

    rollout: int
    task: Task
    concept_start: Concept
    """The concept under which the rollout began."""
    concept_scored: Concept
    """The concept under which its reward was given."""
    turns: tuple[Turn, ...]
    outcome: Terminated | Truncated
    timing: Timing
    reward: float = field(init=False)
    """Summed over the turns."""
    action_tokens: int = field(init=False)
    oldest_version: int = field(init=False)
    """Of all action tokens."""
    newest_version: int = field(init=False)

    def __post_init__(self) -> None:
        """Fill in what is asked for again and again while the trajectory waits."""
        spans = [span for turn in self.turns for span in turn.versions]
        if not spans:
            raise ValueError(f"rollout {self.rollout} holds no action tokens")
        derived = {
            "reward": sum(turn.reward for turn in self.turns),
            "action_tokens": sum(span.tokens for span in spans),
            "oldest_version": min(span.version for span in spans),
            "newest_version": max(span.version for span in spans),
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    def mean_lag(self, version: int) -> float:
        """Token-weighted mean of `version` minus the version that sampled the token."""
        spans = [span for turn in self.turns for span in turn.versions]
        return sum((version - s.version) * s.tokens for s in spans) / self.action_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Ask an engine to continue a token sequence.

    `context_ids` is the whole history of the segment, token in token out; the engine keeps the KV
    cache of a rollout between its turns and feeds only what is new.
    """

    rollout: int
    turn: int
    context_ids: Sequence[int]
    max_new_tokens: int
    stop_ids: frozenset[int] = frozenset()
    """Sampling ends after one of these; the stop token is part of the action."""
    restart: bool = False
    """A new segment: the context does not continue what the engine has seen of the rollout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What an engine sampled for a `Request`: ids, log-probs and versions, token by token."""

    rollout: int
    turn: int
    action_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[VersionSpan, ...]
    stopped: bool
    """True if a stop token ended it, False if `max_new_tokens` did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """What a learner made of one batch."""

    weights: Weights | None
    """The new policy; None if this update left the policy as it was (e.g. critic warm-up)."""
    metrics: Mapping[str, float]
