"""Declared and real faults on the wall clock: each has its outcome, and no rollout is lost."""

from __future__ import annotations

import queue
import threading
import time

import pytest
from live_runs import keeps_promises, play, start
from scripted import fates, of

from sao_gym.doubles import ScriptedEngine, ScriptedEnvironment, ScriptedLearner
from sao_gym.errors import RunError
from sao_gym.events import (
    CheckpointTaken,
    EnvironmentStepped,
    FaultHandled,
    PolicyPublished,
    RolloutFailed,
    TurnSampled,
    UpdateFinished,
)
from sao_gym.executors.trainers import InlineTrainer
from sao_gym.executors.workers import Workers


def handled(history):
    return [(e.fault, e.key, e.attempt, e.outcome) for e in of(history, FaultHandled)]


# -- environments --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "kind"),
    [
        ({"kind": "environment_raises"}, "environment"),
        ({"kind": "environment_garbage"}, "contract"),
        ({"kind": "environment_hangs"}, "timeout"),
        ({"kind": "environment_slow", "factor": 100}, "timeout"),
        ({"kind": "worker_lost"}, "worker"),
    ],
)
def test_an_environment_that_fails_fails_its_rollout(rule, kind):
    history = play(faults=[{**rule, "at": (3, 9, 10)}], patience={"environment": 0.5})
    failed = {e.rollout: e.failure for e in of(history, RolloutFailed)}
    assert set(failed) == {3, 9, 10}
    assert {failure.kind for failure in failed.values()} == {kind}
    keeps_promises(history, 60)


def test_a_slow_environment_answers_late():
    history = play(faults=[{"kind": "environment_slow", "at": (3,), "factor": 20}], rollouts=12)
    (slow,) = [e for e in of(history, EnvironmentStepped) if (e.rollout, e.turn) == (3, 1)]
    assert slow.seconds >= 0.199  # 20 times the 10 ms that a call takes at least
    assert not of(history, RolloutFailed)
    keeps_promises(history, 12)


def test_environments_that_hang_do_not_use_up_the_threads():
    hang = {"kind": "environment_hangs", "at": tuple(range(10))}
    history = play(faults=[hang], patience={"environment": 0.25}, workers=2)
    assert {e.rollout for e in of(history, RolloutFailed)} == set(range(10))
    assert len([what for _, what in fates(history) if what == "trained"]) >= 48
    keeps_promises(history, 60)


class Late(ScriptedEnvironment):
    """Really takes longer than the limit, once in a while."""

    def __init__(self):
        super().__init__()
        self.late = False

    def reset(self, *, seed=None, options=None):
        self.late = seed is not None and seed % 4 == 0
        return super().reset(seed=seed, options=options)

    def step(self, action):
        if self.late:
            time.sleep(0.4)
        return super().step(action)


def test_an_answer_after_the_limit_is_not_heard():
    history = play(make_environment=Late, patience={"environment": 0.2}, workers=8)
    failed = of(history, RolloutFailed)
    assert failed
    assert {e.failure.kind for e in failed} == {"timeout"}
    keeps_promises(history, 60)


class Brief(ScriptedEnvironment):
    def step(self, action):
        time.sleep(0.1)
        return super().step(action)


def test_waiting_for_a_thread_is_not_the_environments_time():
    history = play(
        make_environment=lambda: Brief(turns=1),
        patience={"environment": 0.6},
        workers=1,
        rollouts=12,
    )
    assert not of(history, RolloutFailed)  # of 8 slots one acts: 0.8 s from call to answer
    keeps_promises(history, 12)


def test_a_thread_that_was_given_up_ends_with_its_job():
    inbox, free = queue.SimpleQueue(), threading.Event()
    workers = Workers("given up", 1, inbox)
    workers.submit("late", lambda: free.wait(30))
    until = time.monotonic() + 10
    abandoned = []
    while not abandoned and time.monotonic() < until:
        abandoned = workers.overdue(0.05)
    assert abandoned == ["late"]
    workers.submit("soon", lambda: 7)
    done = inbox.get(timeout=10)
    assert (done.task, done.result) == ("soon", 7)
    assert len([t for t in threading.enumerate() if t.name == "given up"]) == 2
    free.set()
    while len(left := [t for t in threading.enumerate() if t.name == "given up"]) > 1:
        assert time.monotonic() < until
    assert inbox.empty()
    workers.close()
    workers.join(until)
    assert not left[0].is_alive()


class Exits(ScriptedEnvironment):
    exits = True

    def step(self, action):
        if Exits.exits:
            Exits.exits = False
            raise SystemExit(3)
        return super().step(action)


def test_an_environment_that_ends_its_thread_loses_its_rollout_only():
    history = play(make_environment=Exits, workers=1)
    assert [e.failure.kind for e in of(history, RolloutFailed)] == ["worker"]
    keeps_promises(history, 60)


