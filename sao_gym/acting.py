"""Rollouts in progress: agent and environment take turns, the engine speaks for the agent.

    begin -> (environment answers) -> environment_stepped -> request -> (engine) -> turn_sampled -+
                                            ^                                                   |
                                            +------------------ action -------------------------+

Part of the loop's state; nothing but the loop calls it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sao_gym import boundary, episode
from sao_gym.drift import Drift
from sao_gym.errors import InputError
from sao_gym.events import (
    EnvironmentStepped,
    RolloutFailed,
    RolloutFinished,
    RolloutStarted,
    TurnSampled,
)
from sao_gym.pool import EnvironmentPool
from sao_gym.protocols import Agent, EnvironmentCall, Executor, Restorable
from sao_gym.rollout import OpenRollout, reply
from sao_gym.types import Concept, Failed, Terminated, Truncated


@dataclass(slots=True)
class Acting:
    """Every rollout that has started and not yet ended."""

    agent: Agent
    executor: Executor
    environments: EnvironmentPool
    drift: Drift
    context: int
    """Tokens the policy can attend over."""
    open: dict[int, OpenRollout] = field(default_factory=dict)

    def start(self, event: RolloutStarted) -> None:
        """Give a new rollout its environment; it begins when `event` is handled."""
        self.open[event.rollout] = OpenRollout(
            task=event.task,
            concept_start=event.concept,
            concept_scored=event.concept,
            env=self.environments.take(),
            started=self.executor.now,
            notice=self.drift.notice(event.concept),
        )

    def begin(self, event: RolloutStarted) -> None:
        rollout = self.open[event.rollout]
        rollout.begun = True
        self.executor.ask(event.rollout, rollout.call())

    def environment_stepped(self, event: EnvironmentStepped) -> None:
        rollout = self.open[event.rollout]
        if event.turn > 0:
            rollout.turns.append(rollout.turn(event.reward))
        if event.terminated or event.truncated:
            limit = Terminated() if event.terminated else Truncated("environment")
            self._finish(event.rollout, limit)
            return
        try:
            fits = self._observed(rollout, event)
        except InputError as error:  # what the tokenizer cannot say, or a prompt without room
            self._fail(event.rollout, Failed("contract", str(error)))
            return
        if fits:
            self.executor.sample(rollout.request(event.rollout, event.turn + 1, self.agent))
        else:
            self._finish(event.rollout, Truncated("context"))

    def _observed(self, rollout: OpenRollout, event: EnvironmentStepped) -> bool:
        """Append an observation; whether an action still fits, perhaps in a new segment."""
        room = self.context - self.agent.max_new_tokens
        if event.turn == 0:
            rollout.opening = rollout.notice + event.observation
            ids = self.agent.begin(rollout.opening)
            if len(ids) > room:
                raise InputError(f"a prompt of {len(ids)} tokens leaves no room for an action")
            rollout.observe(ids)
            return True
        rollout.observe(reply(self.agent, rollout.context, event.observation))
        return len(rollout.context) <= room or rollout.reopen(self.agent, room)

    def turn_sampled(self, event: TurnSampled) -> None:
        done = event.completion
        rollout = self.open[done.rollout]
        rollout.sampled(done)
        moved = None
        if self.drift.inflight == "live":
            concept = self.drift.concept(rollout.task)
            if concept != rollout.concept_scored:
                moved = rollout.concept_scored = concept
        rollout.actions.append((self.agent.act(done.action_ids), moved))
        self.executor.ask(done.rollout, rollout.call())

    def finished(self, number: int) -> None:
        """Its trajectory is complete: the environment may be used again."""
        self.executor.release(number)
        self.environments.give_back(self.open.pop(number).env)

    def close(self, number: int) -> OpenRollout:
        """End a rollout that failed or is dropped, whatever its environment is doing."""
        rollout = self.open.pop(number)
        self.executor.release(number)
        self.executor.dispose(rollout.env)
        return rollout

    def close_idle(self) -> None:
        for env in self.environments.drain():
            self.executor.dispose(env)

    def overtaken(self, concept: Concept) -> list[int]:
        """Rollouts that a change to `concept` aborts: begun under another, and not over yet."""
        found = []
        for number, rollout in self.open.items():
            if rollout.concept_start.id != concept.id and not rollout.over:
                rollout.successor = concept
                if rollout.begun:
                    found.append(number)
        return found

    def state_dict(self, busy: Sequence[int]) -> dict[int, Any]:
        """Open rollouts, without their environments unless those can tell their state.

        `busy`: rollouts whose environment is at work, perhaps on another thread.
        """
        saved = {}
        for number, rollout in self.open.items():
            inner: Any = rollout.env.unwrapped
            idle = rollout.begun and number not in busy
            kept = inner.get_state() if idle and isinstance(inner, Restorable) else None
            saved[number] = (rollout.state_dict(), kept)
        return saved

    def rebuild(
        self, state: dict[int, Any], unanswered: Sequence[int]
    ) -> tuple[dict[int, EnvironmentCall], list[RolloutFailed]]:
        """Open the rollouts again, their environments where the old ones stood.

        Returns the last calls of the `unanswered` rollouts, which are to be made again, and those
        rollouts whose environment could not be brought back: that fails them, not the run.
        """
        lost = []
        for number, (saved, kept) in state.items():
            rollout = OpenRollout(env=self.environments.take(), **saved)
            self.open[number] = rollout
            if rollout.begun and not rollout.over:
                asked = number in unanswered
                failure = episode.restore(rollout, self.agent, kept, asked=asked, name=number)
                if failure is not None:
                    rollout.over = True
                    lost.append(RolloutFailed(rollout=number, failure=failure))
        return {number: self.open[number].call() for number in unanswered}, lost

    def _finish(self, number: int, outcome: Terminated | Truncated) -> None:
        rollout = self.open[number]
        if self.drift.inflight == "reward_late":
            concept = self.drift.concept(rollout.task)
            if concept != rollout.concept_start:
                reward = boundary.score(rollout.env, concept)
                if isinstance(reward, Failed):
                    self._fail(number, reward)
                    return
                rollout.rescore(concept, reward)
        rollout.over = True
        trajectory = rollout.trajectory(number, outcome, self.executor.now)
        self.executor.emit(RolloutFinished(trajectory=trajectory))

    def _fail(self, number: int, failure: Failed) -> None:
        self.open[number].over = True
        self.executor.emit(RolloutFailed(rollout=number, failure=failure))
