"""Trajectories as padded tensors: what every learner computes with.

Two layouts share the rows of a batch. The *sequence* (N, L) is all tokens, observations and
actions, right-padded; a model reads it. The *action* layout (N, A) holds the action tokens alone,
in order, across turns, right-padded; log-probs, values, rewards and advantages live there.
`columns` joins them: entry (n, a) is the sequence column of the last token *before* action token
a, whose hidden state gives both the logits that sampled the token and the value of the prefix it
was sampled from.

Rows are padded on the right and every policy is causal, so real tokens never attend to padding. A
trajectory of several segments is one row; a segment's tokens do not attend to another's (`inputs`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from sao_gym.types import Trajectory, Truncated


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """N trajectories. Shapes: N rows, L tokens, A action tokens; padding is 0 (ids: `pad_id`)."""

    ids: Tensor
    """(N, L) int64: token ids."""
    attention: Tensor
    """(N, L) bool: True on real tokens."""
    positions: Tensor
    """(N, L) int64: 0, 1, ... along each segment of a row."""
    columns: Tensor
    """(N, A) int64: column of the token before the action token."""
    actions: Tensor
    """(N, A) int64: ids of the action tokens."""
    mask: Tensor
    """(N, A) bool: True on action tokens, False on padding."""
    logprobs: Tensor
    """(N, A) float32: log-probs recorded by the sampler (the behaviour policy)."""
    versions: Tensor
    """(N, A) int64: policy version that sampled each token."""
    rewards: Tensor
    """(N, A) float32: each turn's reward on that turn's last action token."""
    last: Tensor
    """(N,) int64: column of the row's last real token, where a truncated episode was cut."""
    truncated: Tensor
    """(N,) bool: True if something outside the task cut the episode short."""
    totals: Tensor
    """(N,) float64: the trajectory's reward, summed over turns."""
    groups: Tensor
    """(N,) int64: task index, the name of the group."""

    @property
    def inputs(self) -> dict[str, Tensor]:
        """What a model is called with.

        Positions are given where a row has several segments: at each 0 `transformers` starts a new
        sequence of its own, as in a packed batch.
        """
        starts = (self.positions == 0) & self.attention
        if int(starts.sum()) == len(self.ids):
            return {"input_ids": self.ids}
        return {"input_ids": self.ids, "position_ids": self.positions}

    @property
    def tokens(self) -> int:
        """Action tokens of the whole batch: the denominator of a token mean."""
        return int(self.mask.sum())

    @property
    def lengths(self) -> Tensor:
        """(N,) int64: action tokens per row."""
        return self.mask.sum(dim=1)

    def rows(self, start: int, stop: int) -> Batch:
        """The rows [start, stop), sequences trimmed to the longest of them; A stays."""
        width = int(self.last[start:stop].max()) + 1
        parts = {field.name: getattr(self, field.name)[start:stop] for field in fields(self)}
        for name in ("ids", "attention", "positions"):
            parts[name] = parts[name][:, :width]
        return Batch(**parts)


def micro_batches(batch: Batch, size: int | None) -> Iterator[Batch]:
    """Cut a batch into consecutive parts of at most `size` rows (None: one part)."""
    rows = len(batch.ids)
    if size is None or size >= rows:
        yield batch
        return
    for start in range(0, rows, size):
        yield batch.rows(start, min(start + size, rows))


def collate(
    trajectories: Sequence[Trajectory], pad_id: int, device: torch.device | str = "cpu"
) -> Batch:
    """Pad trajectories into a `Batch`. Ids are taken as sampled; nothing is tokenised again.

    Raises:
        ValueError: no trajectories, one without action tokens, or one whose first action token
            has no token before it (nothing predicts it).
    """
    if not trajectories:
        raise ValueError("a batch needs at least one trajectory")
    rows = [_Row(trajectory) for trajectory in trajectories]
    shape = (len(rows), max(len(row.ids) for row in rows))
    action_shape = (len(rows), max(len(row.actions) for row in rows))
    lengths = np.array([len(row.ids) for row in rows])

    def tensor(array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(device)

    real = np.arange(shape[1]) < lengths[:, None]
    positions = _padded([row.positions() for row in rows], shape, np.int64)
    return Batch(
        ids=tensor(_padded([row.ids for row in rows], shape, np.int64, pad_id)),
        attention=tensor(real),
        positions=tensor(positions),
        columns=tensor(_padded([row.columns for row in rows], action_shape, np.int64)),
        actions=tensor(_padded([row.actions for row in rows], action_shape, np.int64)),
        mask=tensor(_padded([[True] * len(row.actions) for row in rows], action_shape, np.bool_)),
        logprobs=tensor(_padded([row.logprobs for row in rows], action_shape, np.float32)),
        versions=tensor(_padded([row.versions for row in rows], action_shape, np.int64)),
        rewards=tensor(_padded([row.rewards for row in rows], action_shape, np.float32)),
        last=tensor(lengths - 1),
        truncated=tensor(np.array([isinstance(t.outcome, Truncated) for t in trajectories])),
        totals=tensor(np.array([t.reward for t in trajectories], dtype=np.float64)),
        groups=tensor(np.array([t.task.index for t in trajectories], dtype=np.int64)),
    )


class _Row:
    """One trajectory, flattened over its turns."""

    def __init__(self, trajectory: Trajectory) -> None:
        self.ids: list[int] = []
        self.columns: list[int] = []
        self.actions: list[int] = []
        self.logprobs: list[float] = []
        self.versions: list[int] = []
        self.rewards: list[float] = []
        self.starts = [0]  # columns at which segments begin
        early = 0.0  # rewards of turns without action tokens, before the first action token
        for turn in trajectory.turns:
            if turn.restart and self.ids:
                self.starts.append(len(self.ids))
            self.ids.extend(turn.observation_ids)
            first = len(self.ids)
            if turn.action_ids and first == self.starts[-1]:
                raise ValueError(f"rollout {trajectory.rollout}: nothing precedes its first action")
            self.ids.extend(turn.action_ids)
            self.columns.extend(range(first - 1, len(self.ids) - 1))
            self.actions.extend(turn.action_ids)
            self.logprobs.extend(turn.logprobs)
            for span in turn.versions:
                self.versions.extend([span.version] * span.tokens)
            self.rewards.extend([0.0] * len(turn.action_ids))
            if self.rewards:
                self.rewards[-1] += turn.reward + early
                early = 0.0
            else:
                early += turn.reward
        if not self.actions:
            raise ValueError(f"rollout {trajectory.rollout} holds no action tokens")

    def positions(self) -> list[int]:
        """Of each token in its segment."""
        ends = [*self.starts[1:], len(self.ids)]
        return [i for start, end in zip(self.starts, ends, strict=True) for i in range(end - start)]


def _padded(
    rows: Sequence[Sequence[float]], shape: tuple[int, int], dtype: type, fill: int = 0
) -> np.ndarray:
    array: np.ndarray = np.full(shape, fill, dtype=dtype)
    for index, row in enumerate(rows):
        array[index, : len(row)] = row
    return array
