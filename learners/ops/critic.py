"""The critic: a second model started from the policy's weights, with a scalar head."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from sao_gym import rng
from sao_gym.errors import InputError
from sao_gym.learners.ops.batch import Batch, micro_batches
from sao_gym.learners.ops.losses import value_loss
from sao_gym.learners.ops.optim import Step, adamw, set_learning_rate, step

ATTENTION = (
    r"(^|\.)(self_attn|self_attention|attn|attention|linear_attn|linear_attention|q_norm|k_norm)\."
)
"""Every parameter of an attention block by name: projections, their q/k norms, linear attention."""


class Values(NamedTuple):
    tokens: Tensor
    """(N, A): V of the prefix before each action token; 0 on padding."""
    cut: Tensor
    """(N,): V after the row's last real token, where a truncated episode was cut."""

    def detach(self) -> Values:
        return Values(self.tokens.detach(), self.cut.detach())


class ValueModel(nn.Module):
    """Deep copy of a policy's backbone and a linear head of one output, in float32.

    Args:
        policy: a `transformers` causal LM; not touched.
        head_std: standard deviation of the head's first weights; 0 = start at the value 0.
        seed: of those weights.
    """

    def __init__(self, policy: Any, *, head_std: float = 0.0, seed: int = 0) -> None:
        super().__init__()
        self.backbone = deepcopy(policy.base_model).requires_grad_(True)
        device = next(self.backbone.parameters()).device
        width = policy.config.get_text_config().hidden_size
        self.head = nn.Linear(width, 1, device=device, dtype=torch.float32)
        draws = torch.Generator().manual_seed(rng.integer(seed, "value-head"))
        with torch.no_grad():
            self.head.weight.copy_(head_std * torch.randn((1, width), generator=draws))
            self.head.bias.zero_()

    def features(self, batch: Batch) -> Tensor:
        """(S, L, H) last hidden states, in evaluation mode."""
        self.eval()
        hidden: Tensor = self.backbone(batch.ids, use_cache=False).last_hidden_state
        return hidden.float()

    def forward(self, batch: Batch) -> Values:
        values = self.head(self.features(batch)).squeeze(-1)
        tokens = torch.where(batch.mask, values[batch.sequence, batch.columns], 0)
        return Values(tokens, values[batch.last[:, 0], batch.last[:, 1]])


def freeze(model: ValueModel, patterns: Sequence[str]) -> list[str]:
    """Stop training every backbone parameter whose name matches one of `patterns` (regex search).

    Returns:
        The frozen names.

    Raises:
        InputError: a pattern matches nothing, or nothing but the head is left to train.
    """
    names = dict(model.backbone.named_parameters())
    frozen: set[str] = set()
    for pattern in patterns:
        matched = {name for name in names if re.search(pattern, name)}
        if not matched:
            some = ", ".join(list(names)[:4])
            raise InputError(f"frozen: {pattern!r} matches no critic parameter (such as {some})")
        frozen |= matched
    if names and len(frozen) == len(names):
        raise InputError(f"frozen: {list(patterns)} leave no backbone parameter to train")
    for name in frozen:
        names[name].requires_grad_(False)
    return sorted(frozen)


class Ridge(NamedTuple):
    weight: Tensor
    """(H,) float64."""
    bias: Tensor
    """Scalar, float64."""


def ridge(features: Tensor, targets: Tensor, penalty: float) -> Ridge:
    """Closed-form ridge regression with an unpenalised intercept.

    Minimises mean (X w + b - y)^2 + penalty * s * |w|^2, where s is the mean variance of a feature,
    so that `penalty` does not depend on the features' scale.

    Args:
        features: (M, H).
        targets: (M,).
        penalty: > 0.
    """
    x, y = features.double(), targets.double()
    x_mean, y_mean = x.mean(dim=0), y.mean()
    x, y = x - x_mean, y - y_mean
    covariance = x.T @ x / len(x)
    scale = covariance.diagonal().mean().clamp(min=torch.finfo(torch.float64).tiny)
    regular = covariance + penalty * scale * torch.eye(len(x_mean), dtype=x.dtype, device=x.device)
    weight = torch.linalg.solve(regular, x.T @ y / len(x))
    return Ridge(weight, y_mean - x_mean @ weight)


