"""Bring a new environment to where the old one of a saved rollout stood."""

from __future__ import annotations

from typing import Any

from sao_gym import boundary
from sao_gym.errors import RunError
from sao_gym.protocols import Agent
from sao_gym.rollout import OpenRollout, reply
from sao_gym.types import Failed


def restore(
    rollout: OpenRollout, agent: Agent, kept: Any, *, asked: bool, name: int
) -> Failed | None:
    """Reset the environment of `rollout` and set its state `kept`, or replay its actions.

    `asked`: its last call will be made again, so it is left out here.

    Returns what failed, if the environment does now where it did not then.
    Raises RunError if the replay shows other observations than the policy read then.
    """
    calls = len(rollout.actions) + (0 if asked else 1)
    if calls == 0:
        return None
    answers = [boundary.reset(rollout.env, rollout.task, rollout.concept_start)]
    inner: Any = rollout.env.unwrapped
    if kept is not None and not asked and not isinstance(answers[0], Failed):
        inner.set_state(kept)
        return None
    for action, moved in rollout.actions[: calls - 1]:
        answers.append(boundary.step(rollout.env, action, moved))
    for turn, (heard, answer) in enumerate(zip(rollout.heard, answers, strict=False)):
        if isinstance(answer, Failed):
            return answer
        if _tokens(rollout, agent, turn, answer) != heard:
            raise RunError(
                f"rollout {name}: replaying its actions gave another answer at turn {turn}; an "
                "environment must depend on seed, concept and actions alone, or offer get_state "
                "and set_state"
            )
    return None


def _tokens(
    rollout: OpenRollout, agent: Agent, turn: int, answer: boundary.Step
) -> tuple[int, ...]:
    if turn == 0:
        return agent.begin(rollout.notice + answer.observation)
    return reply(agent, rollout.turns[turn - 1].action_ids, answer.observation)
