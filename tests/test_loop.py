"""The loop's promises, on scripted parts in virtual time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import A, B, fates, of, simulate, timeline

from sao_gym.admission import free_slots
from sao_gym.doubles import ScriptedAgent, ScriptedEngine, ScriptedEnvironment, ScriptedLearner
from sao_gym.errors import FailuresError, InputError, StalledError
from sao_gym.events import (
    Evaluated,
    PolicyPublished,
    RolloutFailed,
    RolloutFinished,
    RolloutStarted,
    TurnSampled,
    UpdateFinished,
    to_record,
)
from sao_gym.invariants import check


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 99),
    slots=st.integers(1, 12),
    max_lag=st.integers(0, 4),
    groups=st.sampled_from([(4, 1), (4, 2), (4, 4), (1, 1), (6, 3)]),
    sigma=st.sampled_from([0.0, 1.0, 2.0]),
    update=st.floats(0.0, 20.0),
    publish=st.floats(0.0, 5.0),
    fails=st.sampled_from([0.0, 0.3]),
    inflight=st.sampled_from(["pin", "live", "abort", "reward_late"]),
)
def test_invariants(seed, slots, max_lag, groups, sigma, update, publish, fails, inflight):
    batch_size, group_size = groups

    def play():
        return list(
            simulate(
                seed=seed,
                world=timeline(
                    A | {"length": 20}, {"drift": {"kind": "abrupt"}}, B, inflight=inflight
                ),
                make_environment=lambda: ScriptedEnvironment(vary=True, fails=fails),
                slots=slots,
                max_lag=max_lag,
                batch_size=batch_size,
                group_size=group_size,
                sigma=sigma,
                update=update,
                publish=publish,
            )
        )

    history = play()
    check(
        history,
        slots=slots,
        max_lag=max_lag,
        batch_size=batch_size,
        group_size=group_size,
        reward_late=inflight == "reward_late",
    )
    assert history == play(), "same seed, same events"


def test_the_bound_is_reached_and_not_passed():
    for bound in (0, 1, 2, 3):
        history = list(simulate(slots=64, max_lag=bound, sigma=1.5, rollouts=400))
        lags = [event.lag_max for event in of(history, UpdateFinished)]
        assert max(lags) == bound


def test_lag_is_counted_from_the_learner_not_from_what_is_published():
    """With slow publishes the learner is ahead of the published version when it takes a batch."""
    history = list(simulate(slots=32, publish=4.0, rollouts=200))
    sampled: dict[int, list[int]] = {}
    published, ahead = 0, 0
    for _, event in history:
        match event:
            case PolicyPublished(version=version):
                published = version
            case TurnSampled(completion=done):
                sampled.setdefault(done.rollout, []).append(done.versions[0].version)
            case UpdateFinished(version=version, rollouts=batch):
                lags = [version - 1 - old for rollout in batch for old in sampled[rollout]]
                assert event.lag_max == max(lags)
                assert event.lag_mean == pytest.approx(sum(lags) / len(lags))
                ahead += published < version - 1
    assert ahead > 5


def test_lag_zero_is_synchronous():
    """Nothing starts while a batch is being made or trained on; nothing is ever dropped."""
    history = list(simulate(slots=64, max_lag=0, rollouts=40, publish=0.5))
    assert {what for _, what in fates(history)} == {"trained"}
    open_now, kinds = 0, []
    for _, event in history:
        if isinstance(event, RolloutStarted):
            open_now += 1
            assert open_now <= 4
        elif isinstance(event, PolicyPublished):
            open_now = 0
            kinds.append(event.version)
    assert kinds == list(range(1, 11))


def test_weights_load_when_the_publish_is_handled_and_not_before():
    history = list(simulate(update=3.0, publish=7.0, rollouts=200))
    published_at = {e.version: t for t, e in history if isinstance(e, PolicyPublished)}
    finished_at = {e.version: t for t, e in history if isinstance(e, UpdateFinished)}
    sampled_at: dict[int, float] = {}
    for t, event in history:
        if isinstance(event, TurnSampled):
            sampled_at.setdefault(event.completion.versions[0].version, t)
    for version, first in sampled_at.items():
        if version:
            assert first >= published_at[version]
            assert published_at[version] >= finished_at[version] + 7.0 - 1e-9


def test_at_one_instant_a_publish_comes_before_the_tick():
    """Durations are halves, so that instants coincide to the bit."""
    history = list(simulate(sigma=0.0, decode=0.5, update=1.0, publish=0.5, rollouts=200))
    published = {t: e.version for t, e in history if isinstance(e, PolicyPublished)}
    together = [
        (event.completion.versions[0].version, published[t])
        for t, event in history
        if isinstance(event, TurnSampled) and t in published
    ]
    assert len(together) > 10
    assert all(sampled == version for sampled, version in together)


def test_golden():
    """The log of a small run, read through once by hand. Floats to six digits: libm differs."""

    def rounded(line):
        return json.loads(line, parse_float=lambda text: round(float(text), 6))

    records = [
        rounded(json.dumps(to_record(t, event)))
        for t, event in simulate(slots=3, batch_size=2, rollouts=6, evaluate_every=2)
    ]
    golden = Path(__file__).parent / "golden" / "scripted.jsonl"
    assert records == [rounded(line) for line in golden.read_text().splitlines()]


def test_failures_are_counted_and_never_trained_on():
    history = list(simulate(make_environment=lambda: ScriptedEnvironment(fails=0.3), rollouts=200))
    failed = of(history, RolloutFailed)
    assert 30 < len(failed) < 90
    assert {event.failure.kind for event in failed} == {"environment"}
    assert "scripted failure" in failed[0].failure.detail
    trained = {r for r, what in fates(history) if what == "trained"}
    assert not trained & {event.rollout for event in failed}


def test_too_many_failures_stop_the_run_and_keep_what_it_has():
    events = simulate(
        make_environment=lambda: ScriptedEnvironment(fails=0.5),
        rollouts=500,
        stop_above=0.2,
        failures_after=30,
    )
    history = []
    with pytest.raises(FailuresError, match=r"rollouts failed \(environment \d+\)"):
        _collect(events, history)
    assert history[-1][1].reason == "failures"
    check(history, slots=8, max_lag=2, batch_size=4)


def _collect(events, into):
    """Keeps what was yielded before an error."""
    for item in events:
        into.append(item)


class BrokenContract(ScriptedEnvironment):
    def reset(self, *, seed=None, options=None):
        observation, info = super().reset(seed=seed, options=options)
        return observation, {"concept": {"good": "b"}}


def test_a_concept_that_was_not_applied_is_a_contract_failure():
    history = list(simulate(make_environment=BrokenContract, rollouts=5, stop_above=1.0))
    kinds = {(e.failure.kind, e.failure.detail) for e in of(history, RolloutFailed)}
    assert kinds == {("contract", "concept parameter 'good' was declared 'a', applied 'b'")}


class NeverSelects(ScriptedLearner):
    def select(self, waiting):
        return []


class Unsayable(ScriptedAgent):
    def observe(self, observation):
        raise InputError("the tokenizer has no token for 'z'")


def test_an_observation_that_cannot_be_said_is_a_contract_failure():
    history = list(simulate(agent=Unsayable(), rollouts=5, stop_above=1.0))
    failed = {(e.failure.kind, e.failure.detail) for e in of(history, RolloutFailed)}
    assert failed == {("contract", "the tokenizer has no token for 'z'")}
    check(history, slots=8, max_lag=2, batch_size=4)


class TwoSpellings(ScriptedAgent):
    """Token 4 says what token 2 says, and is how the agent itself would spell it."""

    def act(self, action_ids):
        return "a" if action_ids[0] in (2, 4) else "b"

    def spell(self, action):
        return (4 if action == "a" else 3,)


def test_the_context_is_what_was_observed_and_sampled(monkeypatch):
    asked = []
    submit = ScriptedEngine.submit

    def noted(engine, request):
        asked.append((request.turn, list(request.context_ids)))
        submit(engine, request)

    monkeypatch.setattr(ScriptedEngine, "submit", noted)
    history = list(simulate(agent=TwoSpellings(), rollouts=5))
    assert max(turn for turn, _ in asked) == 4
    for turn, context in asked:
        assert context == [1] + [2, 1] * (turn - 1)
    for event in of(history, RolloutFinished):
        turns = event.trajectory.turns
        assert [(t.observation_ids, t.action_ids) for t in turns] == [((1,), (2,))] * 4


def test_a_stall_is_an_error_that_names_what_waits():
    history = []
    with pytest.raises(StalledError, match=r"waiting 12 \(0, "):
        _collect(simulate(learner=NeverSelects(batch_size=4), rollouts=1000, max_lag=2), history)
    assert history[-1][1].reason == "stalled"
    check(history, slots=8, max_lag=2, batch_size=4)


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"updates": 5}, "updates"),
        ({"seconds": 17.0}, "seconds"),
        ({"rollouts": 33}, "rollouts"),
        ({"tokens": 50}, "tokens"),
        ({"completed": 21}, "completed"),
        ({"consumed": 20}, "consumed"),
    ],
)
def test_budgets(limits, reason):
    history = list(simulate(**({"rollouts": None} | limits)))
    end = history[-1][1]
    assert end.reason == reason
    reached = {
        "updates": end.clocks.version,
        "seconds": end.clocks.seconds,
        "rollouts": end.clocks.started,
        "tokens": end.clocks.tokens,
        "completed": end.clocks.completed,
        "consumed": end.clocks.consumed,
    }[reason]
    assert limits[reason] <= reached <= limits[reason] * 1.2
    if reason not in ("seconds", "tokens"):
        assert reached == limits[reason]
    check(history, slots=8, max_lag=2, batch_size=4)


def test_evaluation_changes_nothing_else():
    world = timeline(A | {"length": 30}, {"drift": {"kind": "abrupt"}}, B)
    plain = list(simulate(world=world))
    watched = list(simulate(world=world, evaluate_every=3))
    assert [item for item in watched if not isinstance(item[1], Evaluated)] == plain
    scores = of(watched, Evaluated)
    assert {event.concept for event in scores} == {"A", "B"}
    last = of(watched, PolicyPublished)[-1].version
    assert {event.version for event in scores} >= {0, 3, 6, last}


@pytest.mark.parametrize(
    ("running", "admitted", "version", "expected"),
    [(0, 0, 0, 4), (3, 3, 0, 1), (0, 12, 0, 0), (0, 12, 1, 4), (4, 4, 5, 0), (9, 9, 5, 0)],
)
def test_free_slots(running, admitted, version, expected):
    assert expected == free_slots(
        running=running, slots=4, admitted=admitted, version=version, batch_size=4, max_lag=2
    )
