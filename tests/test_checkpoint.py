"""A run that is cut anywhere and continued from a checkpoint is the run that was never cut."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scripted import A, B, fates, of, simulate, timeline

from sao_gym.doubles import ScriptedAgent, ScriptedEnvironment
from sao_gym.errors import MachineryError, RunError
from sao_gym.events import (
    CheckpointTaken,
    RolloutFailed,
    RolloutFinished,
    RolloutStarted,
    to_record,
)
from sao_gym.faults import FaultRule, Faults, Patience

WORLD = (A | {"length": 20}, {"drift": {"kind": "abrupt"}}, B)


def lines(history):
    return [json.dumps(to_record(t, event)) for t, event in history]


def resumed(state, **parts):
    return list(simulate(resume=state, **parts))


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 99),
    slots=st.integers(1, 12),
    max_lag=st.integers(0, 4),
    groups=st.sampled_from([(4, 1), (4, 2), (6, 3)]),
    publish=st.floats(0.0, 5.0),
    fails=st.sampled_from([0.0, 0.2]),
    inflight=st.sampled_from(["pin", "live", "abort", "reward_late"]),
    evaluate_every=st.sampled_from([None, 2]),
    dies=st.sampled_from([0.0, 0.1]),
)
@example(  # trajectories wait and publishes are under way
    seed=0,
    slots=12,
    max_lag=3,
    groups=(4, 1),
    publish=3.0,
    fails=0.2,
    inflight="abort",
    evaluate_every=2,
    dies=0.0,
)
def test_every_checkpoint_continues_the_same_run(
    seed, slots, max_lag, groups, publish, fails, inflight, evaluate_every, dies
):
    batch_size, group_size = groups
    parts = {
        "seed": seed,
        "world": timeline(*WORLD, inflight=inflight),
        "make_environment": lambda: ScriptedEnvironment(vary=True, fails=fails),
        "slots": slots,
        "max_lag": max_lag,
        "batch_size": batch_size,
        "group_size": group_size,
        "publish": publish,
        "evaluate_every": evaluate_every,
        "faults": Faults([FaultRule(kind="engine_dies", rate=dies)] if dies else [], seed=seed),
        "patience": Patience(retries=50, backoff=0.1),
    }
    whole = list(simulate(checkpoint_every=1, **parts))
    taken = [i for i, (_, event) in enumerate(whole) if isinstance(event, CheckpointTaken)]
    for at in taken[:: max(1, len(taken) // 3)]:
        rest = resumed(whole[at][1].state, checkpoint_every=1, **parts)
        assert lines(whole[at + 1 :]) == lines(rest)


class Fickle(ScriptedEnvironment):
    """From some moment on, what is set up anew breaks, or shows something else."""

    broken = ""

    def reset(self, *, seed=None, options=None):
        if self.broken == "machinery":
            raise MachineryError("engine", "no box to be had")
        observation, info = super().reset(seed=seed, options=options)
        return ("oo" if self.broken == "other" else observation), info


class Literal(ScriptedAgent):
    def begin(self, observation):
        return (1,) * len(observation)


def cut(monkeypatch, how):
    """A run cut at a checkpoint with open rollouts; environments then fail in this way."""
    parts = {"make_environment": Fickle, "agent": Literal(), "stop_above": 1.0}
    whole = list(simulate(checkpoint_every=3, **parts))
    at = next(i for i, (_, e) in enumerate(whole) if isinstance(e, CheckpointTaken))
    monkeypatch.setattr(Fickle, "broken", how)
    return whole[: at + 1], resumed(whole[at][1].state, rollouts=12, **parts)


def test_an_environment_that_cannot_be_brought_back_fails_its_rollout(monkeypatch):
    before, after = cut(monkeypatch, "machinery")
    started = {e.rollout for e in of(before, RolloutStarted)}
    still_open = started - {e.trajectory.rollout for e in of(before, RolloutFinished)}
    failed = {e.rollout: e.failure.kind for e in of(after, RolloutFailed)}
    assert still_open
    assert still_open <= set(failed)
    assert set(failed.values()) == {"engine"}
    ends = [rollout for rollout, _ in fates(before + after)]
    assert sorted(ends) == sorted(started | {e.rollout for e in of(after, RolloutStarted)})


def test_a_replay_that_shows_something_else_is_an_error(monkeypatch):
    with pytest.raises(RunError, match="replaying its actions gave another answer at turn 0"):
        cut(monkeypatch, "other")
