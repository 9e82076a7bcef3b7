"""Skip-observation GAE against hand-worked values and a list-based reference."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sao_gym.learners.ops.returns import adaptive_lambda, gae, reward_on_last, rewards_to_go


def row(values, dtype=torch.float32):
    return torch.tensor([values], dtype=dtype)


def mask(values):
    return torch.tensor([values]).bool()


def reference(rewards, values, lam, gamma, bootstrap=0.0):
    """Sum over k of (gamma lambda)^k delta_{t+k}, on the plain list of action tokens."""
    after = [*values[1:], bootstrap]
    deltas = [r + gamma * nxt - v for r, v, nxt in zip(rewards, values, after, strict=True)]
    return [
        sum((gamma * lam) ** k * delta for k, delta in enumerate(deltas[t:]))
        for t in range(len(deltas))
    ]


def test_observation_value_is_not_read():
    estimate = gae(row([0, 0, 1]), row([0.2, 999, 0.4]), mask([1, 0, 1]), lam=1.0)
    torch.testing.assert_close(estimate.advantages, row([0.8, 0, 0.6]))
    torch.testing.assert_close(estimate.returns, row([1.0, 0, 1.0]))


def test_lambda_counts_action_tokens_only():
    estimate = gae(row([0, 0, 1, 0]), row([0, 0, 0, 0.0]), mask([1, 0, 1, 0]), lam=0.5)
    assert estimate.advantages.tolist() == [[0.5, 0, 1, 0]]


def test_value_behind_the_last_action_token_is_not_a_successor():
    estimate = gae(row([0, 1, 0]), row([0, 0, 100.0]), mask([1, 1, 0]), lam=0.95)
    torch.testing.assert_close(estimate.advantages, row([0.95, 1, 0]))


def test_reward_lands_on_the_last_action_token():
    where = mask([1, 1, 0, 0, 1, 1, 0])
    assert reward_on_last(torch.tensor([3.0]), where).tolist() == [[0, 0, 0, 0, 0, 3.0, 0]]


def test_reward_of_an_empty_row_goes_nowhere():
    assert reward_on_last(torch.tensor([3.0]), mask([0, 0])).tolist() == [[0, 0]]


def test_lambda_one_returns_are_the_reward_on_every_action_token():
    values = row([0.3, 5.0, -0.7, 2.0])
    estimate = gae(row([0, 0, 1, 0]), values, mask([1, 0, 1, 0]), lam=1.0)
    torch.testing.assert_close(estimate.returns, row([1.0, 0, 1.0, 0]))


def test_rewards_to_go_by_hand():
    actual = rewards_to_go(row([1.0, 9.0, 2.0, 4.0]), mask([1, 0, 1, 1]), gamma=0.5)
    torch.testing.assert_close(actual, row([3.0, 0, 4.0, 4.0]))


def test_bootstrap_enters_at_the_cut_only():
    values, nothing = row([0.5, 0.25]), row([0.0, 0.0])
    estimate = gae(nothing, values, mask([1, 1]), lam=0.0, bootstrap=torch.tensor([2.0]))
    torch.testing.assert_close(estimate.advantages, row([-0.25, 1.75]))
    torch.testing.assert_close(estimate.returns, row([0.25, 2.0]))


def test_lambda_per_row():
    both = torch.tensor([[0.0, 1.0], [0.0, 1.0]])
    zeros = torch.zeros_like(both)
    estimate = gae(both, zeros, torch.ones_like(both).bool(), lam=torch.tensor([0.5, 0.25]))
    assert estimate.advantages.tolist() == [[0.5, 1.0], [0.25, 1.0]]


def test_adaptive_lambda_by_hand():
    lam = adaptive_lambda(torch.tensor([1, 2, 100]), 1.5)
    torch.testing.assert_close(lam, torch.tensor([1 / 3, 2 / 3, 149 / 150]))
    with pytest.raises(ValueError, match="at least 1"):
        adaptive_lambda(torch.tensor([1]), 0.5)


numbers = st.floats(-2, 2, width=32)
steps = st.lists(st.tuples(numbers, numbers), min_size=1, max_size=7)
gaps = st.lists(st.integers(0, 3), min_size=8, max_size=8)


@settings(max_examples=100, deadline=None)
@given(steps, st.floats(0, 1), st.floats(0.5, 1), numbers)
def test_equals_the_reference(pairs, lam, gamma, bootstrap):
    rewards, values = (list(column) for column in zip(*pairs, strict=True))
    estimate = gae(
        row(rewards, torch.float64),
        row(values, torch.float64),
        mask([1] * len(pairs)),
        lam=lam,
        gamma=gamma,
        bootstrap=torch.tensor([bootstrap]),
    )
    expected = row(reference(rewards, values, lam, gamma, bootstrap), torch.float64)
    torch.testing.assert_close(estimate.advantages, expected)


@settings(max_examples=100, deadline=None)
@given(steps, gaps, st.floats(0, 1), st.sampled_from([999.0, float("nan"), float("inf")]))
def test_inserting_observation_tokens_anywhere_changes_nothing(pairs, gaps, lam, junk):
    """Bit-identical, the end of the trajectory included, whatever stands at observations."""
    rewards, values, where = [], [], []
    for (reward, value), gap in zip(pairs, gaps, strict=False):
        rewards += [junk] * gap + [reward]
        values += [junk] * gap + [value]
        where += [0] * gap + [1]
    rewards, values, where = rewards + [junk] * 2, values + [junk] * 2, [*where, 0, 0]
    plain = gae(
        row([r for r, _ in pairs]), row([v for _, v in pairs]), mask([1] * len(pairs)), lam=lam
    )
    spread = gae(row(rewards), row(values), mask(where), lam=lam)
    assert torch.equal(spread.advantages[mask(where)], plain.advantages[0])
    assert torch.equal(spread.returns[mask(where)], plain.returns[0])
    assert (spread.advantages[~mask(where)] == 0).all()
