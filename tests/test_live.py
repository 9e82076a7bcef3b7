"""The same loop on the wall clock: order is the world's, promises are the loop's."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from sao_gym.assemble import assemble
from sao_gym.doubles import ScriptedAgent, ScriptedEngine, ScriptedEnvironment, ScriptedLearner
from sao_gym.errors import RunError
from sao_gym.events import (
    Evaluated,
    PolicyPublished,
    RolloutDropped,
    RolloutFailed,
    RolloutStarted,
    TurnSampled,
    UpdateFinished,
)
from sao_gym.executors.live import LiveExecutor
from sao_gym.executors.trainers import InlineTrainer
from sao_gym.limits import Limits
from sao_gym.loop import run
from sao_gym.scenario import load_scenario
from sao_gym.timeline import Timeline
from sao_gym.timeline_config import TimelineConfig

TINY = Path(__file__).parent / "data" / "tiny.yaml"
ENDLESS = {"segments": [{"concept": {"id": "A", "params": {"good": "a"}}}]}


def fates(events):
    found = []
    for event in events:
        match event:
            case UpdateFinished(rollouts=rollouts):
                found += rollouts
            case RolloutDropped(rollout=rollout) | RolloutFailed(rollout=rollout):
                found.append(rollout)
    return sorted(found)


def live(*, engine=None, learner=None, make_environment=ScriptedEnvironment, **limits):
    learner = learner or ScriptedLearner(batch_size=4)
    executor = LiveExecutor(
        engine=engine or ScriptedEngine(),
        trainer=InlineTrainer(learner),
        evaluator=None,
        workers=4,
        weights={},
    )
    events = run(
        seed=0,
        timeline=Timeline(TimelineConfig.model_validate(ENDLESS)),
        make_environment=make_environment,
        agent=ScriptedAgent(),
        learner=learner,
        executor=executor,
        limits=Limits(slots=8, max_lag=4, **limits),
    )
    return executor, events


def test_a_real_scenario_runs_live_with_the_same_promises():
    with assemble(load_scenario(TINY), live=True) as ready:
        history = list(ready.events())
    events = [event for _, event in history]
    assert [t for t, _ in history] == sorted(t for t, _ in history)
    started = [e.rollout for e in events if isinstance(e, RolloutStarted)]
    assert started == list(range(80))
    assert fates(events) == started
    versions = [e.version for e in events if isinstance(e, PolicyPublished)]
    assert versions == list(range(1, len(versions) + 1))
    assert len(versions) >= 15
    published = 0
    for event in events:
        if isinstance(event, PolicyPublished):
            published = event.version
        if isinstance(event, TurnSampled):
            assert max(s.version for s in event.completion.versions) <= published
    assert {e.concept for e in events if isinstance(e, Evaluated)} == {"A", "B"}


def test_failures_are_events_and_the_run_goes_on():
    executor, events = live(make_environment=lambda: ScriptedEnvironment(fails=0.4), rollouts=60)
    history = [event for _, event in events]
    executor.close()
    failed = [e for e in history if isinstance(e, RolloutFailed)]
    assert 10 < len(failed) < 40
    assert fates(history) == list(range(60))


class Stuck(ScriptedEnvironment):
    """Hangs until the test is over."""

    release = threading.Event()

    def step(self, action):
        self.release.wait(20)
        return super().step(action)


def test_interrupt_ends_a_run_in_which_nothing_happens():
    executor, events = live(make_environment=Stuck, rollouts=60)
    threading.Timer(0.5, executor.interrupt).start()
    began = time.monotonic()
    history = [event for _, event in events]
    Stuck.release.set()
    executor.close()
    assert time.monotonic() - began < 10
    assert history[-1].reason == "interrupted"
    started = [e.rollout for e in history if isinstance(e, RolloutStarted)]
    assert fates(history) == started


class BrokenEngine(ScriptedEngine):
    def step(self):
        if self.active:
            raise MemoryError("out of blocks")
        return []


def test_an_engine_that_dies_ends_the_run_with_its_reason():
    executor, events = live(engine=BrokenEngine(), rollouts=60)
    with pytest.raises(RunError, match="MemoryError: out of blocks"):
        list(events)
    executor.close()


def test_closing_leaves_no_engine_thread():
    before = {t.name for t in threading.enumerate()}
    executor, events = live(rollouts=12)
    list(events)
    executor.close()
    assert "engine" not in {t.name for t in threading.enumerate()} - before
