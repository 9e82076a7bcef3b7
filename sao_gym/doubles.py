"""Test doubles: parts of a run that answer at once and predictably.

For tests of plug-ins and for measuring the loop alone. Each fits the protocol it stands in for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gymnasium as gym

from sao_gym import rng
from sao_gym.events import Event
from sao_gym.executors.trainers import InlineTrainer
from sao_gym.executors.virtual import VirtualExecutor
from sao_gym.faults import Faults, Patience
from sao_gym.latency import Constant, LogNormal, TimeModel
from sao_gym.limits import Limits
from sao_gym.loop import run
from sao_gym.protocols import Agent, Learner, Score, TextEnv
from sao_gym.timeline import Timeline
from sao_gym.types import (
    Completion,
    Concept,
    Request,
    Trajectory,
    Update,
    VersionSpan,
    Weights,
)


class ScriptedEnvironment(gym.Env[str, str]):
    """Ends after as many turns as its seed says; reward 1 for the action `good` at the end.

    The concept parameter `good` is the right action. With `fails`, that share of episodes raises.
    """

    def __init__(self, *, turns: int = 4, vary: bool = False, fails: float = 0.0) -> None:
        self.observation_space = gym.spaces.Text(8, charset="abo")
        self.action_space = gym.spaces.Text(8, charset="ab")
        self._turns, self._vary, self._fails = turns, vary, fails
        self._left, self._good, self._raises = 0, "a", False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        number = 0 if seed is None else seed
        self._good = (options or {}).get("concept", {}).get("good", "a")
        self._left = self._turns
        if self._vary:
            self._left = 1 + int(self._turns * rng.uniform(number, "turns"))
        self._raises = self._fails > 0 and rng.uniform(number, "fails") < self._fails
        return "o", self._info()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if self._raises:
            raise RuntimeError("scripted failure")
        self._left -= 1
        over = self._left <= 0
        return "o", float(over and action == self._good), over, False, self._info()

    def set_concept(self, params: dict[str, Any]) -> None:
        self._good = params.get("good", "a")

    def score(self, params: dict[str, Any]) -> float:
        return float(params.get("good", "a") == "a")

    def _info(self) -> dict[str, Any]:
        return {"concept": {"good": self._good}}


class ScriptedAgent:
    """Two actions, `a` (token 2) and `b` (token 3); every observation is token 1.

    With `reopens` a new segment opens with it, too.
    """

    max_new_tokens = 1
    stop_ids: frozenset[int] = frozenset()
    closing: tuple[int, ...] = ()

    def __init__(self, *, reopens: bool = False) -> None:
        self._reopens = reopens

    def begin(self, observation: str) -> tuple[int, ...]:
        return (1,)

    def reopen(self, observation: str, left_out: int) -> tuple[int, ...] | None:
        return (1,) if self._reopens else None

    def observe(self, observation: str) -> tuple[int, ...]:
        return (1,)

    def act(self, action_ids: Sequence[int]) -> str:
        return "a" if action_ids[0] == 2 else "b"

    def spell(self, action: str) -> tuple[int, ...]:
        return (2 if action == "a" else 3,)


class ScriptedEngine:
    """Always samples token 2, at once, with log-probability 0."""

    def __init__(self) -> None:
        self._requests: dict[int, Request] = {}
        self.version = 0

    @property
    def active(self) -> int:
        return len(self._requests)

    def submit(self, request: Request) -> None:
        self._requests[request.rollout] = request

    def step(self) -> list[Completion]:
        done, self._requests = self._requests, {}
        spans = (VersionSpan(self.version, 1),)
        return [
            Completion(
                rollout=request.rollout,
                turn=request.turn,
                action_ids=(2,),
                logprobs=(0.0,),
                versions=spans,
                stopped=False,
            )
            for request in done.values()
        ]

    def load(self, weights: Weights | None, version: int) -> None:
        self.version = version

    def release(self, rollout: int) -> None:
        self._requests.pop(rollout, None)

    def holds(self, weights: Weights) -> bool:
        return True

    def restart(self) -> None:
        self._requests = {}

    def state_dict(self) -> dict[str, Any]:
        return {"requests": list(self._requests.values()), "version": self.version}

    def load_state_dict(self, state: dict[str, Any], weights: Weights) -> None:
        self._requests = {request.rollout: request for request in state["requests"]}
        self.version = state["version"]


class ScriptedLearner:
    """Takes the oldest batch, or the oldest complete groups, and learns nothing."""

    def __init__(self, *, batch_size: int = 32, group_size: int = 1) -> None:
        self.batch_size, self.group_size = batch_size, group_size
        self.relative_cost = 1.0

    def select(self, waiting: Sequence[Trajectory]) -> list[int]:
        groups: dict[int, list[int]] = {}
        for trajectory in waiting:
            groups.setdefault(trajectory.task.index, []).append(trajectory.rollout)
        complete = [g for g in groups.values() if len(g) >= self.group_size]
        chosen = [number for group in complete for number in group[: self.group_size]]
        return chosen[: self.batch_size] if len(chosen) >= self.batch_size else []

    def update(self, batch: Sequence[Trajectory]) -> Update:
        return Update(weights=None, metrics={})

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Holds nothing."""


class ScriptedEvaluator:
    """Scores every concept 0.5."""

    def evaluate(self, weights: Weights | None, concepts: Sequence[Concept]) -> list[Score]:
        return [Score(concept.id, 0.5, 3) for concept in concepts]

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any], weights: Weights) -> None:
        """Holds nothing."""


def scripted_run(
    *,
    seed: int = 0,
    timeline: Timeline,
    make_environment: Callable[[], TextEnv] = ScriptedEnvironment,
    agent: Agent | None = None,
    learner: Learner | None = None,
    sigma: float = 1.0,
    decode: float = 0.1,
    update: float = 1.0,
    publish: float = 0.0,
    evaluate_every: int | None = None,
    limits: Limits,
    faults: Faults | None = None,
    patience: Patience | None = None,
    checkpoint_every: int | None = None,
    resume: bytes | None = None,
) -> Iterator[tuple[float, Event]]:
    """A run in virtual time on scripted parts; environment latencies are lognormal, mean 1."""
    learner = learner or ScriptedLearner(batch_size=4)
    executor = VirtualExecutor(
        engine=ScriptedEngine(),
        trainer=InlineTrainer(learner),
        evaluator=ScriptedEvaluator() if evaluate_every else None,
        time=TimeModel(
            decode=Constant(value=decode),
            environment=LogNormal(mean=1.0, sigma=sigma),
            update=Constant(value=update),
            publish=Constant(value=publish),
        ),
        seed=seed,
        weights={},
        faults=faults,
        patience=patience,
    )
    return run(
        seed=seed,
        timeline=timeline,
        make_environment=make_environment,
        agent=agent or ScriptedAgent(),
        learner=learner,
        executor=executor,
        limits=limits,
        evaluate_every=evaluate_every,
        checkpoint_every=checkpoint_every,
        resume=resume,
    )
