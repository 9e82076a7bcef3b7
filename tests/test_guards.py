"""Alarms: which figure raises which, once per crossing, the same after a resume; what is fatal."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from learning import trajectory
from pydantic import ValidationError

from sao_gym.events import UpdateFinished
from sao_gym.guards import Guards, Thresholds
from sao_gym.validation import parse_strictly

OFF = {
    "entropy_below": None,
    "masked_above": None,
    "length_above": None,
    "length_below": None,
    "negative_batches": None,
    "explained_variance_below": None,
    "nonfinite_updates": None,
}


def only(**fields):
    return Guards(Thresholds(**(OFF | fields)))


def batch(*rewards, tokens=2):
    return [
        trajectory(k, 1, [3] * tokens, [-1.8] * tokens, [0.0] * (tokens - 1) + [reward])
        for k, reward in enumerate(rewards)
    ]


def feed(guards, values, name="entropy", **of_batch):
    """(version, alarm, value, bound) of what is raised while `name` takes `values`."""
    return [
        (a.version, a.alarm, pytest.approx(a.value), pytest.approx(a.bound))
        for version, value in enumerate(values, start=1)
        for a in guards.observe(finished(version, **{name: value}), batch(1.0, **of_batch))
    ]


def finished(version=1, **metrics):
    return UpdateFinished(version=version, rollouts=(), lag_mean=0.0, lag_max=0, metrics=metrics)


def test_an_alarm_is_raised_once_a_crossing_and_armed_again_in_range():
    """Means of two, from update 2 on: 1, .6, .15, .05 (out), .05, .2 (back), .155, .01 (out)."""
    guards = only(window=2, entropy_below=0.1)
    raised = feed(guards, [1.0, 1.0, 0.2, 0.1, 0.0, 0.1, 0.3, 0.01, 0.01])
    assert raised == [(5, "entropy", 0.05, 0.1), (9, "entropy", 0.01, 0.1)]


def test_nothing_is_judged_before_the_window_is_full():
    assert feed(only(window=3, entropy_below=0.1), [0.0, 0.0]) == []
    assert feed(only(window=3, entropy_below=0.1), [0.0, 0.0, 0.0]) == [(3, "entropy", 0.0, 0.1)]


def test_a_bound_is_within_the_range():
    assert feed(only(window=1, entropy_below=0.5), [0.5]) == []
    assert feed(only(window=1, masked_above=0.5), [0.5], "masked_fraction") == []


@pytest.mark.parametrize("missing", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_or_missing_is_not_counted(missing):
    """Critic warm-up reports NaN: the mean of two is that of the last two numbers."""
    guards = only(window=2, entropy_below=0.1)
    assert feed(guards, [0.05, missing, missing]) == []
    assert guards.observe(finished(4), batch(1.0)) == []
    assert feed(guards, [missing, 0.07]) == [(2, "entropy", 0.06, 0.1)]
    assert feed(guards, [missing] * 9) == []  # and it stays raised


def test_each_figure_has_its_alarm_and_direction():
    assert feed(only(window=1, masked_above=0.5), [0.4, 0.6], "masked_fraction") == [
        (2, "masked", 0.6, 0.5)
    ]
    falling = feed(
        only(window=1, explained_variance_below=-1.0), [-0.9, -1.1], "explained_variance"
    )
    assert falling == [(2, "explained_variance", -1.1, -1.0)]


def test_lengths_are_compared_with_those_of_the_first_window():
    """Mean lengths 3 and 5, so 4 at first; then means of two 6.5, 8, 12, 10, 2.5, 1.25."""
    guards = only(window=2, length_above=2.0, length_below=0.5)
    lengths = [(2, 4), (4, 6), (8, 8), (6, 10), (14, 18), (4, 4), (1, 1), (1, 2)]
    raised = []
    for version, (short, long) in enumerate(lengths, start=1):
        rolls = batch(1.0, tokens=short) + batch(1.0, tokens=long)
        raised += guards.observe(finished(version), rolls)
    assert [(a.version, a.alarm, a.value, a.bound) for a in raised] == [
        (5, "long_responses", 12.0, 8.0),
        (8, "short_responses", 1.25, 2.0),
    ]


def test_batches_in_a_row_without_a_positive_reward():
    guards = only(negative_batches=3)
    rewards = [(0.0, 0.0), (-1.0, 0.0), (0.0, 0.1), *[(0.0, 0.0)] * 5, (1.0, 0.0), *[(0.0,)] * 3]
    raised = [
        alarm
        for version, pair in enumerate(rewards, start=1)
        for alarm in guards.observe(finished(version), batch(*pair))
    ]
    assert [(a.version, a.alarm, a.value, a.bound) for a in raised] == [
        (6, "negative_batches", 3.0, 3.0),
        (12, "negative_batches", 3.0, 3.0),
    ]


def test_updates_in_a_row_with_skipped_steps_are_fatal():
    guards = only(nonfinite_updates=3)
    raised, fatal = [], []
    for version, skipped in enumerate([0.0, 2.0, 1.0, 0.0, 1.0, 1.0, 3.0, 0.0], start=1):
        raised += guards.observe(finished(version, skipped_steps=skipped), batch(1.0))
        fatal.append(guards.fatal)
    assert [(a.version, a.alarm, a.value, a.bound) for a in raised] == [
        (2, "nonfinite", 2.0, 0.0),
        (5, "nonfinite", 1.0, 0.0),
    ]
    assert [line is not None for line in fatal] == [False] * 6 + [True, False]
    assert fatal[6].startswith("the last 3 updates, up to version 7, had gradients that are not")
    assert "\n" not in fatal[6]


def test_without_the_limit_skipped_steps_alarm_but_never_stop():
    guards = only()
    assert [a[:2] for a in feed(guards, [1.0] * 20, "skipped_steps")] == [(1, "nonfinite")]
    assert guards.fatal is None
    assert guards.observe(finished(21), batch(1.0)) == []  # a learner that reports no such figure


def test_all_checks_can_be_off():
    guards = only(window=1)
    metrics = {"entropy": 0.0, "masked_fraction": 1.0, "explained_variance": -9.0}
    assert guards.observe(finished(1, **metrics), batch(1.0)) == []
    assert guards.observe(finished(2, **metrics), batch(-1.0, tokens=50)) == []


def test_thresholds_are_read_like_any_section():
    read = parse_strictly(Thresholds, {"entropy_below": None, "window": 4})
    assert read == Thresholds(entropy_below=None, window=4)
    assert all(field.description for field in Thresholds.model_fields.values())
    for wrong in ({"window": 0}, {"window": None}, {"length_above": 0.5}, {"entropy": 0.1}):
        with pytest.raises(ValidationError):
            parse_strictly(Thresholds, wrong)


def test_the_module_is_light():
    code = "import sao_gym.guards, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


FIGURE = st.sampled_from([math.nan, -3.0, -0.5, 0.0, 0.005, 0.02, 0.4, 0.7, 1.0])
UPDATES = st.lists(
    st.tuples(
        st.fixed_dictionaries(
            {},
            optional={
                "entropy": FIGURE,
                "masked_fraction": FIGURE,
                "explained_variance": FIGURE,
                "skipped_steps": st.sampled_from([0.0, 1.0]),
            },
        ),
        st.lists(st.sampled_from([-1.0, 0.0, 0.0, 1.0]), min_size=1, max_size=2),
        st.sampled_from([1, 2, 9]),
    ),
    max_size=30,
)


def observed(guards, updates, first=1):
    return [
        (guards.observe(finished(version, **metrics), batch(*rewards, tokens=tokens)), guards.fatal)
        for version, (metrics, rewards, tokens) in enumerate(updates, start=first)
    ]


@settings(deadline=None)
@given(updates=UPDATES, cut=st.integers(0, 30), window=st.integers(1, 4))
def test_a_resumed_guard_raises_what_the_first_would_have(updates, cut, window):
    straight, stopped, resumed = (Guards(Thresholds(window=window)) for _ in range(3))
    whole = observed(straight, updates)
    observed(stopped, updates[:cut])
    state = stopped.state_dict()
    kept = json.loads(json.dumps(state))  # plain data
    observed(stopped, updates)
    assert state == kept  # and a copy
    observed(resumed, [({"skipped_steps": 1.0}, [0.0], 5)] * 5)  # all of it is replaced
    resumed.load_state_dict(state)
    assert observed(resumed, updates[cut:], first=cut + 1) == whole[cut:]
    assert resumed.state_dict() == straight.state_dict()
    assert state == kept


@settings(deadline=None)
@given(
    values=st.lists(st.sampled_from([math.nan, 0.0, 0.25, 0.5, 0.75, 1.0])),
    window=st.integers(1, 4),
)
def test_alarms_are_the_steps_from_in_range_to_out_of_it(values, window):
    """By the definition, from the whole history at each update."""

    def out(count):
        seen = [value for value in values[:count] if not math.isnan(value)][-window:]
        return len(seen) == window and sum(seen) / window > 0.5

    guards = only(window=window, masked_above=0.5)
    expected = [n for n in range(1, len(values) + 1) if out(n) and not out(n - 1)]
    assert [raised[0] for raised in feed(guards, values, "masked_fraction")] == expected