# -- the engine ----------------------------------------------------------------------------------


def test_an_engine_that_dies_is_restarted_and_goes_on():
    history = play(faults=[{"kind": "engine_dies", "at": (1, 4, 9)}])
    assert handled(history) == [("engine_dies", n, 0, "restarted") for n in (1, 4, 9)]
    assert not of(history, RolloutFailed)
    keeps_promises(history, 60)


class Dies(ScriptedEngine):
    """Dies of `error` in the `at`-th call of each method named in `where`."""

    def __init__(self, error, where, at=3):
        super().__init__()
        self.error, self.left, self.restarts = error, dict.fromkeys(where, at), 0

    def perhaps(self, where):
        if where in self.left:
            self.left[where] -= 1
            if self.left[where] == 0:
                raise self.error

    def submit(self, request):
        self.perhaps("submit")
        super().submit(request)

    def step(self):
        self.perhaps("step")
        return super().step()

    def load(self, weights, version):
        self.perhaps("load")
        super().load(weights, version)

    def release(self, rollout):
        self.perhaps("release")
        super().release(rollout)

    def restart(self):
        self.restarts += 1
        self.perhaps("restart")
        super().restart()


@pytest.mark.parametrize("where", ["step", "submit", "load", "release"])
@pytest.mark.parametrize("error", [SystemExit(), MemoryError("out of blocks\nat line 2")])
def test_a_death_anywhere_loses_nothing(where, error):
    engine = Dies(error, [where])
    history = play(engine=engine)
    *reloaded, event = of(history, FaultHandled)
    assert [e.fault for e in reloaded] == ["engine_stale"] * (where == "load")
    assert (event.fault, event.outcome) == ("engine_dies", "restarted")
    cause = "SystemExit: " if isinstance(error, SystemExit) else "MemoryError: out of blocks"
    assert event.detail.endswith(f"requests submitted again; {cause}")
    assert engine.restarts == 1
    assert not of(history, RolloutFailed)
    keeps_promises(history, 60)


def test_a_restart_that_fails_is_another_death():
    engine = Dies(OSError("no device"), ["step", "restart"], at=1)
    history = play(engine=engine)
    assert [(e.attempt, e.outcome) for e in of(history, FaultHandled)] == [(1, "restarted")]
    assert engine.restarts == 2
    keeps_promises(history, 60)


class AlwaysDies(ScriptedEngine):
    restarts = 0

    def step(self):
        raise MemoryError("out of blocks")

    def restart(self):
        self.restarts += 1
        super().restart()


def test_an_engine_that_always_dies_ends_the_run_with_its_reason():
    engine, history = AlwaysDies(), []
    executor, events = start(engine=engine, patience={"retries": 2})
    with pytest.raises(RunError, match="died 3 times in a row, last: MemoryError: out of blocks"):
        history.extend(events)
    executor.close()
    assert engine.restarts == 2
    assert [e.attempt for e in of(history, FaultHandled)] == [0, 1]


def test_declared_deaths_without_a_tick_between_end_the_run():
    with pytest.raises(RunError, match="died 4 times in a row, last: a declared fault"):
        play(faults=[{"kind": "engine_dies", "rate": 1.0}])


def test_deaths_with_a_tick_between_are_not_in_a_row():
    ticks = tuple(range(1, 24, 2))
    history = play(faults=[{"kind": "engine_dies", "at": ticks}], patience={"retries": 1})
    assert [e.attempt for e in of(history, FaultHandled)] == [0] * len(ticks)
    keeps_promises(history, 60)


def test_an_engine_that_missed_a_publish_is_found_out():
    history = play(faults=[{"kind": "engine_stale", "at": (2, 5)}])
    assert handled(history) == [("engine_stale", n, 0, "reloaded") for n in (2, 5)]
    keeps_promises(history, 60)
    sampled = {s.version for e in of(history, TurnSampled) for s in e.completion.versions}
    assert max(sampled) > 5


class Deaf(ScriptedEngine):
    def holds(self, weights):
        return self.version != 2


def test_an_engine_that_does_not_take_the_weights_ends_the_run():
    with pytest.raises(RunError, match="the engine does not take version 2"):
        play(engine=Deaf())


# -- learner, publishes, clock -------------------------------------------------------------------


def test_an_update_that_fails_is_tried_again():
    history = play(faults=[{"kind": "update_raises", "at": (2, 4)}])
    assert handled(history) == [("update_raises", n, 0, "retried") for n in (2, 4)]
    keeps_promises(history, 60)


