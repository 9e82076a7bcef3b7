"""The seams. A plug-in is a plain class that fits one of these; nothing is inherited.

An **environment** is a `gymnasium.Env` with `Text` spaces. The concept's parameters arrive through
`reset(seed=, options={"concept": {...}})` and are read back from `info["concept"]`. From `step`
`info["record"]`, a JSON-like dict, is kept in the log as it is. What it may offer besides stands in
`ReferenceSolver`, `LiveConcept`, `LateReward` and `Restorable`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

import gymnasium as gym

from sao_gym.events import Evaluated, Event
from sao_gym.types import (
    Completion,
    Concept,
    Request,
    Task,
    Trajectory,
    Update,
    Weights,
)

TextEnv: TypeAlias = "gym.Env[str, str]"


@runtime_checkable
class ReferenceSolver(Protocol):
    """An environment that knows its own solution: for warm starts, the oracle and gold checks."""

    def reference_action(self) -> str:
        """The right next action in the present state; following it to the end scores 1."""
        ...

    def valid_actions(self) -> Sequence[str]:
        """Well-formed actions in the present state, right and wrong (never empty)."""
        ...


@runtime_checkable
class LiveConcept(Protocol):
    """An environment whose concept can change inside an episode (`inflight: live`)."""

    def set_concept(self, params: Mapping[str, Any]) -> None: ...


@runtime_checkable
class LateReward(Protocol):
    """An environment that can score a finished episode under other parameters
    (`inflight: reward_late`)."""

    def score(self, params: Mapping[str, Any]) -> float:
        """The episode's total reward, had it been judged under `params`."""
        ...


@runtime_checkable
class Restorable(Protocol):
    """An environment whose episode can be saved and continued in another instance.

    Of any other a checkpoint keeps the actions, and replays them.
    """

    def get_state(self) -> Any:
        """The episode so far, as plain data (`sao_gym.plain`)."""
        ...

    def set_state(self, state: Any) -> None:
        """Continue an episode; `reset` with the same seed and concept came before."""
        ...


class Agent(Protocol):
    """Turns observations into tokens and sampled tokens into an action. Pure; holds no weights."""

    max_new_tokens: int
    stop_ids: frozenset[int]
    closing: tuple[int, ...]
    """What a chat format needs after an action that `max_new_tokens` cut off."""

    def begin(self, observation: str) -> tuple[int, ...]:
        """Tokens of the prompt that opens an episode."""
        ...

    def observe(self, observation: str) -> tuple[int, ...]:
        """Tokens to append after an action. History is never tokenised again."""
        ...

    def act(self, action_ids: Sequence[int]) -> str:
        """The environment action that the sampled tokens spell."""
        ...

    def spell(self, action: str) -> tuple[int, ...]:
        """Tokens of an action, the stop token included: the inverse of `act`."""
        ...


@runtime_checkable
class Reopening(Protocol):
    """An agent that goes on in a new segment when the history has filled the policy's context.

    The old segment stays as it was sampled; the new one begins with these tokens, and then the last
    turns, word for word.
    """

    def reopen(self, observation: str, left_out: int) -> tuple[int, ...] | None:
        """Tokens of the opening observation again, told that `left_out` turns are not shown.

        None: it does not go on; the episode is truncated.
        """
        ...


class Engine(Protocol):
    """Samples tokens: token ids in; token ids, log-probs and versions out."""

    @property
    def active(self) -> int:
        """Requests being decoded."""
        ...

    @property
    def version(self) -> int:
        """Of the weights that it holds."""
        ...

    def submit(self, request: Request) -> None:
        """Sample from the next tick on. With `restart` what it holds of the rollout is void."""
        ...

    def step(self) -> Sequence[Completion]:
        """One decode tick: every active sequence advances by one token."""
        ...

    def load(self, weights: Weights | None, version: int) -> None:
        """Swap the weights between two ticks; tokens sampled from now on carry `version`.

        None: the version's weights equal the present ones, nothing is swapped or rebuilt.
        """
        ...

    def release(self, rollout: int) -> None:
        """Forget a rollout: cancel its request if one is active, free its KV cache."""
        ...

    def holds(self, weights: Weights) -> bool:
        """Whether what it samples with are `weights`, by a checksum computed on both sides."""
        ...

    def restart(self) -> None:
        """Come up again after a failure: every rollout forgotten, the weights whatever they are."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Everything but the weights, caches included, so that taking it changes nothing."""
        ...

    def load_state_dict(self, state: dict[str, Any], weights: Weights) -> None:
        """Continue from `state` with the weights that were held then."""
        ...


