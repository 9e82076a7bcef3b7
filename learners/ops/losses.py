"""Losses, each a sum over action tokens divided by a `denominator` that the caller gives.

The denominator is the number of action tokens of the *whole* batch, rejected ones included,
however the batch is cut into micro-batches: then gradients add up to those of the whole. Tensors
are (N, T); what lies outside `mask` is never read.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sao_gym.learners.ops.ratios import (
    LogRatio,
    Region,
    clip_higher,
    double_sided,
    log_ratio,
    sequence_level,
)


class PolicyLoss(NamedTuple):
    loss: Tensor
    """Scalar to minimise."""
    ratio: LogRatio
    region: Region
    """Which tokens the loss had a gradient for."""


def dis_loss(
    logprobs: Tensor,
    behaviour: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    denominator: int,
    eps_low: float,
    eps_high: float,
    per_sequence: bool = False,
) -> PolicyLoss:
    """Direct double-sided importance sampling (SAO, arXiv 2607.07508, Eq. 1-3), to be minimised.

        - sum_t f(r_t) A_t log pi_theta(a_t|s_t) / denominator,   f(r) = r inside the band, else 0

    f(r) is a constant: differentiating through r as well would give r A (1 + log pi), whose sign is
    wrong below log pi = -1. The gradient of a kept token is -r A grad log pi.

    Args:
        logprobs: the learner's, differentiable.
        behaviour: the sampler's.
        advantages: constants.
        mask: True on action tokens.
        denominator: action tokens of the whole batch.
        eps_low: width of the band below 1.
        eps_high: width of the band above 1.
        per_sequence: judge a row by its geometric mean ratio instead of token by token.
    """
    ratio = log_ratio(logprobs.detach(), behaviour, mask)
    trust = sequence_level if per_sequence else double_sided
    region = trust(ratio, eps_low=eps_low, eps_high=eps_high)
    weight = torch.where(region.kept, ratio.value.exp() * advantages, 0)
    loss = -(weight * torch.where(region.kept, logprobs, 0)).sum() / denominator
    return PolicyLoss(loss, ratio, region)


def clip_loss(
    logprobs: Tensor,
    behaviour: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    denominator: int,
    eps_low: float,
    eps_high: float,
) -> PolicyLoss:
    """PPO's clipped surrogate (arXiv 1707.06347, Eq. 7) with its own width above 1.

        - sum_t min(r_t A_t, clip(r_t, 1 - eps_low, 1 + eps_high) A_t) / denominator

    eps_high > eps_low is clip-higher (DAPO, arXiv 2503.14476, Eq. 10). Arguments as in `dis_loss`.
    """
    ratio = log_ratio(logprobs, behaviour, mask)
    used = torch.where(ratio.usable, advantages, 0)
    r = ratio.value.exp()
    surrogate = torch.minimum(r * used, r.clamp(1 - eps_low, 1 + eps_high) * used)
    loss = -torch.where(ratio.usable, surrogate, 0).sum() / denominator
    constant = LogRatio(ratio.value.detach(), ratio.usable)
    return PolicyLoss(
        loss, constant, clip_higher(constant, used, eps_low=eps_low, eps_high=eps_high)
    )


def imitation_loss(logprobs: Tensor, mask: Tensor, *, denominator: int) -> Tensor:
    """Negative log-likelihood of the action tokens."""
    return -torch.where(mask, logprobs, 0).sum() / denominator


def value_loss(values: Tensor, returns: Tensor, mask: Tensor, *, denominator: int) -> Tensor:
    """Squared error of the critic to its target, (V - R)^2."""
    error = torch.where(mask, values, 0) - torch.where(mask, returns, 0)
    return (error**2).sum() / denominator


def kl_loss(distribution: Tensor, reference: Tensor, *, denominator: int) -> Tensor:
    """Full-vocabulary KL(pi || reference), summed over tokens (M, V) of log-probabilities.

    Exact, not a sample estimate: its gradient does not depend on which token was sampled. A token
    of probability 0 adds 0.
    """
    difference = torch.where(distribution > -torch.inf, distribution - reference, 0)
    return (distribution.exp() * difference).sum() / denominator
