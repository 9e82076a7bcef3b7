"""Figures about a batch. An undefined figure is NaN, never a number that looks like a result."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

ROUNDING = 1e-6
"""Returns closer than this, relative to their size or 1, are equal: float32 carries no more."""


class ExplainedVariance(NamedTuple):
    value: float
    """1 - Var(R - V) / Var(R); 1 is perfect, 0 a constant, negative worse than a constant."""
    reason: str | None
    """Why `value` is NaN; None if it is not."""


def explained_variance(values: Tensor, returns: Tensor, mask: Tensor) -> ExplainedVariance:
    """How much of the returns' variance over action tokens the values predict. Not clamped."""
    target = returns[mask].double()
    if len(target) < 2:
        return ExplainedVariance(math.nan, f"needs two action tokens, the batch has {len(target)}")
    spread, size = float(target.max() - target.min()), float(target.abs().max())
    if spread <= ROUNDING * max(1.0, size):  # a ratio of roundings would be a number, but no result
        return ExplainedVariance(math.nan, f"every return is {float(target[0]):g}")
    residual = target - values[mask].double()
    return ExplainedVariance(1 - float(residual.var() / target.var()), None)


def advantage_metrics(advantages: Tensor, mask: Tensor) -> dict[str, float]:
    """Mean and standard deviation over action tokens, and the share of them above 0.

    All-negative batches in a row (`advantage_positive` 0) are the sign of a critic gone cold: every
    action is being unlearned.
    """
    chosen = advantages[mask].double()
    return {
        "advantage_mean": float(chosen.mean()),
        "advantage_std": float(chosen.std()) if len(chosen) > 1 else math.nan,
        "advantage_positive": float((chosen > 0).double().mean()),
    }


def masked_mean(values: Tensor, mask: Tensor) -> float:
    """Mean over the tokens of `mask`; NaN if there are none."""
    return float(torch.where(mask, values.double(), 0).sum() / mask.sum())
