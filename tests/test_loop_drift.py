"""How a run passes through its timeline: clocks, open rollouts, what the agent is told."""

from __future__ import annotations

import pytest
from scripted import A, B, fates, of, simulate, timeline

from sao_gym.doubles import ScriptedAgent, ScriptedEnvironment
from sao_gym.events import (
    ConceptChanged,
    EnvironmentStepped,
    RolloutDropped,
    RolloutFinished,
    RolloutStarted,
)


@pytest.mark.parametrize(
    "clock", ["started", "completed", "consumed", "version", "tokens", "seconds"]
)
def test_every_clock_drives_the_drift(clock):
    length = {"version": 5, "seconds": 12.5}.get(clock, 24)
    world = timeline(A | {"length": length}, {"drift": {"kind": "abrupt"}}, B, clock=clock)
    history = list(simulate(world=world, rollouts=120))
    first, second = of(history, ConceptChanged)
    assert (first.concept.id, first.kind, first.phase) == ("A", "start", "changed")
    assert (second.concept.id, second.kind, second.segment) == ("B", "abrupt", 1)
    assert getattr(second.clocks, clock) >= length
    changed = next(i for i, (_, e) in enumerate(history) if e is second)
    concepts = [
        (i > changed, e.concept.id)
        for i, (_, e) in enumerate(history)
        if isinstance(e, RolloutStarted)
    ]
    assert concepts.count((False, "A")) > 10
    assert concepts.count((True, "B")) > 10
    assert concepts.count((True, "A")) == 0, "a rollout after the change meets the new concept"
    assert concepts.count((False, "B")) == 0


class Rewarding(ScriptedEnvironment):
    """Rewards `a` while `good` is a, as it is at the last step."""


@pytest.mark.parametrize("inflight", ["pin", "live", "abort", "reward_late"])
def test_what_happens_to_rollouts_that_are_open_at_a_change(inflight):
    """The scripted policy always says `a`: right under A, wrong under B."""
    world = timeline(A | {"length": 30}, {"drift": {"kind": "abrupt"}}, B, inflight=inflight)
    history = list(simulate(world=world, make_environment=Rewarding, rollouts=60))
    change = of(history, ConceptChanged)[1]
    at = next(i for i, (_, e) in enumerate(history) if e is change)
    before = {e.rollout for _, e in history[:at] if isinstance(e, RolloutStarted)}
    ended = {r for r, _ in fates(history[:at])} | {
        e.trajectory.rollout for _, e in history[:at] if isinstance(e, RolloutFinished)
    }
    straddlers = before - ended
    assert straddlers
    finished = {e.trajectory.rollout: e.trajectory for e in of(history, RolloutFinished)}
    for rollout in straddlers:
        if inflight == "abort":
            assert (rollout, "concept_changed") in fates(history)
            assert rollout not in finished
        else:
            trajectory = finished[rollout]
            assert trajectory.concept_start.id == "A"
            assert trajectory.reward == float(trajectory.concept_scored.id == "A")
    scored = {finished[r].concept_scored.id for r in straddlers if r in finished}
    if inflight != "abort":
        # with `live` an action that was under way at the change is still judged under A
        wanted = {"pin": {"A"}, "live": {"A", "B"}, "reward_late": {"B"}}[inflight]
        assert scored == wanted


@pytest.mark.parametrize(
    ("observability", "first", "later"),
    [("hidden", "o", "o"), ("flag", "[0]o", "[1]o"), ("context", "[A]o", "[B]o"),
     ("delta", "[]o", "[good=b]o")],
)  # fmt: skip
def test_what_the_agent_is_told(observability, first, later):
    heard = []

    class Listening(ScriptedAgent):
        def begin(self, observation):
            heard.append(observation)
            return super().begin(observation)

    world = timeline(
        A | {"length": 30}, {"drift": {"kind": "abrupt"}}, B, observability=observability
    )
    list(simulate(world=world, agent=Listening()))
    assert heard[0] == first
    assert heard[-1] == later
    assert set(heard) == {first, later}


def test_an_environment_step_after_its_rollout_ended_is_not_heard():
    world = timeline(A | {"length": 30}, {"drift": {"kind": "abrupt"}}, B, inflight="abort")
    history = list(simulate(world=world))
    dropped: set[int] = set()
    for _, event in history:
        if isinstance(event, RolloutDropped):
            dropped.add(event.rollout)
        if isinstance(event, EnvironmentStepped):
            assert event.rollout not in dropped
