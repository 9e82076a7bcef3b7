"""Advantages of whole trajectories from their rewards (no critic), and whitening."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor


def group_normalised(
    totals: Tensor, groups: Tensor, *, scale: bool = True, eps: float = 1e-6
) -> Tensor:
    """GRPO (arXiv 2402.03300, section 4.1.2): (R - mean of the group) / (std of the group + eps).

    Args:
        totals: (N,) rewards.
        groups: (N,) group names.
        scale: divide by the (unbiased) standard deviation; False as in Dr. GRPO (2503.20783).
        eps: added to the standard deviation.

    Returns:
        (N,); exactly 0 for a group whose rewards are all equal, and for a group of one.
    """
    names, member = torch.unique(groups, return_inverse=True)
    zeros = torch.zeros(len(names), dtype=totals.dtype, device=totals.device)
    size = zeros.scatter_add(0, member, torch.ones_like(totals))
    mean = zeros.scatter_add(0, member, totals) / size
    advantages = totals - mean[member]
    if scale:
        variance = zeros.scatter_add(0, member, advantages**2) / (size - 1).clamp(min=1)
        advantages = advantages / (variance.sqrt()[member] + eps)
    # Exactly: the mean of equal rewards may be off by a rounding, and the scale would blow it up.
    return torch.where(uninformative(totals, groups), 0, advantages)


def uninformative(totals: Tensor, groups: Tensor) -> Tensor:
    """(N,) bool: True for members of a group whose rewards are all equal."""
    names, member = torch.unique(groups, return_inverse=True)
    zeros = torch.zeros(len(names), dtype=totals.dtype, device=totals.device)
    highest = zeros.scatter_reduce(0, member, totals, "amax", include_self=False)
    lowest = zeros.scatter_reduce(0, member, totals, "amin", include_self=False)
    return (highest == lowest)[member]


def uninformative_groups(totals: Tensor, groups: Tensor) -> int:
    """How many groups have rewards that are all equal, so that nothing is learned from them."""
    return int(torch.unique(groups[uninformative(totals, groups)]).numel())


def centred(totals: Tensor, *, leave_one_out: bool = False) -> Tensor:
    """(N,) rewards minus their mean; with `leave_one_out` the mean of the others (RLOO).

    A single reward gives 0.
    """
    count = len(totals)
    difference = totals - totals.mean()
    return difference * count / (count - 1) if leave_one_out and count > 1 else difference


class RunningMean:
    """Mean of the last `window` rewards of each key, always from *before* the present batch."""

    def __init__(self, window: int) -> None:
        self.window = window
        self._rewards: dict[Hashable, deque[float]] = {}

    def baseline(self, key: Hashable) -> float | None:
        """The key's mean, or None if it was never seen."""
        rewards = self._rewards.get(key)
        return sum(rewards) / len(rewards) if rewards else None

    def add(self, keys: Sequence[Hashable], totals: Sequence[float]) -> None:
        """Totals that are not finite are left out: one would spoil the mean of a whole window."""
        for key, total in zip(keys, totals, strict=True):
            if math.isfinite(total):
                self._rewards.setdefault(key, deque(maxlen=self.window)).append(total)

    def state_dict(self) -> dict[str, Any]:
        return {"rewards": [(key, list(rewards)) for key, rewards in self._rewards.items()]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._rewards = {
            key: deque(rewards, maxlen=self.window) for key, rewards in state["rewards"]
        }


def per_token(trajectory_advantages: Tensor, mask: Tensor) -> Tensor:
    """(N, T) float32: a trajectory's advantage (N,) on each of its action tokens."""
    return torch.where(mask, trajectory_advantages[:, None], 0).to(torch.float32)


def whiten(advantages: Tensor, mask: Tensor, *, eps: float = 1e-8) -> Tensor:
    """(N, T): zero mean and unit standard deviation over the tokens of `mask`; 0 elsewhere.

    A single token is centred only.
    """
    chosen = advantages[mask]
    scale = chosen.std() if len(chosen) > 1 else chosen.new_ones(())
    return torch.where(mask, (advantages - chosen.mean()) / (scale + eps), 0)
