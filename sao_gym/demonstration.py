"""Reference solutions as trajectories: what a warm start and the oracle imitate."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sao_gym import boundary, rng
from sao_gym.errors import InputError
from sao_gym.protocols import Agent, ReferenceSolver, TextEnv
from sao_gym.rollout import reply
from sao_gym.types import (
    Concept,
    Failed,
    Task,
    Terminated,
    Timing,
    Trajectory,
    Truncated,
    Turn,
    VersionSpan,
)

_MOST_TURNS = 1000


def demonstrate(
    env: TextEnv,
    agent: Agent,
    concept: Concept,
    task: Task,
    *,
    seed: int = 0,
    noise: float = 0.0,
    noise_after_error: float = 0.0,
) -> Trajectory:
    """Follow the environment's reference solution, with noise, through `agent`'s tokens.

    With probability `noise` an action is replaced by a uniform valid one; with probability
    `noise_after_error` when the last answer said `info["retry"]`. Noise is what a policy that
    imitates the demonstration explores with later: after an error, try something else.

    Log-probs are 0 and versions 0: nobody sampled these tokens. Raises InputError if the
    environment has no reference solution or breaks its contract.
    """
    solver: Any = env.unwrapped
    if not isinstance(solver, ReferenceSolver):
        raise InputError(
            f"environment {type(solver).__name__} has no reference_action() and valid_actions(); "
            "a warm start and the oracle need them"
        )
    answer = boundary.reset(env, task, concept)
    turns: list[Turn] = []
    retry = False
    while True:
        if isinstance(answer, Failed):
            raise InputError(f"environment {type(solver).__name__}: {answer.kind}: {answer.detail}")
        if turns:
            turns[-1] = replace(turns[-1], reward=answer.reward)
        if answer.terminated or answer.truncated:
            break
        if len(turns) >= _MOST_TURNS:
            raise InputError(f"{type(solver).__name__}: a reference episode never ends")
        index = len(turns)
        action = solver.reference_action()
        chance = noise_after_error if retry else noise
        if chance and rng.uniform(seed, "noise", task.index, index) < chance:
            choices = solver.valid_actions()
            pick = rng.uniform(seed, "alternative", task.index, index)
            action = choices[int(pick * len(choices))]
        if turns:
            ids = reply(agent, turns[-1].action_ids, answer.observation)
        else:
            ids = agent.begin(answer.observation)
        turns.append(_turn(ids, agent.spell(action)))
        answer = boundary.step(env, action)
        retry = isinstance(answer, boundary.Step) and answer.retry
    return Trajectory(
        rollout=task.index,
        task=task,
        concept_start=concept,
        concept_scored=concept,
        turns=tuple(turns),
        outcome=Terminated() if answer.terminated else Truncated("environment"),
        timing=Timing(started=0.0, finished=0.0),
    )


def _turn(observation_ids: tuple[int, ...], action_ids: tuple[int, ...]) -> Turn:
    return Turn(
        observation_ids=observation_ids,
        action_ids=action_ids,
        logprobs=(0.0,) * len(action_ids),
        versions=(VersionSpan(0, len(action_ids)),),
        reward=0.0,
    )
