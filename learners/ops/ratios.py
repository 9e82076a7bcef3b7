"""Importance ratios of the learner's policy to the one that sampled, and trust regions on them.

    r_t = exp(log pi_theta(a_t|s_t) - log pi_rollout(a_t|s_t))

Two log-probs only: the learner's now and the sampler's then, token by token, whatever version
sampled it. Epsilons are *widths*: the accepted ratios are (1 - eps_low, 1 + eps_high), an open
interval. A token that cannot be compared (masked, or a log-prob that is not finite) has log-ratio 0
and is never kept, so it can poison neither a loss nor a gradient.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0
"""Where ratios saturate, so that their squares stay finite in float32."""


class LogRatio(NamedTuple):
    """Log-ratios where they exist; both (N, T)."""

    value: Tensor
    """log r, clamped to +-MAX_LOG_RATIO; 0 where not `usable`."""
    usable: Tensor
    """True on action tokens with two finite log-probs."""


class Region(NamedTuple):
    """Which tokens a trust region lets through; all (N, T) bool, all within the action mask."""

    kept: Tensor
    low: Tensor
    """Rejected because the ratio is too low."""
    high: Tensor
    """Rejected because the ratio is too high."""


def log_ratio(logprobs: Tensor, behaviour: Tensor, mask: Tensor) -> LogRatio:
    """Compare log-probs (N, T); differentiable in `logprobs`, gradient 0 where not usable."""
    usable = mask & torch.isfinite(logprobs.detach()) & torch.isfinite(behaviour)
    difference = torch.where(usable, logprobs - behaviour, 0)
    return LogRatio(difference.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO), usable)


def log_bounds(eps_low: float, eps_high: float) -> tuple[float, float]:
    """Widths below and above 1 as bounds on log r; compared there, where nothing overflows."""
    if not (0 < eps_low <= 1 and eps_high > 0):
        raise ValueError(f"widths must be 0 < eps_low <= 1, eps_high > 0: {eps_low}, {eps_high}")
    return -math.inf if eps_low == 1 else math.log1p(-eps_low), math.log1p(eps_high)


def double_sided(ratio: LogRatio, *, eps_low: float, eps_high: float) -> Region:
    """DIS (SAO, Eq. 3): keep 1 - eps_low < r < 1 + eps_high, whatever the advantage's sign."""
    bottom, top = log_bounds(eps_low, eps_high)
    low = ratio.usable & (ratio.value <= bottom)
    high = ratio.usable & (ratio.value >= top)
    return Region(ratio.usable & ~low & ~high, low, high)


def sequence_level(ratio: LogRatio, *, eps_low: float, eps_high: float) -> Region:
    """Keep or reject whole rows by their geometric mean ratio, as GSPO (arXiv 2507.18071) does."""
    count = ratio.usable.sum(dim=1, keepdim=True).clamp(min=1)
    mean = ratio.value.sum(dim=1, keepdim=True) / count
    of_row = LogRatio(mean.expand_as(ratio.value), ratio.usable)
    return double_sided(of_row, eps_low=eps_low, eps_high=eps_high)


def clip_higher(ratio: LogRatio, advantages: Tensor, *, eps_low: float, eps_high: float) -> Region:
    """Which tokens PPO's pessimistic clip leaves a gradient (PPO, arXiv 1707.06347, Eq. 7).

    `low`: r < 1 - eps_low with a negative advantage; `high`: r > 1 + eps_high with a positive one.
    eps_high > eps_low is "clip-higher" (DAPO, arXiv 2503.14476).
    """
    bottom, top = log_bounds(eps_low, eps_high)
    low = ratio.usable & (ratio.value < bottom) & (advantages < 0)
    high = ratio.usable & (ratio.value > top) & (advantages > 0)
    return Region(ratio.usable & ~low & ~high, low, high)


def ratio_metrics(ratio: LogRatio, region: Region, mask: Tensor) -> dict[str, float]:
    """How far the learner is from what sampled the batch.

    `ess`: effective sample size over sample size, (sum r)^2 / (n sum r^2). `kl_rollout`: estimate
    of KL(rollout || learner), mean of r - 1 - log r (never negative). `chi2`: mean of (r - 1)^2.
    `masked_*`: shares of all action tokens. Ratio figures are NaN if no token is usable.
    """
    tokens = mask.sum()
    usable = ratio.usable
    count = usable.sum()
    log_r = ratio.value.detach().double()
    r = log_r.exp()
    kept_r = torch.where(usable, r, 0)
    figures = {
        "masked_fraction": 1 - region.kept.sum() / tokens,
        "masked_low": region.low.sum() / tokens,
        "masked_high": region.high.sum() / tokens,
        "ratio_mean": kept_r.sum() / count,
        "ratio_max": torch.where(count > 0, kept_r.amax(), torch.nan),
        "ess": kept_r.sum() ** 2 / (count * (kept_r**2).sum()),
        "kl_rollout": torch.where(usable, r - 1 - log_r, 0).sum() / count,
        "chi2": torch.where(usable, (r - 1) ** 2, 0).sum() / count,
    }
    values = torch.stack([figure.double() for figure in figures.values()]).tolist()
    return dict(zip(figures, values, strict=True))
