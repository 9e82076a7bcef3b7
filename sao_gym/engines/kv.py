"""The key/value pool: one row a rollout, one column a position, grown on demand.

    pool[layer]: (rows, positions, 2 * kv_heads * head_dim)      keys then values of a position

Rows belong to rollouts, not to requests, so a rollout that waits for its environment keeps its
cache. A tick feeds a *packed* batch: the tokens of all active rows one after another, each with
its own row and position; that is what lets sequences join and leave at any tick.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Packed:
    """The tokens of one tick. T tokens of B rows; row b owns the next `counts[b]` tokens."""

    ids: Tensor
    """(T,) token ids."""
    rows: list[int]
    """B pool rows, ascending."""
    counts: list[int]
    """B numbers of tokens, each >= 1."""
    starts: list[int]
    """B positions of each row's first token."""

    @property
    def reach(self) -> int:
        """Positions that attention must see: the longest row, its new tokens included."""
        return max(s + c for s, c in zip(self.starts, self.counts, strict=True))


class KVPool:
    """Keys and values of all layers, addressed by (row, position)."""

    def __init__(self, *, layers: int, kv_heads: int, head_dim: int) -> None:
        self.layers, self.kv_heads, self.head_dim = layers, kv_heads, head_dim
        self.rows, self.positions = 0, 0
        self._free: list[int] = []
        self._data: list[Tensor] = []

    def take(self) -> int:
        """The lowest free row, so that active rows stay packed at the front."""
        if not self._free:
            grown = max(8, 2 * self.rows)
            self._resize(grown, self.positions)
        return heapq.heappop(self._free)

    def give_back(self, row: int) -> None:
        heapq.heappush(self._free, row)

    def reserve(self, positions: int) -> None:
        """Make room for rows of this many tokens."""
        if positions > self.positions:
            self._resize(self.rows, max(positions, 2 * self.positions, 32))

    def state_dict(self, held: list[tuple[int, int]]) -> dict[str, Any]:
        """Geometry, free rows, and the contents of `held`: (row, positions) pairs."""
        flat = self._flat(held)
        return {
            "rows": self.rows,
            "positions": self.positions,
            "free": sorted(self._free),
            "data": [data.view(-1, data.shape[-1])[flat] for data in self._data],
        }

    def load_state_dict(self, state: dict[str, Any], held: list[tuple[int, int]]) -> None:
        self.rows, self.positions, self._data = 0, 0, []
        self._resize(state["rows"], state["positions"])
        self._free = list(state["free"])  # ascending, hence a heap
        flat = self._flat(held)
        for data, kept in zip(self._data, state["data"], strict=True):
            data.view(-1, data.shape[-1])[flat] = kept

    def _flat(self, held: list[tuple[int, int]]) -> Tensor:
        """Indices into the (rows * positions) view."""
        spans = [torch.arange(n) + row * self.positions for row, n in held]
        return torch.cat(spans) if spans else torch.zeros(0, dtype=torch.long)

    def _resize(self, rows: int, positions: int) -> None:
        width = 2 * self.kv_heads * self.head_dim
        for row in range(self.rows, rows):
            heapq.heappush(self._free, row)
        old = self._data
        self._data = [torch.zeros(rows, positions, width) for _ in range(self.layers)]
        for new, kept in zip(self._data, old, strict=False):
            new[: self.rows, : self.positions] = kept
        self.rows, self.positions = rows, positions

    def write(self, layer: int, flat: Tensor, keys_values: Tensor) -> None:
        """Store (T, 2 * kv_heads * head_dim) at the layout's flat indices."""
        data = self._data[layer]
        data.view(-1, data.shape[-1]).index_copy_(0, flat, keys_values)

    def read(self, layer: int, rows: Tensor | slice, reach: int) -> tuple[Tensor, Tensor]:
        """Keys and values, each (B, kv_heads, reach, head_dim); a view if `rows` is a slice."""
        data = self._data[layer][:, :reach][rows]
        data = data.view(data.shape[0], reach, 2, self.kv_heads, self.head_dim)
        keys, values = data.permute(2, 0, 3, 1, 4).unbind(0)
        return keys, values


@dataclass(frozen=True, slots=True)
class Layout:
    """Index tensors of a packed batch, computed once a tick and shared by all layers."""

    flat: Tensor
    """(T,) pool index of every token."""
    positions: Tensor
    """(T,) position of every token."""
    rows: Tensor | slice
    padded: Tensor | None
    """(T,) index into a (B * Q) padded query block; None if every row feeds one token."""
    queries: int
    """Q, the most tokens a row feeds."""
    last: Tensor
    """(B,) packed index of each row's last token."""
    mask: Tensor
    """(B, 1, Q, reach): 0 at the positions a query attends to, the lowest float elsewhere."""
    reach: int


def lay_out(batch: Packed, pool: KVPool) -> Layout:
    """Indices and causal mask for `batch`."""
    counts, starts = torch.tensor(batch.counts), torch.tensor(batch.starts)
    rows, total = torch.tensor(batch.rows), len(batch.ids)
    n, queries, reach = len(batch.rows), max(batch.counts), batch.reach
    ends = counts.cumsum(0)
    if queries == 1:
        positions, padded, owner = starts, None, None
        query_positions = starts[:, None]
    else:
        owner = torch.repeat_interleave(torch.arange(n), counts)
        offset = torch.arange(total) - (ends - counts)[owner]
        positions = starts[owner] + offset
        padded = owner * queries + offset
        query_positions = torch.zeros(n * queries, dtype=torch.long)
        query_positions[padded] = positions
        query_positions = query_positions.view(n, queries)
    token_rows = rows if owner is None else rows[owner]
    contiguous = batch.rows[-1] - batch.rows[0] == n - 1
    hidden = torch.arange(reach) > query_positions[:, :, None]
    mask = torch.zeros(n, 1, queries, reach)
    return Layout(
        flat=token_rows * pool.positions + positions,
        positions=positions,
        rows=slice(batch.rows[0], batch.rows[0] + n) if contiguous else rows,
        padded=padded,
        queries=queries,
        last=ends - 1,
        mask=mask.masked_fill_(hidden[:, None], torch.finfo(torch.float32).min),
        reach=reach,
    )
