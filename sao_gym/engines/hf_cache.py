"""A `transformers` cache object over the KV pool: the seam through which any model is batched."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from sao_gym.engines.kv import KVPool, Layout


def pooled_cache(pool: KVPool, layout: Layout, padded: Tensor) -> Cache:
    """The cache that one forward pass of `layout` writes to and attends over."""
    return Cache(layers=[PooledLayer(pool, i, layout, padded) for i in range(pool.layers)])


class PooledLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """One layer's view: stores the real tokens of a padded block, returns the rows' whole past."""

    is_compileable = False
    is_sliding = False

    def __init__(self, pool: KVPool, index: int, layout: Layout, padded: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._pool, self._index, self._layout, self._padded = pool, index, layout, padded

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Take (B, kv_heads, Q, head_dim) new states; give (B, kv_heads, reach, head_dim)."""
        both = torch.stack([key_states, value_states], 1)
        tokens = both.permute(0, 3, 1, 2, 4).reshape(-1, both[0, :, :, 0].numel())
        self._pool.write(self._index, self._layout.flat, tokens[self._padded].float())
        return self._pool.read(self._index, self._layout.rows, self._layout.reach)

    def get_seq_length(self) -> int:
        return self._layout.reach - self._layout.queries

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._layout.reach, 0

    def get_max_length(self) -> int:
        return -1

    def get_max_cache_shape(self) -> int:
        return -1
