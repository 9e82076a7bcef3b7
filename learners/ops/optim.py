"""AdamW, gradient clipping and the rules for steps that would teach nothing or do harm."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Annotated, NamedTuple

import torch
from pydantic import Field
from torch import nn

LearningRate = Annotated[float, Field(ge=0)]
GradientNorm = Annotated[float, Field(gt=0)]
BatchSize = Annotated[int, Field(ge=1)]
MicroBatchSize = Annotated[int | None, Field(ge=1)]
Coefficient = Annotated[float, Field(ge=0)]
WidthBelow = Annotated[float, Field(gt=0, le=1)]
WidthAbove = Annotated[float, Field(gt=0)]


class Step(NamedTuple):
    moved: bool
    """False if the parameters are what they were, to the bit."""
    norm: float
    """Gradient norm before clipping."""
    skipped: bool
    """True if the norm was not finite, so that nothing was applied."""


def adamw(parameters: Iterable[nn.Parameter], learning_rate: float) -> torch.optim.AdamW:
    """AdamW without weight decay; betas .9, .95 forget an old world sooner than .999 does."""
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    return torch.optim.AdamW(
        trained, lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True
    )


def step(optimizer: torch.optim.Optimizer, max_norm: float) -> Step:
    """Clip the accumulated gradient to `max_norm`, apply it and clear it.

    A gradient that is exactly zero (every token rejected, every advantage 0) is not applied:
    momentum alone would move the parameters. Nor is one whose norm is not finite: it would make
    every parameter NaN. In both cases parameters and optimizer stay as they are, to the bit.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    norm = float(nn.utils.clip_grad_norm_(parameters, max_norm))
    skipped = not math.isfinite(norm)
    moved = not skipped and norm > 0 and any(group["lr"] > 0 for group in optimizer.param_groups)
    if moved:
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return Step(moved, norm, skipped)


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
