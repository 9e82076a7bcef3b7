"""Shared by several test files: a run's log written by hand, from the event types themselves."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest

from sao_gym.events import (
    AlarmRaised,
    CheckpointTaken,
    Clocks,
    ConceptChanged,
    EnvironmentStepped,
    Evaluated,
    Event,
    FaultHandled,
    PolicyPublished,
    RolloutDropped,
    RolloutFailed,
    RolloutFinished,
    RolloutStarted,
    RunEnded,
    TurnSampled,
    UpdateFinished,
)
from sao_gym.log import encode
from sao_gym.types import (
    Completion,
    Concept,
    Failed,
    Task,
    Terminated,
    Timing,
    Trajectory,
    Turn,
    VersionSpan,
)

SCENARIO = {
    "name": "scripted",
    "summary": "Written by hand.",
    "seed": 3,
    "environment": {"name": "nowhere", "params": {}},
    "learner": {"name": "sao", "params": {"batch_size": 2}},
    "timeline": {"clock": "started", "segments": []},
}


class Script:
    """Events one by one; the `started`, `version` and `tokens` clocks are kept by counting."""

    def __init__(self) -> None:
        self.events: list[tuple[float, Event]] = []
        self.now = 0.0
        self.started = self.completed = self.consumed = self.version = self.tokens = 0
        self.concept = Concept(id="none", params={})
        self.segment = -1
        self.turns: dict[int, list[Turn]] = {}
        self.begun: dict[int, tuple[Concept, float]] = {}

    def say(self, event: Event, seconds: float = 0.0) -> None:
        self.now += seconds
        self.events.append((self.now, event))

    def clocks(self) -> Clocks:
        return Clocks(
            started=self.started,
            completed=self.completed,
            consumed=self.consumed,
            version=self.version,
            tokens=self.tokens,
            seconds=self.now,
        )

    def change(
        self,
        concept: str,
        kind: Any = "abrupt",
        phase: Any = "changed",
        params: Mapping[str, Any] | None = None,
    ) -> None:
        arriving = Concept(id=concept, params=params or {})
        if phase != "window_began":
            self.concept, self.segment = arriving, self.segment + 1
        self.say(
            ConceptChanged(
                segment=self.segment,
                concept=arriving,
                kind="start" if not self.events else kind,
                phase=phase,
                clocks=self.clocks(),
            )
        )

    def start(self, concept: Concept | None = None) -> int:
        rollout = self.started
        self.started += 1
        self.begun[rollout] = (concept or self.concept, self.now)
        self.turns[rollout] = []
        self.say(
            RolloutStarted(
                rollout=rollout,
                task=Task(index=rollout, seed=1000 + rollout),
                concept=concept or self.concept,
                version=self.version,
            )
        )
        return rollout

    def until(self, started: int) -> None:
        """Start rollouts until the clock shows this."""
        while self.started < started:
            self.start()

    def turn(
        self,
        rollout: int,
        spans: Iterable[tuple[int, int]] = ((0, 1),),
        *,
        observation: str = "?",
        answer: str = "",
        reward: float = 0.0,
    ) -> None:
        """An observation (said if it is the first), an action over `spans`, its answer."""
        turn = len(self.turns[rollout]) + 1
        if turn == 1:
            self._step(rollout, 0, observation, 0.0)
        versions = tuple(VersionSpan(v, n) for v, n in spans)
        count = sum(n for _, n in versions)
        ids = tuple(range(10, 10 + count))
        logprobs = tuple(-0.5 for _ in ids)
        self.tokens += count
        self.say(
            TurnSampled(
                completion=Completion(
                    rollout=rollout,
                    turn=turn,
                    action_ids=ids,
                    logprobs=logprobs,
                    versions=versions,
                    stopped=True,
                )
            ),
            0.25,
        )
        self._step(rollout, turn, answer, reward)
        self.turns[rollout].append(
            Turn(
                observation_ids=(1, 2),
                action_ids=ids,
                logprobs=logprobs,
                versions=versions,
                reward=reward,
            )
        )

    def _step(self, rollout: int, turn: int, observation: str, reward: float) -> None:
        self.say(
            EnvironmentStepped(
                rollout=rollout,
                turn=turn,
                observation=observation,
                reward=reward,
                terminated=False,
                truncated=False,
                seconds=0.5,
            ),
            0.5,
        )

    def finish(self, rollout: int, scored: Concept | None = None) -> None:
        concept, began = self.begun[rollout]
        self.completed += 1
        self.say(
            RolloutFinished(
                trajectory=Trajectory(
                    rollout=rollout,
                    task=Task(index=rollout, seed=1000 + rollout),
                    concept_start=concept,
                    concept_scored=scored or concept,
                    turns=tuple(self.turns[rollout]),
                    outcome=Terminated(),
                    timing=Timing(started=began, finished=self.now),
                )
            )
        )

    def rollout(self, reward: float, spans: Iterable[tuple[int, int]] = ((0, 1),)) -> int:
        """A whole rollout of one turn."""
        rollout = self.start()
        self.turn(rollout, spans, reward=reward)
        self.finish(rollout)
        return rollout

    def update(self, rollouts: Sequence[int], **metrics: float) -> None:
        """Train and publish; lags are worked out token by token."""
        lags = [
            self.version - span.version
            for rollout in rollouts
            for turn in self.turns[rollout]
            for span in turn.versions
            for _ in range(span.tokens)
        ]
        self.say(
            UpdateFinished(
                version=self.version + 1,
                rollouts=tuple(rollouts),
                lag_mean=sum(lags) / len(lags),
                lag_max=max(lags),
                metrics=metrics,
            ),
            1.0,
        )
        self.consumed += len(rollouts)
        self.version += 1
        self.say(PolicyPublished(version=self.version))

    def drop(self, rollout: int, reason: Any = "stale", lag: int = 1) -> None:
        self.say(RolloutDropped(rollout=rollout, reason=reason, lag=lag))

    def fail(self, rollout: int, kind: str = "environment", detail: str = "it broke") -> None:
        self.say(RolloutFailed(rollout=rollout, failure=Failed(kind, detail)))

    def evaluate(self, **scores: float) -> None:
        for concept, score in scores.items():
            self.say(
                Evaluated(
                    version=self.version,
                    concept=concept,
                    score=score,
                    instances=64,
                    started=self.started,
                )
            )

    def end(self, reason: str = "rollouts") -> None:
        self.say(RunEnded(reason=reason, clocks=self.clocks()))

    def records(self) -> list[dict[str, Any]]:
        """The events as a reader of the log gets them."""
        return [json.loads(encode(seconds, event)) for seconds, event in self.events]


def drifting_run() -> Script:
    """A small whole run: three concepts, a drift window, lag, one dropped and one failed."""
    script = Script()
    script.change("A", params={"map": [0, 1, 2]})
    script.evaluate(A=0.2, B=0.1, C=0.1)
    waiting: list[int] = []
    for k in range(120):
        if k == 40:
            script.change("B", params={"map": [1, 0, 2]})
        if k == 80:
            script.change("C", "gradual", "window_began", {"map": [1, 2, 0]})
        if k == 90:
            script.change("C", "gradual", "window_ended", {"map": [1, 2, 0]})
        rollout = script.start()
        old = max(0, script.version - k % 3)
        script.turn(rollout, [(old, 1)], observation=f"a<{k}>", answer="!b")
        if k == 17:
            script.fail(rollout, detail="<script>alert('gone')</script>")
            continue
        script.turn(rollout, [(old, 1), (script.version, 1)], reward=float(k % 40 > 20))
        script.finish(rollout)
        if k == 60:
            script.drop(rollout)
            continue
        waiting.append(rollout)
        if len(waiting) == 4:
            nan = float("nan")
            script.update(waiting, masked_fraction=0.1, explained_variance=nan if k < 30 else 0.5)
            waiting = []
            since = k % 40
            held = min(0.95, 0.2 + 0.05 * since)
            script.evaluate(**{name: held if name == script.concept.id else 0.3 for name in "ABC"})
    script.say(
        FaultHandled(fault="engine_dies", key=9, attempt=0, outcome="restarted", detail="it did")
    )
    script.say(AlarmRaised(alarm="entropy", version=3, value=0.001, bound=0.01))
    script.say(CheckpointTaken(update=28, scheduled=True, state=b""))
    for rollout in waiting:
        script.drop(rollout, "run_ended", 0)
    script.end()
    return script


@pytest.fixture
def script():
    """An empty log to write."""
    return Script()


@pytest.fixture(scope="session")
def new_script():
    """Makes empty logs, for tests that need many."""
    return Script


@pytest.fixture(scope="session")
def drifting():
    """A small whole run; not to be changed."""
    return drifting_run()


@pytest.fixture
def scenario():
    """A resolved scenario."""
    return dict(SCENARIO)


@pytest.fixture
def record_run(tmp_path, scenario):
    """Write a script into a run directory."""
    from sao_gym.record import open_run

    def write(script: Script, name: str = "run", **changes: Any):
        with open_run(tmp_path / name, scenario | changes) as recorder:
            for seconds, event in script.events:
                recorder.write(seconds, event)
        return tmp_path / name

    return write