class Learner(Protocol):
    """Turns trajectories into new weights; owns no clock and starts no work."""

    group_size: int
    """Rollouts per task."""
    batch_size: int
    """Rollouts per update."""
    relative_cost: float
    """Cost of an update in policy forward-backward passes; scales `time.update`."""

    def select(self, waiting: Sequence[Trajectory]) -> Sequence[int]:
        """Rollout ids to train on now, oldest first, or nothing. A pure function of `waiting`."""
        ...

    def update(self, batch: Sequence[Trajectory]) -> Update: ...

    def state_dict(self) -> dict[str, Any]:
        """All that later updates depend on, as plain data and tensors (`sao_gym.plain`)."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


@runtime_checkable
class SelfTesting(Protocol):
    """A learner that checks itself on rollouts of its starting policy, before a run begins."""

    def self_test(self, rollouts: Sequence[Trajectory]) -> None:
        """Raise RunError unless every token scores as it was sampled: the ratio is 1."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerSetup:
    """What a learner is built from: `Learner(setup, config)`."""

    model: Any
    """The warm-started policy, a `transformers` causal LM. The learner owns it from now on."""
    seed: int
    pad_id: int
    demonstrate: Callable[[Concept, Task], Trajectory]
    """The reference solution of a task under a concept (for the oracle)."""


class Trainer(Protocol):
    """Runs a learner's updates, one at a time, here or in another process."""

    def start(self, batch: Sequence[Trajectory], *, poison: bool = False) -> None:
        """`poison`: gradients come out as NaN (the fault `update_nan`)."""
        ...

    def finish(self) -> Update:
        """The result of the update that was started; waits for it."""
        ...

    def state(self) -> bytes:
        """The learner's state between two updates (`sao_gym.plain`)."""
        ...

    def restore(self, state: bytes) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Score:
    """Mean reward of a policy over the instances of one concept."""

    concept: str
    score: float | None
    """None if every instance failed."""
    instances: int
    """Those that did not fail."""

    def event(self, version: int, started: int) -> Evaluated:
        """What an executor tells the loop of it."""
        return Evaluated(
            version=version,
            concept=self.concept,
            score=self.score,
            instances=self.instances,
            started=started,
        )


class Evaluator(Protocol):
    """Scores a policy on fixed instances, in isolation from the run."""

    def evaluate(self, weights: Weights | None, concepts: Sequence[Concept]) -> Sequence[Score]: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any], weights: Weights) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentCall:
    """One call to an environment."""

    env: TextEnv
    task: Task
    turn: int
    """0: `reset`; n: `step` with the n-th action."""
    concept: Concept | None
    """Of `reset`: the concept. Of `step`: what the environment is moved to first
    (`LiveConcept`), if anything."""
    action: str = ""


class Executor(Protocol):
    """Where work happens and what time it is. The loop asks for work and is told events.

    Virtual: a discrete-event simulation. Live: the wall clock, threads, real machines.
    """

    @property
    def now(self) -> float: ...

    def emit(self, event: Event) -> None:
        """Hand the loop its own event, at the present instant, in its turn."""
        ...

    def ask(self, rollout: int, call: EnvironmentCall) -> None:
        """Leads to `EnvironmentStepped(turn)` or `RolloutFailed`."""
        ...

    def dispose(self, env: TextEnv) -> None:
        """Close an environment, which may still be at work or hang."""
        ...

    def sample(self, request: Request) -> None:
        """Leads to `TurnSampled`."""
        ...

    def release(self, rollout: int) -> None:
        """The rollout is over: nothing more is to be said of it."""
        ...

    def train(
        self, version: int, batch: Sequence[Trajectory], lag_mean: float, lag_max: int
    ) -> None:
        """Leads to `UpdateFinished(version)`."""
        ...

    def publish(self, version: int) -> None:
        """Send what update `version` made to the engine. Leads to `PolicyPublished(version)`."""
        ...

    def load(self, version: int) -> None:
        """`PolicyPublished(version)` is being handled: the engine takes the weights now."""
        ...

    def evaluate(self, version: int, concepts: Sequence[Concept], started: int) -> None:
        """Evaluate the published policy on the side. Leads to one `Evaluated` per concept."""
        ...

    def next(self) -> Event | None:
        """Wait for what happens next; None if nothing will, or not soon and `interrupted`.

        Raises StalledError if nothing happened for as long as the watchdog waits, RunError if a
        part broke for good.
        """
        ...

    def waiting_for(self) -> str:
        """What is under way, by part and with the numbers of rollouts and updates, in one line."""
        ...

    def weights(self) -> Weights:
        """Of the published policy."""
        ...

    @property
    def interrupted(self) -> bool: ...

    def interrupt(self) -> None:
        """Ask the loop to end the run soon. Safe to call from a signal handler."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Time, what is pending, engine, learner and evaluation. No update may be under way.

        `unanswered` names the rollouts whose last call to the environment has yet to be made
        again: what it did is not part of the state.
        """
        ...

    def load_state_dict(self, state: dict[str, Any], calls: Mapping[int, EnvironmentCall]) -> None:
        """Continue from `state`; `calls` holds the call of every rollout in `unanswered`."""
        ...

    def close(self) -> None: ...
