"""Runs of scripted parts, for the tests of the loop."""

from __future__ import annotations

from sao_gym.doubles import ScriptedLearner, scripted_run
from sao_gym.events import RolloutDropped, RolloutFailed, UpdateFinished
from sao_gym.limits import Limits
from sao_gym.timeline import Timeline
from sao_gym.timeline_config import TimelineConfig

A = {"concept": {"id": "A", "params": {"good": "a"}}}
B = {"concept": {"id": "B", "params": {"good": "b"}}}


def timeline(*segments, **settings):
    return Timeline(TimelineConfig.model_validate({"segments": list(segments or (A,)), **settings}))


PARTS = (
    "seed",
    "make_environment",
    "agent",
    "sigma",
    "decode",
    "update",
    "publish",
    "evaluate_every",
    "faults",
    "patience",
    "checkpoint_every",
    "resume",
)


def simulate(*, world=None, slots=8, max_lag=2, batch_size=4, group_size=1, learner=None, **more):
    parts = {name: more.pop(name) for name in PARTS if name in more}
    bounds = {"rollouts": 60} | more
    return scripted_run(
        timeline=world or timeline(),
        learner=learner or ScriptedLearner(batch_size=batch_size, group_size=group_size),
        limits=Limits(slots=slots, max_lag=max_lag, **bounds),
        **parts,
    )


def of(history, kind):
    return [event for _, event in history if isinstance(event, kind)]


def fates(history):
    """Every end of every rollout, as (rollout, what)."""
    found = []
    for _, event in history:
        match event:
            case UpdateFinished(rollouts=rollouts):
                found += [(rollout, "trained") for rollout in rollouts]
            case RolloutDropped(rollout=rollout, reason=reason):
                found.append((rollout, reason))
            case RolloutFailed(rollout=rollout):
                found.append((rollout, "failed"))
    return found
