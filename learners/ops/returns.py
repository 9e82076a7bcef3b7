"""Skip-observation token-level GAE (SAO, arXiv 2607.07508, Eq. 4-5; GAE: arXiv 1506.02438, Eq. 16).

The Bellman positions of a trajectory are its action tokens, in order, across turns. Observation
tokens stay in the model's context but are stepped over: the recursion carries what lies behind them
unchanged to the action token before them, so that any number of them, anywhere, changes nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Estimate(NamedTuple):
    """What GAE gives; both 0 outside the mask."""

    advantages: Tensor
    """(N, T)."""
    returns: Tensor
    """(N, T): advantages + values, the lambda-returns."""


def gae(
    rewards: Tensor,
    values: Tensor,
    mask: Tensor,
    *,
    lam: Tensor | float,
    gamma: float = 1.0,
    bootstrap: Tensor | None = None,
) -> Estimate:
    """Generalised advantages over the tokens where `mask` is True.

    With t+ the next masked token after t (for the last: V = `bootstrap`, A = 0):

        delta_t = r_t + gamma V_t+ - V_t        A_t = delta_t + gamma lambda A_t+

    Args:
        rewards: (N, T); counts only where `mask` is True.
        values: (N, T), V of the prefix *before* each token; unmasked entries, NaN included, are
            never read.
        mask: (N, T) bool; True on action tokens. The layout is free: a whole sequence with
            observation tokens in it, or action tokens alone with padding.
        lam: lambda, one for all or (N,).
        gamma: discount per action token.
        bootstrap: (N,) value of the state after the last action token; None = 0 (terminated).
    """
    rows = values.shape[0]
    zero = torch.zeros((rows,), dtype=values.dtype, device=values.device)
    following = zero if bootstrap is None else bootstrap.to(values.dtype)
    behind = zero
    advantages = torch.zeros_like(values)
    for t in reversed(range(values.shape[1])):
        here, value = mask[:, t], values[:, t]
        advantage = rewards[:, t] + gamma * following - value + gamma * lam * behind
        advantages[:, t] = torch.where(here, advantage, 0)
        behind = torch.where(here, advantage, behind)
        following = torch.where(here, value, following)
    return Estimate(advantages, torch.where(mask, advantages + values, 0))


def rewards_to_go(rewards: Tensor, mask: Tensor, *, gamma: float = 1.0) -> Tensor:
    """Discounted Monte-Carlo returns, (N, T): what `gae` with lambda 1 fits a critic to."""
    zeros = torch.zeros_like(rewards)
    return gae(rewards, zeros, mask, lam=1.0, gamma=gamma).returns


def adaptive_lambda(lengths: Tensor, alpha: float) -> Tensor:
    """(N,) lambda = 1 - 1 / (alpha l), l the row's action tokens (SAO, section 3; alpha = 1.5).

    Longer trajectories look further ahead: the horizon 1 / (1 - lambda) is alpha l tokens. Rows
    without action tokens get 0.
    """
    if alpha < 1:
        raise ValueError(
            f"alpha must be at least 1, or lambda is negative at length 1; got {alpha}"
        )
    return 1 - 1 / (alpha * lengths.clamp(min=1).to(torch.float32))


def reward_on_last(totals: Tensor, mask: Tensor) -> Tensor:
    """(N, T): each row's total (N,) on its last True token, 0 elsewhere.

    The last *action* token, not the last attended one: observation tokens may follow it.
    """
    tokens = torch.arange(mask.shape[1], device=mask.device)
    last = torch.where(mask, tokens, -1).amax(dim=1, keepdim=True)
    return torch.where((tokens == last) & mask, totals[:, None], 0).to(totals.dtype)
