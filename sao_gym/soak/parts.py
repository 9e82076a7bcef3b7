"""What a case is run on: scripted parts, or a tiny model with all that belongs to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from sao_gym import rng
from sao_gym.doubles import (
    ScriptedAgent,
    ScriptedEnvironment,
    ScriptedEvaluator,
    ScriptedLearner,
)
from sao_gym.events import Event
from sao_gym.executors.trainers import InlineTrainer
from sao_gym.executors.virtual import VirtualExecutor
from sao_gym.faults import Faults
from sao_gym.latency import TimeModel
from sao_gym.limits import Limits
from sao_gym.loop import run
from sao_gym.protocols import Executor
from sao_gym.scenario import Scenario
from sao_gym.soak.declared import Case
from sao_gym.types import Completion, Request, VersionSpan, Weights

Events = Iterator[tuple[float, Event]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A run that is ready to begin, or to go on from a checkpoint's state."""

    executor: Executor
    events: Callable[[bytes | None], Events]


@contextmanager
def machine(case: Case) -> Iterator[Machine]:
    """The parts of `case`, made anew."""
    with _real(case) if case.parts == "real" else _scripted(case) as made:
        yield made


class TalkativeEngine:
    """Samples one token a step for each request, up to `longest` of them, as its version stands.

    How many and which (2 or 3) is a function of seed, rollout, turn and place alone.
    """

    def __init__(self, *, seed: int, longest: int) -> None:
        self._seed, self._longest = seed, longest
        self._requests: dict[int, Request] = {}
        self._sampled: dict[int, list[int]] = {}
        """Rollout -> the version behind each token so far."""
        self.version = 0

    @property
    def active(self) -> int:
        return len(self._requests)

    def submit(self, request: Request) -> None:
        self._requests[request.rollout] = request
        self._sampled[request.rollout] = []

    def step(self) -> list[Completion]:
        done = []
        for number, request in list(self._requests.items()):
            versions = self._sampled[number]
            versions.append(self.version)
            length = rng.uniform(self._seed, "soak/length", number, request.turn)
            if len(versions) > int(length * self._longest):
                done.append(self._completion(request, versions))
                self.release(number)
        return done

    def load(self, weights: Weights | None, version: int) -> None:
        self.version = version

    def release(self, rollout: int) -> None:
        self._requests.pop(rollout, None)
        self._sampled.pop(rollout, None)

    def holds(self, weights: Weights) -> bool:
        return True

    def restart(self) -> None:
        self._requests, self._sampled = {}, {}

    def state_dict(self) -> dict[str, Any]:
        requests, sampled = list(self._requests.values()), dict(self._sampled)
        return {"requests": requests, "sampled": sampled, "version": self.version}

    def load_state_dict(self, state: dict[str, Any], weights: Weights) -> None:
        self._requests = {request.rollout: request for request in state["requests"]}
        self._sampled = {number: list(tokens) for number, tokens in state["sampled"].items()}
        self.version = state["version"]

    def _completion(self, request: Request, versions: list[int]) -> Completion:
        draw = partial(rng.uniform, self._seed, "soak/token", request.rollout, request.turn)
        drawn = [draw(place) for place in range(len(versions))]
        return Completion(
            rollout=request.rollout,
            turn=request.turn,
            action_ids=tuple(2 + (u < 0.5) for u in drawn),
            logprobs=tuple(-u for u in drawn),
            versions=tuple(VersionSpan(v, versions.count(v)) for v in sorted(set(versions))),
            stopped=False,
        )


@contextmanager
def _scripted(case: Case) -> Iterator[Machine]:
    learner = ScriptedLearner(batch_size=case.batch_size, group_size=case.group_size)
    agent = ScriptedAgent(reopens=case.reopens)
    agent.max_new_tokens = case.tokens
    executor = VirtualExecutor(
        engine=TalkativeEngine(seed=case.seed, longest=case.tokens),
        trainer=InlineTrainer(learner),
        evaluator=ScriptedEvaluator() if case.evaluate_every else None,
        time=TimeModel(
            decode=case.decode,
            environment=case.environment,
            update=case.update,
            publish=case.publish,
        ),
        seed=case.seed,
        weights={},
        faults=Faults(case.faults, seed=case.seed),
        patience=case.patience(),
    )

    def events(resume: bytes | None) -> Events:
        return run(
            seed=case.seed,
            timeline=case.timeline(),
            make_environment=partial(
                ScriptedEnvironment, turns=case.turns, vary=case.vary, fails=case.fails
            ),
            agent=agent,
            learner=learner,
            executor=executor,
            limits=Limits(
                slots=case.slots,
                max_lag=case.max_lag,
                context=case.context or 1 << 30,
                stop_above=case.stop_above,
                failures_after=case.failures_after,
                **case.budget.declared,
            ),
            evaluate_every=case.evaluate_every,
            checkpoint_every=case.checkpoint_every,
            resume=resume,
        )

    yield Machine(executor=executor, events=events)


@contextmanager
def _real(case: Case) -> Iterator[Machine]:
    from sao_gym.assemble import assemble

    with assemble(scenario(case)) as made:
        limits = replace(made.limits, **case.budget.declared)
        yield Machine(executor=made.executor, events=replace(made, limits=limits).events)


def scenario(case: Case) -> Scenario:
    """The scenario of a case of real parts: a model of 16 units that calls tools."""
    learner = {"batch_size": case.batch_size, "learning_rate": 0.003}
    if case.learner == "grpo":
        learner["group_size"] = case.group_size
    return Scenario.model_validate(
        {
            "name": "soak",
            "seed": case.seed,
            "environment": {"name": "tool_use", "params": {"kinds": 3, "tools": 3}},
            "agent": {"name": "tools", "params": {"max_new_tokens": 1}},
            "model": {
                "init": {
                    "model_type": "llama",
                    "hidden_size": 16,
                    "num_hidden_layers": 1,
                    "num_attention_heads": 2,
                    "intermediate_size": 32,
                    "max_position_embeddings": 128,
                }
            },
            "learner": {"name": case.learner, "params": learner},
            "timeline": case.world.timeline(case.concepts),
            "cluster": {"slots": case.slots, "max_lag": case.max_lag},
            "time": {
                "decode": case.decode,
                "environment": case.environment,
                "update": case.update,
                "publish": case.publish,
            },
            "evaluation": {"every": case.evaluate_every, "instances": 4},
            "budget": {"rollouts": case.budget.rollouts},
            "failures": {
                "stop_above": case.stop_above,
                "after": case.failures_after,
                "environment_timeout": case.environment_timeout,
                "watchdog": case.watchdog,
                "retries": case.retries,
                "backoff": case.backoff,
            },
            "checkpoint": {"every": case.checkpoint_every},
            "faults": case.faults,
        }
    )
