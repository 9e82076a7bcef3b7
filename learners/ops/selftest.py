"""Start-up check: at zero lag the learner scores what was sampled exactly as the sampler did."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from sao_gym.errors import RunError
from sao_gym.learners.ops.batch import collate
from sao_gym.learners.ops.ratios import log_ratio
from sao_gym.learners.ops.scoring import Scorer
from sao_gym.types import Trajectory

TOLERANCE = 1e-4


@torch.no_grad()
def check_on_policy(model: Any, trajectories: Sequence[Trajectory], *, pad_id: int = 0) -> None:
    """Score trajectories with the very weights that sampled them and compare.

    A difference means that the two sides do not run the same policy: dropout, sampling at another
    temperature or with top-p, re-tokenised text, other weights, other numerics.

    Raises:
        RunError: |ratio - 1| >= 1e-4 on a token, or a log-prob that is not finite (such tokens are
            masked from every loss).
    """
    device = next(model.parameters()).device
    batch = collate(trajectories, pad_id, device)
    ratio = log_ratio(Scorer(model)(batch).logprobs, batch.logprobs, batch.mask)
    distance = (ratio.value.double().exp() - 1).abs()
    apart = batch.mask & ((distance >= TOLERANCE) | ~ratio.usable)
    if not bool(apart.any()):
        return
    lost = int((batch.mask & ~ratio.usable).sum())
    row, slot = apart.nonzero()[0].tolist()
    raise RunError(
        f"on-policy self-test: {int(apart.sum())} of {batch.tokens} tokens sampled by the current "
        f"weights score differently (largest |ratio - 1| {float(distance.max()):.3g}, {lost} not "
        f"finite; first: rollout {trajectories[row].rollout}, action token {slot}); sample at "
        "temperature 1 without top-p, top-k or penalties, from these weights, without dropout"
    )
