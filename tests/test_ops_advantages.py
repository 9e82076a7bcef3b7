"""Critic-free advantages, whitening, and figures that may be undefined."""

from __future__ import annotations

import math
import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sao_gym.learners.ops.advantages import (
    RunningMean,
    centred,
    group_normalised,
    per_token,
    uninformative_groups,
    whiten,
)
from sao_gym.learners.ops.metrics import advantage_metrics, explained_variance, masked_mean


def vector(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_group_normalised_by_hand():
    """Interleaved groups: 5 has rewards 0, 1, 2 (mean 1, std 1); 9 has 3, 3."""
    totals, groups = vector(0, 3, 1, 3, 2), torch.tensor([5, 9, 5, 9, 5])
    torch.testing.assert_close(
        group_normalised(totals, groups, eps=0.0), vector(-1.0, 0, 0, 0, 1.0)
    )
    assert uninformative_groups(totals, groups) == 1


def test_group_without_scale_is_centred():
    totals, groups = vector(0, 4, 7, 7), torch.tensor([1, 1, 2, 2])
    assert group_normalised(totals, groups, scale=False).tolist() == [-2.0, 2.0, 0.0, 0.0]


def test_equal_rewards_give_exactly_zero():
    """0.1 summed seven times is not 0.7: rounding over a tiny std would be amplified."""
    totals = vector(*[0.1] * 7)
    assert group_normalised(totals, torch.zeros(7, dtype=torch.int64)).tolist() == [0.0] * 7


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=8))
def test_group_normalised_equals_the_statistics_module(rewards):
    actual = group_normalised(vector(*rewards), torch.zeros(len(rewards), dtype=torch.int64))
    mean, std = statistics.fmean(rewards), statistics.stdev(rewards)
    expected = [(r - mean) / (std + 1e-6) if len(set(rewards)) > 1 else 0.0 for r in rewards]
    torch.testing.assert_close(actual, vector(*expected), rtol=1e-6, atol=1e-6)


def test_batch_mean_and_leave_one_out():
    assert centred(vector(0, 0, 3)).tolist() == [-1.0, -1.0, 2.0]
    # Means of the others: 1.5, 1.5, 0.
    assert centred(vector(0, 0, 3), leave_one_out=True).tolist() == [-1.5, -1.5, 3.0]
    assert centred(vector(2), leave_one_out=True).tolist() == [0.0]


def test_running_mean_keeps_the_last_window_of_each_key():
    window = RunningMean(2)
    assert window.baseline("a") is None
    window.add(["a", "a", "b", "a"], [1.0, 2.0, 10.0, 4.0])
    assert window.baseline("a") == 3.0
    assert window.baseline("b") == 10.0
    copy = RunningMean(2)
    copy.load_state_dict(window.state_dict())
    copy.add(["a"], [6.0])
    assert copy.baseline("a") == 5.0
    assert window.baseline("a") == 3.0


def test_per_token_spreads_over_action_tokens():
    mask = torch.tensor([[True, True], [True, False]])
    assert per_token(vector(2, -1), mask).tolist() == [[2, 2], [-1, 0]]


def test_whitening_is_over_action_tokens_only():
    mask = torch.tensor([[True, True, False], [True, False, False]])
    white = whiten(torch.tensor([[1.0, 2.0, 99.0], [3.0, 99.0, 99.0]]), mask)
    torch.testing.assert_close(white, torch.tensor([[-1.0, 0, 0], [1.0, 0, 0]]))
    assert whiten(torch.tensor([[5.0]]), torch.tensor([[True]])).tolist() == [[0.0]]


def test_explained_variance_by_hand():
    mask = torch.tensor([[True, True, True, False]])
    returns = torch.tensor([[0.0, 1.0, 2.0, 50.0]])
    perfect = explained_variance(returns, returns, mask)
    assert perfect == (1.0, None)
    assert explained_variance(torch.full((1, 4), 7.0), returns, mask).value == pytest.approx(0.0)
    # Values against the trend: residual 0-2, 1-1, 2-0, variance 4 against 1. Not clamped at 0.
    worse = explained_variance(torch.tensor([[2.0, 1.0, 0.0, 9.0]]), returns, mask)
    assert worse.value == pytest.approx(-3.0)


@pytest.mark.parametrize(
    ("returns", "mask", "reason"),
    [
        ([[1.0, 1.0, 0.0]], [[True, True, False]], "every return is 1"),
        ([[1.0, 1.0 - 6e-8, 0.0]], [[True, True, False]], "every return is 1"),
        ([[1.0, 0.0, 2.0]], [[True, False, False]], "two action tokens"),
    ],
)
def test_undefined_explained_variance_says_why(returns, mask, reason):
    result = explained_variance(torch.zeros(1, 3), torch.tensor(returns), torch.tensor(mask))
    assert math.isnan(result.value)
    assert reason in result.reason


def test_advantage_figures():
    mask = torch.tensor([[True, True, False]])
    figures = advantage_metrics(torch.tensor([[1.0, -3.0, 100.0]]), mask)
    assert figures["advantage_mean"] == -1.0
    assert figures["advantage_std"] == pytest.approx(math.sqrt(8))
    assert figures["advantage_positive"] == 0.5
    assert masked_mean(torch.tensor([[1.0, 2.0, math.nan]]), mask) == 1.5
    assert math.isnan(masked_mean(torch.ones(1, 3), torch.zeros(1, 3).bool()))
