"""Log-probs of a batch's action tokens under a policy, as it would sample them at temperature 1."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from sao_gym.learners.ops.batch import Batch


class Scores(NamedTuple):
    logprobs: Tensor
    """(N, A) float32 of the sampled tokens, differentiable; 0 on padding."""
    distribution: Tensor
    """(M, V) float32 log-probs of the whole vocabulary at the M action tokens, row by row."""

    def entropy(self) -> Tensor:
        """Summed over the M action tokens, in nats; not differentiable."""
        log_p = self.distribution.detach()
        p = log_p.exp()
        return torch.where(p > 0, -p * log_p, 0).sum()


class Scorer:
    """Scores batches with one `transformers` causal LM, always in evaluation mode.

    Dropout must be off: a policy scored with dropout is not the policy that sampled, and the mask
    would reject tokens at zero lag. The output layer runs at action tokens alone where that is
    exactly what the model does; models with more behind it (soft-capped or scaled logits) are run
    whole. No attention mask is passed: rows are padded on the right and the model is causal.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self._head_alone = _logits_are_head_of_backbone(model)

    def __call__(self, batch: Batch) -> Scores:
        self.model.eval()
        rows, slots = batch.mask.nonzero(as_tuple=True)
        at = batch.sequence[rows, slots], batch.columns[rows, slots]
        if self._head_alone:
            hidden = self.model.base_model(batch.ids, use_cache=False).last_hidden_state
            logits = self.model.get_output_embeddings()(hidden[at])
        else:
            logits = self.model(batch.ids, use_cache=False).logits[at]
        distribution = torch.log_softmax(logits.float(), dim=-1)
        chosen = distribution.gather(1, batch.actions[rows, slots, None]).squeeze(1)
        empty = torch.zeros_like(batch.logprobs)
        return Scores(empty.index_put((rows, slots), chosen), distribution)


@torch.no_grad()
def _logits_are_head_of_backbone(model: Any) -> bool:
    head, backbone = model.get_output_embeddings(), model.base_model
    if head is None or backbone is model:
        return False
    model.eval()
    # Several tokens: the embedding of one (the padding token's) may be zero.
    probe = torch.arange(min(4, head.weight.shape[0]), device=head.weight.device)[None, :]
    whole = model(probe, use_cache=False).logits
    parts = head(backbone(probe, use_cache=False).last_hidden_state)
    # To the bit: a soft cap changes small logits by less than any tolerance.
    return bool(torch.equal(whole, parts))