class Fit(NamedTuple):
    values: Values
    """As they were before the step."""
    loss: float
    """Of those values."""
    norm: float
    skipped: bool
    """The gradient was not finite; the critic is what it was."""


class Critic:
    """A value model that is fitted to batches, in micro-batches, one optimizer step per fit.

    Args:
        model: what is fitted.
        frozen: name patterns of backbone parameters that never train.
        learning_rate: of AdamW.
        warmup: fits over which the learning rate rises linearly to it; 0 = none. Fits that are
            skipped do not count.
        max_grad_norm: gradient clip.
        micro_batch_size: rows per forward-backward pass; None = all at once.
    """

    def __init__(
        self,
        model: ValueModel,
        *,
        frozen: Sequence[str],
        learning_rate: float,
        warmup: int,
        max_grad_norm: float,
        micro_batch_size: int | None,
    ) -> None:
        self.model = model
        self.frozen = freeze(model, frozen)
        self._learning_rate = learning_rate
        self._warmup = warmup
        self._max_grad_norm = max_grad_norm
        self._micro_batch_size = micro_batch_size
        self._optimizer = adamw(model.parameters(), learning_rate)
        self._fits = 0

    @torch.no_grad()
    def initialise_head(self, batch: Batch, returns: Tensor, penalty: float) -> None:
        """Set the head to the ridge regression of `returns` (N, A) on the last hidden states.

        A solution that is not finite is not written.
        """
        features = [
            self.model.features(part)[part.sequence, part.columns][part.mask]
            for part in micro_batches(batch, self._micro_batch_size)
        ]
        solution = ridge(torch.cat(features), returns[batch.mask], penalty)
        weight, bias = solution.weight.float(), solution.bias.float()
        if weight.isfinite().all() and bias.isfinite():
            self.model.head.weight.copy_(weight[None, :])
            self.model.head.bias.copy_(bias)

    @torch.no_grad()
    def predict(self, batch: Batch) -> Values:
        parts = [self.model(part) for part in micro_batches(batch, self._micro_batch_size)]
        return Values(*map(torch.cat, zip(*parts, strict=True)))

    def fit(self, batch: Batch, target: Callable[[Batch, Values], Tensor]) -> Fit:
        """One step towards `target(rows, their values)`, (n, A) constants; mean over all tokens."""
        tokens, loss = batch.tokens, 0.0
        parts = []
        for part in micro_batches(batch, self._micro_batch_size):
            values = self.model(part)
            before = values.detach()
            error = value_loss(values.tokens, target(part, before), part.mask, denominator=tokens)
            torch.autograd.backward(error)
            parts.append(before)
            loss += float(error.detach())
        stepped = self._step()
        seen = Values(*map(torch.cat, zip(*parts, strict=True)))
        return Fit(seen, loss, stepped.norm, stepped.skipped)

    def state_dict(self) -> dict[str, Any]:
        return {
            "model": deepcopy(self.model.state_dict()),
            "optimizer": deepcopy(self._optimizer.state_dict()),
            "fits": self._fits,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(deepcopy(state["optimizer"]))
        self._fits = state["fits"]

    def _step(self) -> Step:
        before: float = self._optimizer.param_groups[0]["lr"]
        if self._warmup:
            share = min(1.0, (self._fits + 1) / self._warmup)
            set_learning_rate(self._optimizer, self._learning_rate * share)
        stepped = step(self._optimizer, self._max_grad_norm)
        if stepped.skipped:
            set_learning_rate(self._optimizer, before)
        else:
            self._fits += 1
        return stepped
