"""The world that a scenario declares: environment, timeline, policy as it begins, agent.

They are made and held against each other here, before anything is trained or written: every symbol
can be said, every concept applied, every prompt fits. What does not is one line with its place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sao_gym import boundary, registry
from sao_gym.errors import InputError
from sao_gym.notice import notices
from sao_gym.policy import Policy, initialise, load_directory
from sao_gym.protocols import Agent, LateReward, LiveConcept, ReferenceSolver, TextEnv
from sao_gym.scenario import Scenario
from sao_gym.timeline import Timeline
from sao_gym.tokenizer import check_symbols
from sao_gym.types import Concept, Failed, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What a scenario declares before anything is trained."""

    make_environment: Callable[[], TextEnv]
    timeline: Timeline
    policy: Policy
    agent: Agent


def make_world(scenario: Scenario) -> World:
    """Environment, timeline, policy as it begins, agent. Raises InputError if they do not fit."""
    try:
        return _make_world(scenario)
    except InputError as error:
        if not error.at:
            raise
        raise scenario.error(error.at, str(error)) from error


def _make_world(scenario: Scenario) -> World:
    environment = scenario.environment
    make_environment = registry.bind(
        registry.load("envs", environment.name), params=environment.params
    )
    timeline = Timeline(scenario.timeline)
    env = make_environment()
    _check_inflight(env, timeline.inflight)
    policy = _make_policy(scenario, env, timeline)
    agent_class = registry.load("agents", scenario.agent.name)
    agent: Agent = registry.bind(agent_class, params=scenario.agent.params)(policy.tokenizer)
    _check_contract(env, agent, timeline, policy)
    return World(make_environment=make_environment, timeline=timeline, policy=policy, agent=agent)


def _make_policy(scenario: Scenario, env: TextEnv, timeline: Timeline) -> Policy:
    model = scenario.model
    if model.path is not None:
        return load_directory(Path(model.path))
    assert model.init is not None
    symbols = _symbols(scenario, env, timeline)
    return initialise(model.init, symbols=symbols, seed=scenario.seed)


def _symbols(scenario: Scenario, env: TextEnv, timeline: Timeline) -> str:
    if scenario.model.symbols != "auto":
        return scenario.model.symbols
    return "".join(sorted(_charset(env, timeline)))


def _charset(env: TextEnv, timeline: Timeline) -> set[str]:
    """Every symbol that the policy may have to read or say."""
    spaces: tuple[Any, ...] = (env.observation_space, env.action_space)
    return {symbol for space in spaces for symbol in space.characters}.union(*notices(timeline))


def tokenizer_of(scenario: Scenario) -> Any:
    """The scenario's tokenizer, without its model."""
    from sao_gym.tokenizer import character_tokenizer

    model = scenario.model
    if model.path is not None:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(model.path, local_files_only=True)
    environment = scenario.environment
    env = registry.construct(registry.load("envs", environment.name), params=environment.params)
    return character_tokenizer(_symbols(scenario, env, Timeline(scenario.timeline)))


def _check_inflight(env: TextEnv, inflight: str) -> None:
    needs: dict[str, tuple[Any, str]] = {
        "live": (LiveConcept, "set_concept(params)"),
        "reward_late": (LateReward, "score(params)"),
    }
    protocol, method = needs.get(inflight, (object, ""))
    if not isinstance(env.unwrapped, protocol):
        raise InputError(
            f"{inflight} needs an environment with {method}, "
            f"which {type(env.unwrapped).__name__} does not have; use pin or abort",
            at=("timeline", "inflight"),
        )


def _check_contract(env: TextEnv, agent: Agent, timeline: Timeline, policy: Policy) -> None:
    """Every symbol can be said, every concept applied and read back, and a step keeps its form.

    What the environment *raises* is left to the run, where it is counted.
    """
    try:
        check_symbols(policy.tokenizer, sorted(_charset(env, timeline)))
    except InputError as error:
        raise InputError(str(error), at=("model",)) from error
    name = type(env.unwrapped).__name__
    for concept in timeline.concepts:
        answer = boundary.reset(env, Task(index=0, seed=0), concept)
        if isinstance(answer, Failed):
            message = f"{name} cannot take concept {concept.id!r}: {answer.detail}"
            raise InputError(message, at=_where(timeline, concept))
        prompt = len(agent.begin(answer.observation))
        if prompt + agent.max_new_tokens > policy.context_length:
            raise InputError(
                f"a prompt of {prompt} tokens and agent.params.max_new_tokens "
                f"{agent.max_new_tokens} exceed the model's window of {policy.context_length}; "
                "raise model.init.max_position_embeddings or ask for fewer tokens",
                at=("model",),
            )
        stepped = boundary.step(env, _some_action(env))
        if isinstance(stepped, Failed) and stepped.kind == "contract":
            raise InputError(f"{name}: {stepped.detail}", at=("environment",))


def _where(timeline: Timeline, concept: Concept) -> tuple[str | int, ...]:
    """The key of the timeline's segment that defines `concept`."""
    return ("timeline", "segments", 2 * [c.id for c in timeline.concepts].index(concept.id))


def _some_action(env: TextEnv) -> str:
    inner: Any = env.unwrapped
    if isinstance(inner, ReferenceSolver):
        return inner.reference_action()
    env.action_space.seed(0)
    return env.action_space.sample()
