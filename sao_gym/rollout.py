"""A rollout in progress: its environment and the tokens so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from sao_gym.protocols import Agent, EnvironmentCall, Reopening, TextEnv
from sao_gym.types import (
    Completion,
    Concept,
    Request,
    Task,
    Terminated,
    Timing,
    Trajectory,
    Truncated,
    Turn,
)


def reply(agent: Agent, said: Sequence[int], observation: str) -> tuple[int, ...]:
    """Tokens to append after the action `said`; one that a limit cut off is closed first."""
    ids = agent.observe(observation)
    return (*agent.closing, *ids) if agent.closing and said[-1] not in agent.stop_ids else ids


def reopened(
    agent: Agent,
    opening: str,
    said: Sequence[tuple[int, ...]],
    heard: Sequence[tuple[int, ...]],
    room: int,
) -> list[int] | None:
    """The context of a new segment; None if the agent does not go on.

    After the opening come the last turns, as they were said and heard: as many as leave half of the
    room free, or the very last one alone.

    Args:
        agent: goes on if it is `Reopening`.
        opening: the first observation, as text.
        said: tokens of every action so far.
        heard: tokens of every observation so far, the prompt first; one more than `said`.
        room: most tokens of a context.
    """
    if not isinstance(agent, Reopening):
        return None
    turns = [(*action, *answer) for action, answer in zip(said, heard[1:], strict=True)]
    for left_out in range(1, len(turns)):
        last = left_out == len(turns) - 1
        kept = list(chain.from_iterable(turns[left_out:]))
        if len(kept) > room // 2 and not last:
            continue
        ids = agent.reopen(opening, left_out)
        if ids is None:
            return None
        if len(ids) + len(kept) <= (room if last else room // 2):
            return [*ids, *kept]
    return None


@dataclass(slots=True, kw_only=True)
class OpenRollout:
    """What the loop knows of a rollout between its start and its end."""

    task: Task
    concept_start: Concept
    concept_scored: Concept
    env: TextEnv
    started: float
    notice: str = ""
    """What the agent is told about drift, before the first observation."""
    context: list[int] = field(default_factory=list)
    """Every token of the segment so far, as sampled and as observed: the next request's context."""
    opening: str = ""
    """What the agent was first shown."""
    heard: list[tuple[int, ...]] = field(default_factory=list)
    """Tokens of every observation so far, in all segments."""
    turns: list[Turn] = field(default_factory=list)
    begun: bool = False
    """`RolloutStarted` was handled."""
    actions: list[tuple[str, Concept | None]] = field(default_factory=list)
    """What was sent to the environment, each with the concept that it was moved to before."""
    successor: Concept | None = None
    """Set when a change aborts it: the concept under which its task may be issued again."""
    over: bool = False
    """It has finished or failed; only the event that says so is still to come."""
    _observation: tuple[int, ...] = ()
    _restart: bool = False
    _completion: Completion | None = None

    @property
    def oldest_version(self) -> int | None:
        """Of all tokens sampled so far; None if there are none."""
        spans = [span for turn in self.turns for span in turn.versions]
        if self._completion is not None:
            spans += self._completion.versions
        return min((span.version for span in spans), default=None)

    def observe(self, ids: tuple[int, ...]) -> None:
        self._observation, self._restart = ids, False
        self.heard.append(ids)
        self.context.extend(ids)

    def reopen(self, agent: Agent, room: int) -> bool:
        """Begin a new segment, in which the last observation is the last thing heard."""
        said = [turn.action_ids for turn in self.turns]
        context = reopened(agent, self.opening, said, self.heard, room)
        if context is None:
            return False
        self.context, self._observation, self._restart = context, tuple(context), True
        return True

    def request(self, rollout: int, turn: int, agent: Agent) -> Request:
        return Request(
            rollout=rollout,
            turn=turn,
            context_ids=self.context,
            max_new_tokens=agent.max_new_tokens,
            stop_ids=agent.stop_ids,
            restart=self._restart,
        )

    def sampled(self, completion: Completion) -> None:
        self._completion = completion
        self.context.extend(completion.action_ids)

    def turn(self, reward: float) -> Turn:
        """The turn that the environment just answered."""
        done = self._completion
        assert done is not None
        self._completion = None
        return Turn(
            observation_ids=self._observation,
            action_ids=done.action_ids,
            logprobs=done.logprobs,
            versions=done.versions,
            reward=reward,
            restart=self._restart,
        )

    def rescore(self, concept: Concept, reward: float) -> None:
        """Judge the whole episode under another concept: all of its reward on the last turn."""
        self.concept_scored = concept
        self.turns = [replace(turn, reward=0.0) for turn in self.turns]
        self.turns[-1] = replace(self.turns[-1], reward=reward)

    def call(self) -> EnvironmentCall:
        """The last call to the environment: `reset`, or `step` with the last action."""
        if not self.actions:
            return EnvironmentCall(env=self.env, task=self.task, turn=0, concept=self.concept_start)
        action, moved = self.actions[-1]
        return EnvironmentCall(
            env=self.env, task=self.task, turn=len(self.actions), concept=moved, action=action
        )

    def state_dict(self) -> dict[str, Any]:
        """All fields but the environment."""
        return {name: getattr(self, name) for name in self.__slots__ if name != "env"}

    def trajectory(
        self, rollout: int, outcome: Terminated | Truncated, finished: float
    ) -> Trajectory:
        return Trajectory(
            rollout=rollout,
            task=self.task,
            concept_start=self.concept_start,
            concept_scored=self.concept_scored,
            turns=tuple(self.turns),
            outcome=outcome,
            timing=Timing(started=self.started, finished=finished),
        )
