"""The same loop on the wall clock: order is the world's, promises are the loop's."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from live_runs import keeps_promises, play, start
from scripted import of

from sao_gym.assemble import assemble
from sao_gym.doubles import (
    ScriptedEngine,
    ScriptedEnvironment,
    ScriptedLearner,
)
from sao_gym.errors import StalledError
from sao_gym.events import (
    EnvironmentStepped,
    Evaluated,
    PolicyPublished,
    RolloutFailed,
    RolloutStarted,
    TurnSampled,
)
from sao_gym.scenario import load_scenario

TINY = Path(__file__).parent / "data" / "tiny.yaml"


def test_a_real_scenario_runs_live_with_the_same_promises():
    with assemble(load_scenario(TINY), live=True) as ready:
        history = list(ready.events())
    keeps_promises(history, 80)
    assert len(of(history, PolicyPublished)) >= 15
    assert {e.concept for e in of(history, Evaluated)} == {"A", "B"}


def test_failures_are_events_and_the_run_goes_on():
    history = play(make_environment=lambda: ScriptedEnvironment(fails=0.4))
    assert 10 < len(of(history, RolloutFailed)) < 40
    keeps_promises(history, 60)


# -- hanging parts -------------------------------------------------------------------------------


class Stuck:
    """A part that hangs until the test is over."""

    def __init__(self):
        self.free = threading.Event()

    def environment(self):
        outer = self

        class Hangs(ScriptedEnvironment):
            def step(self, action):
                outer.free.wait(30)
                return super().step(action)

        return Hangs()

    def engine(self):
        outer = self

        class Hangs(ScriptedEngine):
            def step(self):
                outer.free.wait(30)
                return super().step()

        return Hangs()

    def learner(self):
        outer = self

        class Hangs(ScriptedLearner):
            def update(self, batch):
                outer.free.wait(30)
                return super().update(batch)

        return Hangs(batch_size=4)

    def evaluator(self):
        outer = self

        class Hangs:
            def evaluate(self, weights, concepts):
                outer.free.wait(30)
                return []

        return Hangs()


@pytest.fixture
def stuck():
    part = Stuck()
    yield part
    part.free.set()


def test_interrupt_ends_a_run_in_which_nothing_happens(stuck):
    executor, events = start(make_environment=stuck.environment)
    threading.Timer(0.3, executor.interrupt).start()
    began = time.monotonic()
    history = list(events)
    assert time.monotonic() - began < 10
    stuck.free.set()
    executor.close()
    assert history[-1][1].reason == "interrupted"
    keeps_promises(history, len(of(history, RolloutStarted)))


@pytest.mark.parametrize(
    ("part", "line"),
    [
        ("environment", r"environment: rollouts 8 \(0, 1, 2, 3, 4, 5, 6, 7\); engine: none"),
        ("engine", r"engine: 8 \(0, 1, 2, 3, 4, 5, 6, 7\); learner: updates none"),
        ("learner", r"engine: none; learner: updates 1 \(1\); publishes none"),
        ("evaluator", r"publishes none; evaluation: versions 2 \(0, 15\)"),
    ],
)
def test_the_watchdog_tells_what_is_waited_for(stuck, part, line):
    parts = {
        "environment": {"make_environment": stuck.environment},
        "engine": {"engine": stuck.engine()},
        "learner": {"learner": stuck.learner(), "max_lag": 1},
        "evaluator": {"evaluator": stuck.evaluator(), "evaluate_every": 1000},
    }[part]
    executor, events = start(patience={"watchdog": 0.5}, **parts)
    history = []
    began = time.monotonic()
    with pytest.raises(StalledError, match=r"no event for 0\.5 s; .*" + line):
        history.extend(events)
    assert time.monotonic() - began < 15
    stuck.free.set()
    executor.close()


def test_a_hung_update_stalls_an_interrupted_run_too(stuck):
    learner = stuck.learner()
    executor, events = start(learner=learner, patience={"watchdog": 0.5}, max_lag=1)
    threading.Timer(0.2, executor.interrupt).start()
    with pytest.raises(StalledError, match=r"learner: updates 1 \(1\)"):
        list(events)
    stuck.free.set()
    executor.close()


class NeverSelects(ScriptedLearner):
    def select(self, waiting):
        return []


def test_a_run_in_which_nothing_can_happen_stalls_at_once():
    began = time.monotonic()
    with pytest.raises(StalledError, match="nothing can happen any more; .*waiting 8 "):
        play(learner=NeverSelects(batch_size=4), max_lag=1, patience={"watchdog": 1000})
    assert time.monotonic() - began < 10


# -- closing -------------------------------------------------------------------------------------

OURS = {"engine", "environment", "learner", "evaluation", "disposal"}


def ours():
    return [thread for thread in threading.enumerate() if thread.name in OURS]


def gone(before):
    """Whether all of our threads but `before` end soon."""
    until = time.monotonic() + 10
    while set(ours()) - set(before) and time.monotonic() < until:
        time.sleep(0.01)
    return not set(ours()) - set(before)


def test_closing_ends_every_thread():
    before = ours()
    play(rollouts=12)
    assert gone(before)


@pytest.mark.parametrize(
    ("part", "asked"), [("environment", TurnSampled), ("engine", EnvironmentStepped)]
)
def test_closing_does_not_wait_for_a_part_that_hangs(stuck, part, asked):
    before = ours()
    parts = {
        "environment": {"make_environment": stuck.environment},
        "engine": {"engine": stuck.engine()},
    }
    executor, events = start(**parts[part])
    next(event for _, event in events if isinstance(event, asked))
    time.sleep(0.1)
    began = time.monotonic()
    executor.close()
    assert time.monotonic() - began < 10
    left = set(ours()) - set(before)
    assert left
    assert all(thread.daemon for thread in left)
    events.close()
    stuck.free.set()
    assert gone(before)


HANGS = """
import sys, threading
sys.path.insert(0, sys.argv[1])
from live_runs import start
from sao_gym.doubles import ScriptedEnvironment
from sao_gym.events import RolloutFailed

class Hangs(ScriptedEnvironment):
    def step(self, action):
        threading.Event().wait()

executor, events = start(make_environment=Hangs, patience={"environment": 0.1})
print(next(event.failure.kind for _, event in events if isinstance(event, RolloutFailed)))
executor.close()
"""


def test_a_process_ends_although_an_environment_hangs():
    support = str(Path(__file__).parent / "support")
    done = subprocess.run(
        [sys.executable, "-c", HANGS, support], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "timeout\n", "")


class Counted(ScriptedEnvironment):
    """Counts instances that were closed; the first hangs when it is."""

    made = 0
    closed = 0
    free = threading.Event()

    def __init__(self):
        super().__init__(fails=0.2)
        self.first = Counted.made == 0
        Counted.made += 1

    def close(self):
        if self.first:
            self.free.wait(30)
        Counted.closed += 1


def test_every_environment_is_closed_and_one_that_hangs_then_stops_nothing():
    history = play(make_environment=Counted)
    keeps_promises(history, 60)
    Counted.free.set()
    until = time.monotonic() + 10
    while Counted.closed < Counted.made and time.monotonic() < until:
        time.sleep(0.01)
    assert Counted.closed == Counted.made > 8
