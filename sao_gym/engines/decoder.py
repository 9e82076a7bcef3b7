"""One forward pass of a packed batch over the KV pool, two ways.

`FusedDecoder` is a hand-fused forward of the Llama family (Llama, SmolLM2, Mistral, Qwen2, Qwen3):
at the sizes that run on a CPU most of a tick is the overhead of launching small operators, and
fusing q/k/v, gate/up and the residual adds halves their number. `ModuleDecoder` runs any other
`transformers` causal LM through its own code and a cache object over the same pool. Both give
(B, vocabulary) float32 logits of each row's last token; tests hold them to the module's own.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from sao_gym.engines.kv import KVPool, Layout, Packed, lay_out
from sao_gym.types import Weights

FUSED_FAMILIES = frozenset({"llama", "mistral", "qwen2", "qwen3"})


class Decoder(Protocol):
    """What an engine needs of a model."""

    pool: KVPool

    def load(self, weights: Weights) -> None: ...

    def holds(self, weights: Weights) -> bool:
        """Whether the loaded weights are these, by `checksum`."""
        ...

    def forward(self, batch: Packed) -> Tensor: ...


def make_decoder(model: Any) -> Decoder:
    """The fastest decoder that fits `model`, a `transformers` causal LM; copies its weights."""
    config = model.config
    windowed = any("sliding" in kind for kind in getattr(config, "layer_types", None) or ())
    rope = getattr(config, "rope_parameters", None) or {}
    plain = (
        config.model_type in FUSED_FAMILIES
        and config.hidden_act in ("silu", "swish")
        and rope.get("rope_type", "default") == "default"
        and rope.get("partial_rotary_factor", 1.0) == 1.0
        and not windowed
        and not (config.model_type == "mistral" and config.sliding_window)
    )
    return FusedDecoder(model) if plain else ModuleDecoder(model)


def _cache_shape(config: Any) -> dict[str, int]:
    heads = config.num_attention_heads
    return {
        "layers": config.num_hidden_layers,
        "kv_heads": getattr(config, "num_key_value_heads", None) or heads,
        "head_dim": getattr(config, "head_dim", None) or config.hidden_size // heads,
    }


def checksum(tensors: Iterable[Tensor]) -> int:
    """Sum of the bit patterns of all numbers in float32: the same in any order and layout."""
    return sum(int(t.detach().float().view(torch.int32).sum()) for t in tensors)


class _Layer:
    """The fused weights of one block."""

    def __init__(self, weights: Weights, prefix: str, *, heads: int, dim: int) -> None:
        """`heads`: query and key heads, the rotary ones."""

        def get(name: str) -> Tensor | None:
            found = weights.get(prefix + name)
            return None if found is None else found.detach().float().clone()

        def joined(*names: str) -> tuple[Tensor, Tensor | None]:
            """(in, out) weight, laid out as a product of few rows reads it, and bias."""
            parts = [get(name + ".weight") for name in names]
            biases = [get(name + ".bias") for name in names]
            weight = torch.cat([part for part in parts if part is not None]).t().contiguous()
            if all(bias is None for bias in biases):
                return weight, None
            filled = [
                torch.zeros(len(part)) if bias is None else bias
                for part, bias in zip(parts, biases, strict=True)
                if part is not None
            ]
            return weight, torch.cat(filled)

        attention = "self_attn."
        self.qkv = joined(*(attention + p for p in ("q_proj", "k_proj", "v_proj")))
        self.out = joined(attention + "o_proj")
        self.gate, self.up = joined("mlp.gate_proj"), joined("mlp.up_proj")
        self.down = joined("mlp.down_proj")
        self.norm_in = get("input_layernorm.weight")
        self.norm_mlp = get("post_attention_layernorm.weight")
        self.q_norm = get(attention + "q_norm.weight")
        self.k_norm = get(attention + "k_norm.weight")
        self._interleave(heads, dim)

    def tensors(self) -> Iterator[Tensor]:
        for weight, bias in (self.qkv, self.out, self.gate, self.up, self.down):
            yield weight
            if bias is not None:
                yield bias
        for norm in (self.norm_in, self.norm_mlp, self.q_norm, self.k_norm):
            if norm is not None:
                yield norm

    def _interleave(self, heads: int, dim: int) -> None:
        """Put the two halves of every rotary pair side by side, so that a rotation is one complex
        product. Queries and keys move alike, so their products do not change."""
        pairs = torch.arange(dim).view(2, dim // 2).t().reshape(-1)
        order = torch.arange(len(self.qkv[0][0]))
        rotary = order[: heads * dim].view(heads, dim)[:, pairs].reshape(-1)
        order[: heads * dim] = rotary
        weight, bias = self.qkv
        self.qkv = weight[:, order].contiguous(), None if bias is None else bias[order]
        if self.q_norm is not None and self.k_norm is not None:
            self.q_norm, self.k_norm = self.q_norm[pairs], self.k_norm[pairs]


class FusedDecoder:
    """Llama-family forward over packed tokens: RMSNorm, rotary positions, GQA, SwiGLU."""

    def __init__(self, model: Any) -> None:
        config = model.config
        shape = _cache_shape(config)
        self.pool = KVPool(**shape)
        self._heads, self._kv_heads = config.num_attention_heads, shape["kv_heads"]
        self._dim, self._eps = shape["head_dim"], config.rms_norm_eps
        self._tied = bool(config.tie_word_embeddings)
        theta = (getattr(config, "rope_parameters", None) or {}).get("rope_theta", 10000.0)
        self._frequency = 1.0 / theta ** (torch.arange(0, self._dim, 2).float() / self._dim)
        self._rotations = torch.empty(0)
        self.load(model.state_dict())

    def load(self, weights: Weights) -> None:
        layers = range(self.pool.layers)
        rotary = self._heads + self._kv_heads
        self._layers = [
            _Layer(weights, f"model.layers.{i}.", heads=rotary, dim=self._dim) for i in layers
        ]
        self._embedding = weights["model.embed_tokens.weight"].detach().float().clone()
        self._norm = weights["model.norm.weight"].detach().float().clone()
        head = None if self._tied else weights["lm_head.weight"].detach().float().clone()
        self._head = (self._embedding if head is None else head).t().contiguous()

    def holds(self, weights: Weights) -> bool:
        held = [self._embedding, self._norm, *([] if self._tied else [self._head])]
        for layer in self._layers:
            held.extend(layer.tensors())
        given = [t for n, t in weights.items() if not (self._tied and n == "lm_head.weight")]
        return checksum(held) == checksum(given)

    @torch.inference_mode()
    def forward(self, batch: Packed) -> Tensor:
        layout = lay_out(batch, self.pool)
        rotation = self._rotation(layout)
        x = F.embedding(batch.ids, self._embedding)
        for index, layer in enumerate(self._layers):
            x = self._attend(x, index, layer, layout, rotation)
            x = self._feed_forward(x, layer)
        last = x if layout.padded is None else x[layout.last]
        return torch.mm(self._rms(last, self._norm), self._head)

    def _rotation(self, layout: Layout) -> Tensor:
        """(T, 1, head_dim / 2) complex: e^(i position frequency) of every rotary pair."""
        if layout.reach > len(self._rotations):
            angles = torch.arange(2 * layout.reach)[:, None, None] * self._frequency
            self._rotations = torch.polar(torch.ones_like(angles), angles)
        return self._rotations[layout.positions]

    def _rms(self, x: Tensor, weight: Tensor | None) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), weight, self._eps)

    def _attend(
        self, x: Tensor, index: int, layer: _Layer, layout: Layout, rotation: Tensor
    ) -> Tensor:
        heads, kv_heads, dim = self._heads, self._kv_heads, self._dim
        mixed = _project(self._rms(x, layer.norm_in), *layer.qkv)
        split = mixed.view(-1, heads + 2 * kv_heads, dim)
        if layer.q_norm is not None:
            turning = slice(heads, heads + kv_heads)
            split[:, :heads] = self._rms(split[:, :heads], layer.q_norm)
            split[:, turning] = self._rms(split[:, turning], layer.k_norm)
        pairs = split[:, : heads + kv_heads].view(len(x), -1, dim // 2, 2)
        torch.view_as_complex(pairs).mul_(rotation)
        self.pool.write(index, layout.flat, mixed[:, heads * dim :])
        keys, values = self.pool.read(index, layout.rows, layout.reach)
        query = split[:, :heads]
        rows = len(layout.last)
        if layout.padded is None:
            query = query[:, :, None]
        else:
            block = query.new_zeros(rows * layout.queries, heads, dim)
            block[layout.padded] = query
            query = block.view(rows, layout.queries, heads, dim).transpose(1, 2)
        seen = F.scaled_dot_product_attention(
            query, keys, values, attn_mask=layout.mask, enable_gqa=heads != kv_heads
        )
        if layout.padded is None:
            seen = seen.reshape(rows, -1)
        else:
            seen = seen.transpose(1, 2).reshape(rows * layout.queries, -1)[layout.padded]
        return _project_onto(x, seen, *layer.out)

    def _feed_forward(self, x: Tensor, layer: _Layer) -> Tensor:
        normed = self._rms(x, layer.norm_mlp)
        gate = F.silu(_project(normed, *layer.gate), inplace=True)
        return _project_onto(x, gate.mul_(_project(normed, *layer.up)), *layer.down)


def _project(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return torch.mm(x, weight) if bias is None else torch.addmm(bias, x, weight)


def _project_onto(residual: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    out = torch.addmm(residual, x, weight)
    return out if bias is None else out.add_(bias)


class ModuleDecoder:
    """Any `transformers` causal LM with softmax attention, through the module's own forward."""

    def __init__(self, model: Any) -> None:
        self.pool = KVPool(**_cache_shape(model.config))
        self._model = copy.deepcopy(model).float().eval().requires_grad_(False)
        # transformers renamed the argument in 5.2x; both spellings are supported
        accepted = inspect.signature(self._model.forward).parameters
        self._cache_argument = "cache" if "cache" in accepted else "past_key_values"

    def load(self, weights: Weights) -> None:
        self._model.load_state_dict(weights)

    def holds(self, weights: Weights) -> bool:
        return checksum(self._model.state_dict().values()) == checksum(weights.values())

    @torch.inference_mode()
    def forward(self, batch: Packed) -> Tensor:
        from sao_gym.engines.hf_cache import pooled_cache

        layout = lay_out(batch, self.pool)
        rows, queries = len(batch.rows), layout.queries
        padded = torch.arange(rows) if layout.padded is None else layout.padded
        ids = torch.zeros(rows * queries, dtype=torch.long)
        positions = torch.zeros(rows * queries, dtype=torch.long)
        ids[padded], positions[padded] = batch.ids, layout.positions
        logits: Tensor = self._model(
            input_ids=ids.view(rows, queries),
            position_ids=positions.view(rows, queries),
            attention_mask=layout.mask,
            use_cache=True,
            **{self._cache_argument: pooled_cache(self.pool, layout, padded)},
        ).logits
        return logits.reshape(rows * queries, -1)[padded[layout.last]].float()
