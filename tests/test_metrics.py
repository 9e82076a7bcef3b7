"""Metrics against hand-worked values on tiny logs. One rollout is one unit of the x axis."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import linregress

from sao_gym.metrics import (
    Curve,
    Undefined,
    area_mean,
    collect,
    concept_curves,
    fading_mean,
    held_pieces,
    window_mean,
)
from sao_gym.metrics.changes import CENSORED, level, recovery_time, trend
from sao_gym.summary import quantile

REWARDS = st.lists(st.floats(-1, 1), min_size=1, max_size=60)


def curve(*points):
    return Curve(tuple(x for x, _ in points), tuple(y for _, y in points))


def scored(script, points, until=None):
    """Write evaluations {started: {concept: score}} in order."""
    for x, scores in points.items():
        script.until(x)
        script.evaluate(**scores)
    if until is not None:
        script.until(until)
    return script


# Facts


def test_lags_are_token_weighted_against_the_learner_that_trained(script):
    script.change("A")
    first = [script.rollout(1.0), script.rollout(0.0)]
    script.update(first)  # version 0 -> 1, lag 0
    old = script.rollout(1.0, [(0, 3)])
    mixed = script.rollout(1.0, [(0, 1), (1, 4)])
    script.update([old, mixed])  # learner version 1: lags 1 x 3, 1 x 1, 0 x 4
    facts = collect(script.records())
    assert facts.updates[0].lags == {0: 2}
    assert facts.updates[1].lags == {1: 4, 0: 4}
    assert facts.updates[1].lag_mean == 0.5  # what the loop said
    assert facts.updates[1].tokens == 8


@given(
    spans=st.lists(
        st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), min_size=1, max_size=3),
        min_size=1,
        max_size=4,
    )
)
def test_folded_lags_agree_with_the_lags_the_loop_reports(new_script, spans):
    script = new_script()
    script.change("A")
    for _ in range(3):
        script.update([script.rollout(0.0)])
    script.update([script.rollout(0.0, one) for one in spans])
    update = collect(script.records()).updates[-1]
    tokens = sum(update.lags.values())
    mean = sum(lag * n for lag, n in update.lags.items()) / tokens
    assert mean == pytest.approx(update.lag_mean)
    assert max(update.lags) == update.lag_max


def test_concept_lag_is_the_share_of_tokens_begun_under_a_concept_that_left(script):
    script.change("A")
    before = script.rollout(1.0, [(0, 3)])
    script.change("B")
    after = script.rollout(1.0, [(0, 1)])
    script.update([before, after])
    assert collect(script.records()).updates[0].concept_lag == 0.75


def test_inside_a_drift_window_both_concepts_count_as_holding(script):
    script.change("A")
    before = script.rollout(1.0)
    script.change("B", "gradual", "window_began")
    script.update([before])
    left = script.rollout(1.0)
    script.change("B", "gradual", "window_ended")
    script.update([left])
    assert [u.concept_lag for u in collect(script.records()).updates] == [0.0, 1.0]


def test_clocks_at_reads_all_clocks_when_a_rollout_started(script):
    script.change("A")
    script.update([script.rollout(1.0), script.rollout(0.0)])
    third = script.start()
    script.turn(third)
    facts = collect(script.records())
    clocks = facts.clocks_at(3)
    assert (clocks.started, clocks.completed, clocks.consumed, clocks.version) == (3, 2, 2, 1)
    assert (clocks.tokens, clocks.seconds) == (2, 3.5)  # two turns of 1.25 s, an update of 1 s
    assert (facts.clocks_at(2).completed, facts.clocks_at(2).seconds) == (1, 1.25)
    assert facts.clocks_at(0).seconds == 0.0
    assert facts.tokens == 3


# Curves


def test_curves_are_by_concept_and_a_missing_score_is_no_point(script):
    script.change("A")
    scored(script, {0: {"A": 0.5, "B": 0.1}, 3: {"A": float("nan")}, 5: {"A": 0.75}})
    assert concept_curves(collect(script.records())) == {
        "A": curve((0, 0.5), (5, 0.75)),
        "B": curve((0, 0.1)),
    }


def test_the_held_curve_is_cut_at_changes_and_begins_with_the_unchanged_policy(script):
    script.change("A")
    scored(script, {0: {"A": 0.2, "B": 0.1}, 6: {"A": 0.8, "B": 0.1}}, until=10)
    script.change("B")
    scored(script, {12: {"A": 0.8, "B": 0.3}, 16: {"A": 0.4, "B": 0.9}}, until=20)
    a, b = held_pieces(collect(script.records()))
    assert (a.concept, a.begin, a.end) == ("A", 0, 10)
    assert a.curve == curve((0, 0.2), (6, 0.8), (10, 0.8))
    assert (b.concept, b.begin, b.end) == ("B", 10, 20)
    assert b.curve == curve((10, 0.1), (12, 0.3), (16, 0.9), (20, 0.9))


def test_a_drift_window_counts_to_the_concept_it_leads_to(script):
    script.change("A")
    scored(script, {0: {"A": 0.5, "B": 0.5}}, until=10)
    script.change("B", "gradual", "window_began")
    script.until(15)
    script.change("B", "gradual", "window_ended")
    scored(script, {18: {"B": 0.7}}, until=20)
    pieces = held_pieces(collect(script.records()))
    assert [(p.concept, p.begin, p.end) for p in pieces] == [("A", 0, 10), ("B", 10, 20)]


def test_the_mean_over_the_axis_does_not_depend_on_how_often_one_looked():
    sparse = curve((0, 0.0), (10, 1.0))
    dense = curve((0, 0.0), (1, 0.1), (2, 0.2), (3, 0.3), (10, 1.0))
    assert area_mean([sparse]) == pytest.approx(0.5)
    assert area_mean([dense]) == pytest.approx(0.5)
    assert area_mean([curve((0, 0.0), (1, 0.0)), curve((5, 1.0), (8, 1.0))]) == pytest.approx(0.75)
    assert isinstance(area_mean([curve((3, 1.0))]), Undefined)


def test_prequential_means_by_hand():
    assert window_mean([1, 0, 1, 1], 2) == [1.0, 0.5, 0.5, 1.0]
    # S: 1, 0.5, 1.25; B: 1, 1.5, 1.75
    assert fading_mean([1, 0, 1], 0.5) == pytest.approx([1.0, 1 / 3, 5 / 7])


@given(REWARDS, st.integers(1, 70))
def test_the_window_mean_is_the_mean_of_the_last_rewards(rewards, window):
    expected = [np.mean(rewards[max(0, k + 1 - window) : k + 1]) for k in range(len(rewards))]
    assert window_mean(rewards, window) == pytest.approx(expected, abs=1e-9)


@given(REWARDS, st.floats(0, 1))
def test_the_fading_mean_is_the_weighted_mean(rewards, alpha):
    weights = [alpha ** (len(rewards) - 1 - k) for k in range(len(rewards))]
    expected = math.fsum(w * r for w, r in zip(weights, rewards, strict=True)) / math.fsum(weights)
    assert fading_mean(rewards, alpha)[-1] == pytest.approx(expected, abs=1e-9)


def test_rewards_are_in_completion_order_not_in_start_order(script):
    script.change("A")
    slow, quick = script.start(), script.start()
    script.turn(quick, reward=1.0)
    script.finish(quick)
    script.turn(slow, reward=0.0)
    script.finish(slow)
    assert [done.reward for done in collect(script.records()).finished] == [1.0, 0.0]


# Level and trend


def test_level_is_the_mean_over_the_last_quarter_the_end_excluded():
    points = curve((0, 0.0), (75, 0.6), (80, 0.8), (100, 9.0))
    assert level(points, 0, 100) == pytest.approx(0.7)
    assert level(points, 0, 100, closed=True) == pytest.approx((0.6 + 0.8 + 9.0) / 3)
    assert isinstance(level(points, 0, 60), Undefined)


@given(st.lists(st.floats(0, 1), min_size=3, max_size=12))
def test_the_slope_is_that_of_least_squares(ys):
    xs = [75 + 2 * k for k in range(len(ys))]
    slope, _ = trend(curve(*zip(xs, ys, strict=True)), 0, 100)
    assert slope == pytest.approx(1000 * linregress(xs, ys).slope, abs=1e-6)


def test_a_level_that_still_rises_is_not_converged():
    rising = [(75 + 5 * k, 0.5 + 0.05 * k + (0.004 if k % 2 else 0)) for k in range(5)]
    flat = [(75 + 5 * k, 0.5 + (0.05 if k % 2 else 0)) for k in range(5)]
    falling = [(x, 1 - y) for x, y in rising]
    assert trend(curve(*rising), 0, 100)[1] is False
    assert trend(curve(*flat), 0, 100)[1] is True
    assert trend(curve(*falling), 0, 100)[1] is True
    creeping = [(75 + 5 * k, 0.5 + 0.003 * k) for k in range(5)]  # 0.015 over the window: noise
    assert trend(curve(*creeping), 0, 100)[1] is True
    slope, converged = trend(curve((80, 0.1), (90, 0.9)), 0, 100)
    assert isinstance(slope, Undefined)
    assert converged is None


# Recovery: from 0.2 up to 80 % of a loss of 0.5 is 0.6; the segment is 100 long, so is held for 10


def recovered(points, *, share=0.8, end=200, before=0.7, floor=0.2):
    return recovery_time(curve(*points), 100, end, before, floor, share)


def test_recovery_is_timed_from_the_change():
    assert recovered([(105, 0.2), (120, 0.6), (125, 0.7), (130, 0.7)]) == 20
    assert recovered([(105, 0.2), (120, 0.6), (125, 0.7), (130, 0.7)], share=0.5) == 20
    assert recovered([(105, 0.46), (120, 0.6), (125, 0.7), (130, 0.7)], share=0.5) == 5


def test_a_first_crossing_that_is_lost_again_is_no_recovery():
    points = [(105, 0.65), (110, 0.3), (150, 0.6), (155, 0.7), (160, 0.7), (165, 0.7)]
    assert recovered(points) == 50


def test_a_single_evaluation_is_no_sustain_window():
    assert recovered([(110, 0.7), (150, 0.1), (190, 0.1)]) is CENSORED
    assert recovered([(110, 0.7), (150, 0.7), (190, 0.1)]) is CENSORED  # 2 of 3 hold
    assert recovered([(110, 0.7), (150, 0.7), (190, 0.7)]) == 10


def test_one_in_ten_may_fall_short_in_a_dense_sustain_window():
    dense = [(120 + k, 0.65) for k in range(11)]
    dense[4] = (124, 0.5)
    assert recovered(dense) == 20  # 10 of 11 hold
    dense[6] = (126, 0.5)
    assert recovered(dense) != 20


def test_what_comes_too_late_is_censored_and_never_imputed():
    assert recovered([(105, 0.2), (150, 0.5), (199, 0.59)]) is CENSORED
    assert recovered([(191, 0.7), (193, 0.7), (195, 0.7), (198, 0.7)]) is CENSORED  # 191 + 10 > 200
    assert recovered([]) is CENSORED


def test_without_a_loss_there_is_nothing_to_recover():
    for before, floor in ((0.5, 0.5), (0.5, 0.8), (0.5, 0.47)):
        found = recovered([(105, 0.9)], before=before, floor=floor)
        assert isinstance(found, Undefined)
        assert found is not CENSORED


def test_a_missing_level_is_passed_on_as_undefined():
    why = Undefined("no evaluation")
    assert recovered([(105, 0.9)], before=why) is why
    assert recovered([(105, 0.9)], floor=why) is why


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_recovery_holds_what_it_promises(ys):
    points = [(100 + 4 * k, y) for k, y in enumerate(ys)]
    end = points[-1][0] + 4
    found = recovered(points, end=end)
    if isinstance(found, Undefined):
        return
    after = [y for x, y in points if x >= 100 + found][:3]
    assert len(after) == 3
    assert after[0] >= 0.6 - 1e-9
    assert 0 <= found <= end - 100


@given(st.lists(st.floats(0, 1), min_size=3, max_size=30))
def test_a_larger_share_never_comes_earlier(ys):
    points = [(100 + 4 * k, y) for k, y in enumerate(ys)]
    times = [recovered(points, share=share, end=100 + 4 * len(ys)) for share in (0.5, 0.8, 0.9)]
    known = [math.inf if isinstance(time, Undefined) else time for time in times]
    assert known == sorted(known)


# Quantiles


@given(st.dictionaries(st.integers(0, 50), st.integers(1, 5), min_size=1), st.floats(0.01, 1))
def test_the_token_quantile_is_that_of_the_written_out_tokens(counts, q):
    tokens = [value for value, n in counts.items() for _ in range(n)]
    assert quantile(counts, q) == np.quantile(tokens, q, method="inverted_cdf")
