"""The policy under training: model, optimizer and the optional anchor to where it began."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from sao_gym.learners.ops.batch import Batch, micro_batches
from sao_gym.learners.ops.losses import PolicyLoss, kl_loss
from sao_gym.learners.ops.optim import Step, adamw, step
from sao_gym.learners.ops.ratios import LogRatio, Region, ratio_metrics
from sao_gym.learners.ops.scoring import Scorer, Scores

METRICS = (
    "policy_loss",
    "kl_reference",
    "entropy",
    "grad_norm",
    "masked_fraction",
    "masked_low",
    "masked_high",
    "ratio_mean",
    "ratio_max",
    "ess",
    "kl_rollout",
    "chi2",
)
"""What `Policy.improve` reports; NaN where an update did not measure it."""


class Objective(Protocol):
    """A policy loss with its settings filled in, e.g. `partial(dis_loss, eps_low=, eps_high=)`."""

    def __call__(
        self,
        logprobs: Tensor,
        behaviour: Tensor,
        advantages: Tensor,
        mask: Tensor,
        *,
        denominator: int,
    ) -> PolicyLoss: ...


class Improvement(NamedTuple):
    moved: bool
    skipped: bool
    """The gradient was not finite; the policy is what it was."""
    metrics: dict[str, float]


class Policy:
    """A causal LM that is trained on batches, in micro-batches, one optimizer step per batch.

    Args:
        model: the policy; owned from now on.
        learning_rate: of AdamW.
        max_grad_norm: gradient clip.
        kl: weight of the full-vocabulary KL to the policy as it is now (0: no anchor, no pass).
        micro_batch_size: rows per forward-backward pass; None = all at once.
    """

    def __init__(
        self,
        model: Any,
        *,
        learning_rate: float,
        max_grad_norm: float,
        kl: float,
        micro_batch_size: int | None,
    ) -> None:
        self.model = model
        self.kl = kl
        self.micro_batch_size = micro_batch_size
        self._max_grad_norm = max_grad_norm
        self._scorer = Scorer(model)
        self._reference = deepcopy(model).requires_grad_(False) if kl > 0 else None
        self._score_reference = None if self._reference is None else Scorer(self._reference)
        self._optimizer = adamw(model.parameters(), learning_rate)

    @property
    def device(self) -> torch.device:
        device: torch.device = next(self.model.parameters()).device
        return device

    @property
    def relative_cost(self) -> float:
        """In forward-backward passes; the anchor's forward pass is a third of one."""
        return 1.0 if self._reference is None else 1.0 + 1 / 3

    def improve(self, batch: Batch, advantages: Tensor, objective: Objective) -> Improvement:
        """One step down `objective` + kl * KL(pi || anchor), both means over all action tokens."""
        tokens = batch.tokens
        losses: list[PolicyLoss] = []
        anchors, entropies = [], []
        start = 0
        for part in micro_batches(batch, self.micro_batch_size):
            stop = start + len(part.first)
            scores = self._scorer(part)
            policy = objective(
                scores.logprobs,
                part.logprobs,
                advantages[start:stop],
                part.mask,
                denominator=tokens,
            )
            anchor = self._anchor(part, scores, tokens)
            torch.autograd.backward(policy.loss + self.kl * anchor)
            losses.append(policy)
            anchors.append(float(anchor.detach()))
            entropies.append(float(scores.entropy()))
            start = stop
        stepped = self._step()
        measured = {
            "policy_loss": sum(float(part.loss.detach()) for part in losses),
            "kl_reference": sum(anchors) if self.kl > 0 else float("nan"),
            "entropy": sum(entropies) / tokens,
            "grad_norm": stepped.norm,
        }
        ratio = LogRatio(*map(torch.cat, zip(*(part.ratio for part in losses), strict=True)))
        region = Region(*map(torch.cat, zip(*(part.region for part in losses), strict=True)))
        measured |= ratio_metrics(ratio, region, batch.mask)
        return Improvement(stepped.moved, stepped.skipped, measured)

    def imitate(self, batch: Batch, loss: Any) -> tuple[float, Step]:
        """One step of supervised learning: `loss(logprobs, mask, denominator=)` of the batch."""
        tokens, total = batch.tokens, 0.0
        for part in micro_batches(batch, self.micro_batch_size):
            value = loss(self._scorer(part).logprobs, part.mask, denominator=tokens)
            torch.autograd.backward(value)
            total += float(value.detach())
        return total, self._step()

    def weights(self) -> dict[str, Tensor]:
        """A copy, safe to keep while training goes on."""
        return _copy(self.model.state_dict())

    def state_dict(self) -> dict[str, Any]:
        return {
            "model": self.weights(),
            "optimizer": deepcopy(self._optimizer.state_dict()),
            "reference": None if self._reference is None else _copy(self._reference.state_dict()),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(deepcopy(state["optimizer"]))
        if self._reference is not None:
            self._reference.load_state_dict(state["reference"])

    def _anchor(self, part: Batch, scores: Scores, tokens: int) -> Tensor:
        if self._score_reference is None:
            return scores.distribution.new_zeros(())
        with torch.no_grad():
            reference = self._score_reference(part).distribution
        return kl_loss(scores.distribution, reference, denominator=tokens)

    def _step(self) -> Step:
        return step(self._optimizer, self._max_grad_norm)


def _copy(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in state.items()}
