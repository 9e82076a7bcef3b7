"""Ratios, trust regions and losses: worked values, gradients, and what must not poison them."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sao_gym.learners.ops.losses import clip_loss, dis_loss, imitation_loss, kl_loss, value_loss
from sao_gym.learners.ops.ratios import (
    clip_higher,
    double_sided,
    log_bounds,
    log_ratio,
    ratio_metrics,
    sequence_level,
)

DIS = {"eps_low": 0.3, "eps_high": 5.0}
CLIP = {"eps_low": 0.2, "eps_high": 0.28}
LOSSES = [(dis_loss, DIS), (clip_loss, CLIP)]


def row(*values):
    return torch.tensor([values], dtype=torch.float32)


def everywhere(tensor):
    return torch.ones_like(tensor, dtype=torch.bool)


def with_gradient(loss, logprobs, behaviour, advantages, mask=None, **settings):
    logprobs = logprobs.clone().requires_grad_(True)
    mask = everywhere(logprobs) if mask is None else mask
    settings = {"denominator": int(mask.sum())} | settings
    result = loss(logprobs, behaviour, advantages, mask, **settings)
    result.loss.backward()
    return result, logprobs.grad


def test_gradient_is_ratio_times_advantage():
    """log pi = -2, r = 1.105, A = 2: literal autograd through r would give +2.21."""
    behaviour = row(-2.0 - math.log(1.105))
    _, gradient = with_gradient(dis_loss, row(-2.0), behaviour, row(2.0), **DIS)
    torch.testing.assert_close(gradient, row(-2.21))


@pytest.mark.parametrize(
    ("loss", "widths"), [(dis_loss, DIS), (clip_loss, {"eps_low": 0.5, "eps_high": 2.0})]
)
def test_ratio_is_applied_once(loss, widths):
    _, gradient = with_gradient(loss, row(-1.0), row(-1.0 - math.log(2)), row(1.0), **widths)
    torch.testing.assert_close(gradient, row(-2.0))


def test_far_ratio_contributes_exactly_nothing():
    result, gradient = with_gradient(dis_loss, row(-1.0), row(-6.0), row(10.0), **DIS)
    assert float(result.loss.detach()) == 0.0
    assert gradient.tolist() == [[0.0]]


def test_band_is_open_and_epsilons_are_widths():
    logprobs = torch.log(row(0.7, 0.8, 2.0, 6.0))
    ratio = log_ratio(logprobs, torch.zeros_like(logprobs), everywhere(logprobs))
    region = double_sided(ratio, **DIS)
    assert region.kept.tolist() == [[False, True, True, False]]
    assert region.low.tolist() == [[True, False, False, False]]
    assert region.high.tolist() == [[False, False, False, True]]
    result, gradient = with_gradient(
        dis_loss, logprobs, torch.zeros_like(logprobs), row(1.0, 1.0, 1.0, 1.0), **DIS
    )
    torch.testing.assert_close(gradient, row(0, -0.8 / 4, -2.0 / 4, 0))  # denominator 4
    figures = ratio_metrics(result.ratio, result.region, everywhere(logprobs))
    assert figures["masked_fraction"] == pytest.approx(0.5)
    assert figures["masked_low"] == figures["masked_high"] == pytest.approx(0.25)


def test_both_bounds_are_outside_the_band():
    """Halves and doubles, whose logarithms are exact to the bit on both sides of the comparison."""
    logs = torch.tensor([[math.log(0.5), math.log(2.0), math.log(1.9), math.log(0.6)]])
    ratio = log_ratio(logs, torch.zeros_like(logs), everywhere(logs))
    region = double_sided(ratio, eps_low=0.5, eps_high=1.0)
    assert region.kept.tolist() == [[False, False, True, True]]


def test_mask_ignores_the_sign_of_the_advantage():
    for advantage in (3.0, -3.0):
        _, gradient = with_gradient(dis_loss, row(-3.0), row(-1.0), row(advantage), **DIS)
        assert gradient.tolist() == [[0.0]]


def test_width_of_one_accepts_every_ratio_below_one():
    assert log_bounds(1.0, 3.0) == (-math.inf, math.log(4.0))
    for bad in ((0.0, 1.0), (1.5, 1.0), (0.2, 0.0)):
        with pytest.raises(ValueError, match="widths"):
            log_bounds(*bad)


@pytest.mark.parametrize(("loss", "widths"), LOSSES)
@pytest.mark.parametrize("poison", [100.0, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("side", ["learner", "sampler"])
def test_a_masked_token_poisons_nothing(loss, widths, poison, side):
    clean = (row(-1.0, -2.0), row(-1.1, -1.9), row(1.0, -0.5))
    expected, expected_gradient = with_gradient(loss, *clean, **widths)
    logprobs, behaviour = (
        torch.cat([part, row(poison if who == side else -1.0)], dim=1)
        for part, who in zip(clean[:2], ("learner", "sampler"), strict=True)
    )
    advantages = torch.cat([clean[2], row(math.nan)], dim=1)
    mask = torch.tensor([[True, True, False]])
    actual, gradient = with_gradient(loss, logprobs, behaviour, advantages, mask, **widths)
    torch.testing.assert_close(actual.loss, expected.loss, rtol=0, atol=0)
    torch.testing.assert_close(gradient[:, :2], expected_gradient, rtol=0, atol=0)
    assert gradient[0, 2] == 0
    figures = ratio_metrics(actual.ratio, actual.region, mask)
    assert all(math.isfinite(value) for value in figures.values())


@pytest.mark.parametrize(("loss", "widths"), LOSSES)
@pytest.mark.parametrize("bad", [math.nan, -math.inf])
@pytest.mark.parametrize("side", ["learner", "sampler"])
def test_an_action_token_without_finite_logprob_is_rejected_but_counted(loss, widths, bad, side):
    good, lost = row(-1.0, -1.0), row(-1.0, bad)
    pair = (lost, good) if side == "learner" else (good, lost)
    result, gradient = with_gradient(loss, *pair, row(1.0, 1.0), **widths)
    torch.testing.assert_close(gradient, row(-0.5, 0.0))
    figures = ratio_metrics(result.ratio, result.region, everywhere(gradient))
    assert figures["masked_fraction"] == pytest.approx(0.5)
    assert figures["ratio_mean"] == pytest.approx(1.0)


def test_everything_rejected():
    result, gradient = with_gradient(dis_loss, row(-1.0, -9.0), row(-9.0, -1.0), row(1, 1), **DIS)
    assert float(result.loss.detach()) == 0.0
    assert (gradient == 0).all()
    figures = ratio_metrics(result.ratio, result.region, everywhere(gradient))
    assert figures["masked_fraction"] == 1.0
    nothing, _ = with_gradient(dis_loss, row(-1.0), row(math.nan), row(1.0), **DIS)
    unusable = ratio_metrics(nothing.ratio, nothing.region, everywhere(row(1.0)))
    assert unusable.keys() == figures.keys()
    assert math.isnan(unusable["ratio_mean"])
    assert math.isnan(unusable["ess"])


def test_sequence_region_judges_the_geometric_mean():
    """Row 0: ratios 8 and 1/8, mean 1, kept whole. Row 1: 8 and 8, rejected whole."""
    logs = torch.log(torch.tensor([[8.0, 0.125, 1.0], [8.0, 8.0, 1.0]]))
    mask = torch.tensor([[True, True, False], [True, True, False]])
    region = sequence_level(log_ratio(logs, torch.zeros_like(logs), mask), **DIS)
    assert region.kept.tolist() == [[True, True, False], [False, False, False]]
    assert region.high.tolist() == [[False] * 3, [True, True, False]]


def test_clip_is_pessimistic_and_higher_above():
    """Gradient -rA/n unless the clip binds: r > 1.28 with A > 0, or r < 0.8 with A < 0."""
    ratios = row(1.25, 1.3, 1.3, 0.7, 0.7)
    advantages = row(1.0, 1.0, -1.0, 1.0, -1.0)
    logprobs = torch.log(ratios)
    result, gradient = with_gradient(
        clip_loss, logprobs, torch.zeros_like(logprobs), advantages, **CLIP
    )
    torch.testing.assert_close(gradient, row(-1.25, 0, 1.3, -0.7, 0) / 5)
    torch.testing.assert_close(result.loss, torch.tensor(-(1.25 + 1.28 - 1.3 + 0.7 - 0.8) / 5))
    region = clip_higher(result.ratio, advantages, **CLIP)
    assert region.high.tolist() == [[False, True, False, False, False]]
    assert region.low.tolist() == [[False, False, False, False, True]]
    assert torch.equal(region.kept, gradient != 0)


def test_ratio_metrics_by_hand():
    logs = torch.log(row(0.5, 1.5))
    ratio = log_ratio(logs, torch.zeros_like(logs), everywhere(logs))
    figures = ratio_metrics(ratio, double_sided(ratio, **DIS), everywhere(logs))
    assert figures["ratio_mean"] == pytest.approx(1.0)
    assert figures["ratio_max"] == pytest.approx(1.5)
    assert figures["ess"] == pytest.approx(4 / (2 * 2.5))
    assert figures["chi2"] == pytest.approx(0.25)
    assert figures["kl_rollout"] == pytest.approx(-(math.log(0.5) + math.log(1.5)) / 2)


def test_value_loss_reads_action_tokens_only():
    values = torch.tensor([[1.0, math.nan, 3.0]], requires_grad=True)
    mask = torch.tensor([[True, False, True]])
    loss = value_loss(values, row(0.0, 5.0, 1.0), mask, denominator=4)
    loss.backward()
    assert float(loss.detach()) == pytest.approx((1 + 4) / 4)
    torch.testing.assert_close(values.grad, row(0.5, 0.0, 1.0))


def test_imitation_is_mean_negative_loglikelihood():
    mask = torch.tensor([[True, True, False]])
    assert float(imitation_loss(row(-1.0, -3.0, -50.0), mask, denominator=2)) == 2.0


def test_full_vocabulary_kl_by_hand():
    """Against scipy-free arithmetic, and a token that neither can sample adds nothing."""
    p, q = torch.tensor([[0.5, 0.5, 0.0]]), torch.tensor([[0.25, 0.75, 0.0]])
    expected = 0.5 * math.log(2) + 0.5 * math.log(0.5 / 0.75)
    assert float(kl_loss(p.log(), q.log(), denominator=2)) == pytest.approx(expected / 2)
    assert float(kl_loss(p.log(), p.log(), denominator=1)) == 0.0


rows_of = st.lists(
    st.lists(st.tuples(*[st.floats(-4, 0, width=32)] * 2, st.floats(-2, 2, width=32)), min_size=1),
    min_size=2,
    max_size=6,
)


@settings(max_examples=50, deadline=None)
@given(rows_of, st.sampled_from(LOSSES), st.data())
def test_micro_batches_add_up(rows, chosen, data):
    loss, widths = chosen
    width = max(map(len, rows))
    padded = torch.tensor([row + [(0.0, 0.0, 0.0)] * (width - len(row)) for row in rows])
    mask = torch.tensor([[True] * len(row) + [False] * (width - len(row)) for row in rows])
    logprobs, behaviour, advantages = padded.unbind(-1)
    whole, gradient = with_gradient(loss, logprobs, behaviour, advantages, mask, **widths)
    cut = data.draw(st.integers(1, len(rows) - 1))
    total, parts = 0.0, []
    for part in (slice(0, cut), slice(cut, None)):
        result, one = with_gradient(
            loss,
            logprobs[part],
            behaviour[part],
            advantages[part],
            mask[part],
            denominator=int(mask.sum()),
            **widths,
        )
        total += result.loss.detach()
        parts.append(one)
    torch.testing.assert_close(total, whole.loss.detach())
    torch.testing.assert_close(torch.cat(parts), gradient)
