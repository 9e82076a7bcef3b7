"""A run that is cut anywhere and continued from a checkpoint is the run that was never cut."""

from __future__ import annotations

import json

from hypothesis import example, given, settings
from hypothesis import strategies as st
from scripted import A, B, simulate, timeline

from sao_gym.doubles import ScriptedEnvironment
from sao_gym.events import CheckpointTaken, to_record
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
