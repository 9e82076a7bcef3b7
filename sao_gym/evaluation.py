"""Side evaluation: what a policy earns on a fixed instance set of each concept.

It shares nothing with the run but the weights: its own engine, environments and random keys. So
the training trace is the same, byte for byte, with evaluation on or off. Instance i is the same
task and samples from the same uniform numbers at every evaluation (common random numbers).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sao_gym import boundary, rng
from sao_gym.errors import InputError
from sao_gym.pool import EnvironmentPool
from sao_gym.protocols import Agent, Engine, Score, TextEnv
from sao_gym.rollout import reopened, reply
from sao_gym.types import Concept, Failed, Request, Task, Weights


@dataclass(slots=True)
class _Episode:
    env: TextEnv
    context: list[int] = field(default_factory=list)
    opening: str = ""
    said: list[tuple[int, ...]] = field(default_factory=list)
    heard: list[tuple[int, ...]] = field(default_factory=list)
    reward: float = 0.0
    failed: bool = False


class EpisodeEvaluator:
    """`Evaluator` that plays whole episodes in lock-step with an engine of its own."""

    def __init__(
        self,
        *,
        make_environment: Callable[[], TextEnv],
        agent: Agent,
        engine: Engine,
        instances: int,
        seed: int,
        context: int,
    ) -> None:
        """`engine` must draw with a purpose of its own; `context`: tokens the policy can hold."""
        self._environments = EnvironmentPool(make_environment)
        self._agent, self._engine = agent, engine
        self._context = context
        self._tasks = [
            Task(index=i, seed=rng.integer(seed, "evaluation", i)) for i in range(instances)
        ]
        self._loads = 0

    def evaluate(self, weights: Weights | None, concepts: Sequence[Concept]) -> Sequence[Score]:
        """Score per concept, in order. Failed instances are left out."""
        if weights is not None:
            self._loads += 1
            self._engine.load(weights, self._loads)
        episodes = [
            [self._begin(concept, which * len(self._tasks), task) for task in self._tasks]
            for which, concept in enumerate(concepts)
        ]
        self._play([episode for group in episodes for episode in group])
        return [self._score(c, group) for c, group in zip(concepts, episodes, strict=True)]

    def state_dict(self) -> dict[str, Any]:
        return {"loads": self._loads, "engine": self._engine.state_dict()}

    def load_state_dict(self, state: dict[str, Any], weights: Weights) -> None:
        self._loads = state["loads"]
        self._engine.load_state_dict(state["engine"], weights)

    def _begin(self, concept: Concept, first: int, task: Task) -> tuple[int, _Episode]:
        episode = _Episode(self._environments.take())
        number = first + task.index
        self._answered(number, episode, boundary.reset(episode.env, task, concept))
        return number, episode

    def _play(self, episodes: list[tuple[int, _Episode]]) -> None:
        by_number = dict(episodes)
        while self._engine.active:
            for done in self._engine.step():
                episode = by_number[done.rollout]
                episode.said.append(done.action_ids)
                episode.context.extend(done.action_ids)
                action = self._agent.act(done.action_ids)
                self._answered(done.rollout, episode, boundary.step(episode.env, action))
        for number, episode in episodes:
            self._engine.release(number)
            self._environments.give_back(episode.env)

    def _answered(self, number: int, episode: _Episode, answer: boundary.Step | Failed) -> None:
        if isinstance(answer, Failed):
            episode.failed = True
            return
        episode.reward += answer.reward
        if answer.terminated or answer.truncated:
            return
        agent = self._agent
        room, restart = self._context - agent.max_new_tokens, False
        try:
            if episode.said:
                ids = reply(agent, episode.context, answer.observation)
            else:
                episode.opening = answer.observation
                ids = agent.begin(answer.observation)
            episode.heard.append(ids)
            episode.context.extend(ids)
            if len(episode.context) > room:
                context = reopened(agent, episode.opening, episode.said, episode.heard, room)
                if context is None:
                    return
                episode.context, restart = context, True
        except InputError:  # what the tokenizer cannot say
            episode.failed = True
            return
        self._engine.submit(
            Request(
                rollout=number,
                turn=len(episode.heard),
                context_ids=episode.context,
                max_new_tokens=agent.max_new_tokens,
                stop_ids=agent.stop_ids,
                restart=restart,
            )
        )

    def _score(self, concept: Concept, group: list[tuple[int, _Episode]]) -> Score:
        rewards = [episode.reward for _, episode in group if not episode.failed]
        mean = sum(rewards) / len(rewards) if rewards else None
        return Score(concept.id, mean, len(rewards))