@pytest.mark.parametrize("kind", ["update_raises", "publish_lost"])
def test_what_fails_every_time_ends_the_run(kind):
    history = []
    executor, events = start(faults=[{"kind": kind, "rate": 1.0}])
    with pytest.raises(RunError, match=f"{kind}: 1 failed 4 times in a row"):
        history.extend(events)
    executor.close()
    first = [told for told in handled(history) if told[1] == 1]
    assert first == [(kind, 1, n, "retried") for n in range(3)]


class Fails(ScriptedLearner):
    def update(self, batch):
        raise FloatingPointError("underflow")


def test_a_learner_that_raises_ends_the_run_with_its_batch():
    with pytest.raises(RunError, match="the learner failed: FloatingPointError") as caught:
        play(learner=Fails(batch_size=4))
    assert len(caught.value.batch) == 4


class Notes(InlineTrainer):
    def __init__(self, learner):
        super().__init__(learner)
        self.poisoned = []

    def start(self, batch, *, poison=False):
        self.poisoned.append(poison)
        super().start(batch)


def test_a_poisoned_update_is_told():
    learner = ScriptedLearner(batch_size=4)
    trainer = Notes(learner)
    history = play(
        learner=learner,
        trainer=trainer,
        faults=[{"kind": "update_nan", "at": (3,)}],
        rollouts=16,
    )
    assert trainer.poisoned == [False, False, True, False]
    assert handled(history) == [("update_nan", 3, 0, "skipped")]
    keeps_promises(history, 16)


@pytest.mark.parametrize(
    ("rule", "outcome", "seconds"),
    [
        # 30 times the 10 ms that a transfer takes at least; one pause of 0.3 s
        ({"kind": "publish_late", "factor": 30}, "late", 0.3),
        ({"kind": "publish_lost"}, "retried", 0.3),
    ],
)
def test_a_late_publish_keeps_the_order(rule, outcome, seconds):
    history = play(faults=[{**rule, "at": (2,)}], patience={"backoff": 0.3})
    assert handled(history) == [(rule["kind"], 2, 0, outcome)]
    (made,) = [t for t, e in history if isinstance(e, UpdateFinished) and e.version == 2]
    (sent,) = [t for t, e in history if isinstance(e, PolicyPublished) and e.version == 2]
    assert sent - made >= seconds - 0.01
    between = [e for t, e in history if made < t < sent and isinstance(e, UpdateFinished)]
    assert between, "the learner goes on meanwhile"
    keeps_promises(history, 60)


def test_a_leap_of_the_clock():
    rule = {"kind": "clock_jumps", "at": (2,), "seconds": 5000}
    history = play(faults=[rule], patience={"environment": 2.0, "watchdog": 5.0})
    assert handled(history) == [("clock_jumps", 2, 0, "late")]
    times = {e.version: t for t, e in history if isinstance(e, UpdateFinished)}
    assert times[1] < 100
    assert times[2] > 5000
    assert not of(history, RolloutFailed)
    keeps_promises(history, 60)


# -- all at once ---------------------------------------------------------------------------------

CHAOS = [
    {"kind": "environment_raises", "rate": 0.02},
    {"kind": "environment_hangs", "rate": 0.02},
    {"kind": "environment_slow", "rate": 0.05, "factor": 3},
    {"kind": "worker_lost", "rate": 0.02},
    {"kind": "engine_dies", "rate": 0.1},
    {"kind": "engine_stale", "rate": 0.2},
    {"kind": "update_raises", "rate": 0.2},
    {"kind": "publish_lost", "rate": 0.2},
    {"kind": "publish_late", "rate": 0.2, "factor": 5},
    {"kind": "clock_jumps", "rate": 0.1, "seconds": 10},
]


def test_a_run_of_many_faults_keeps_its_promises_and_can_be_resumed_anywhere():
    patience = {"environment": 0.2, "retries": 8, "backoff": 0.001}
    whole = play(faults=CHAOS, patience=patience, checkpoint_every=3, max_lag=2)
    keeps_promises(whole, 60)
    assert {e.failure.kind for e in of(whole, RolloutFailed)} >= {"timeout", "environment"}
    assert len(of(whole, CheckpointTaken)) >= 3
    for length, (_, event) in enumerate(whole):
        if isinstance(event, CheckpointTaken):
            rest = play(faults=CHAOS, patience=patience, max_lag=2, resume=event.state)
            keeps_promises(whole[:length] + rest, 60)


def test_threads_of_a_run_of_many_faults_end_with_it():
    ours = {"engine", "environment", "learner", "evaluation", "disposal"}
    before = {thread for thread in threading.enumerate() if thread.name in ours}
    hang = {"kind": "environment_hangs", "at": tuple(range(6))}
    play(faults=[hang], patience={"environment": 0.1})
    until = time.monotonic() + 10
    left = before
    while left and time.monotonic() < until:
        left = {t for t in threading.enumerate() if t.name in ours} - before
        time.sleep(0.01)
    assert not left
