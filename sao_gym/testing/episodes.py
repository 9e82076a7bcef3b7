"""Playing an environment for the contract suite: episodes, and who chooses the actions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from sao_gym import rng
from sao_gym.protocols import LateReward, LiveConcept, ReferenceSolver, TextEnv
from sao_gym.testing.rules import require

LONGEST = 1000
"""Steps after which an episode is taken to have no end."""

Params: TypeAlias = Mapping[str, Any]
Policy: TypeAlias = Callable[[TextEnv, int], str]
"""`(environment, turn) -> action`."""


@dataclass(kw_only=True)
class Episode:
    """What an environment answered."""

    observations: list[str] = field(default_factory=list)
    actions: list[str] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    infos: list[dict[str, Any]] = field(default_factory=list)
    terminated: bool = False
    truncated: bool = False

    @property
    def total(self) -> float:
        return math.fsum(self.rewards)

    @property
    def ended(self) -> bool:
        return self.terminated or self.truncated


def begin(env: TextEnv, seed: int | None, concept: Params) -> Episode:
    observation, info = env.reset(seed=seed, options={"concept": deepcopy(dict(concept))})
    return Episode(observations=[observation], infos=[deepcopy(info)])


def advance(env: TextEnv, episode: Episode, action: str) -> None:
    result = env.step(action)
    require(isinstance(result, tuple) and len(result) == 5, "step must return five values")
    observation, reward, episode.terminated, episode.truncated, info = result
    episode.observations.append(observation)
    episode.actions.append(action)
    episode.rewards.append(reward)  # type: ignore[arg-type]
    episode.infos.append(deepcopy(info))


def finish(env: TextEnv, episode: Episode, policy: Policy) -> Episode:
    """Follow `policy` to the end."""
    while not episode.ended:
        turn = len(episode.actions)
        require(turn < LONGEST, f"an episode has not ended after {LONGEST} steps")
        advance(env, episode, policy(env, turn))
    return episode


def follow_reference(env: TextEnv, turn: int) -> str:
    return solver(env).reference_action()


def explore(seed: int) -> Policy:
    """Anything valid; for an environment without reference solution, any text it accepts."""

    def policy(env: TextEnv, turn: int) -> str:
        if isinstance(env.unwrapped, ReferenceSolver):
            choices = env.unwrapped.valid_actions()
            return choices[int(rng.uniform(seed, "explore", turn) * len(choices))]
        space = deepcopy(env.action_space)
        space.seed(rng.integer(seed, "explore", turn))
        return space.sample()

    return policy


def solver(env: TextEnv) -> ReferenceSolver:
    inner: Any = env.unwrapped
    assert isinstance(inner, ReferenceSolver)
    return inner


def live(env: TextEnv) -> LiveConcept:
    inner: Any = env.unwrapped
    assert isinstance(inner, LiveConcept)
    return inner


def late(env: TextEnv) -> LateReward:
    inner: Any = env.unwrapped
    assert isinstance(inner, LateReward)
    return inner
