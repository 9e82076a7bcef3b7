"""Trajectories as padded tensors: what every learner computes with.

Two layouts. The *sequences* (S, L) are all tokens, observations and actions, a row for each
segment, right-padded; a model reads them. Most trajectories are one segment, and then S = N. The
*action* layout (N, A) holds the action tokens of a trajectory alone, in order, across turns and
segments, right-padded; log-probs, values, rewards and advantages live there.
`sequence` and `columns` join them: they place, for action token (n, a), the last token *before* it,
whose hidden state gives both the logits that sampled the token and the value of the prefix it was
sampled from.

Rows are padded on the right and every policy is causal, so real tokens never attend to padding.
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
    """N trajectories of S segments.

    Shapes: L tokens of a segment, A action tokens of a trajectory; padding is 0 (ids: `pad_id`).
    """

    ids: Tensor
    """(S, L) int64: token ids; the segments of a trajectory stand one after the other."""
    attention: Tensor
    """(S, L) bool: True on real tokens."""
    first: Tensor
    """(N,) int64: the row of a trajectory's first segment."""
    sequence: Tensor
    """(N, A) int64: row of the token before the action token."""
    columns: Tensor
    """(N, A) int64: its column."""
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
    """(N, 2) int64: row and column of the last real token, where a truncated episode was cut."""
    truncated: Tensor
    """(N,) bool: True if something outside the task cut the episode short."""
    totals: Tensor
    """(N,) float64: the trajectory's reward, summed over turns."""
    groups: Tensor
    """(N,) int64: task index, the name of the group."""

    @property
    def tokens(self) -> int:
        """Action tokens of the whole batch: the denominator of a token mean."""
        return int(self.mask.sum())

    @property
    def lengths(self) -> Tensor:
        """(N,) int64: action tokens per row."""
        return self.mask.sum(dim=1)

    def rows(self, start: int, stop: int) -> Batch:
        """The trajectories [start, stop), sequences trimmed to the longest of theirs; A stays."""
        low = int(self.first[start])
        high = int(self.first[stop]) if stop < len(self.first) else len(self.ids)
        width = int(self.attention[low:high].sum(dim=1).max())
        parts = {field.name: getattr(self, field.name)[start:stop] for field in fields(self)}
        for name in ("ids", "attention"):
            parts[name] = getattr(self, name)[low:high, :width]
        parts["first"] = parts["first"] - low
        parts["sequence"] = (parts["sequence"] - low) * parts["mask"]
        parts["last"] = parts["last"] - torch.tensor([low, 0], device=self.last.device)
        return Batch(**parts)


def micro_batches(batch: Batch, size: int | None) -> Iterator[Batch]:
    """Cut a batch into consecutive parts of at most `size` trajectories (None: one part)."""
    rows = len(batch.first)
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
    segments = [segment for row in rows for segment in row.segments]
    firsts = np.cumsum([0, *(len(row.segments) for row in rows)])[:-1]
    lengths = np.array([len(segment) for segment in segments])
    shape = (len(segments), int(lengths.max()))
    action_shape = (len(rows), max(len(row.actions) for row in rows))
    ends = firsts + np.array([len(row.segments) for row in rows]) - 1

    def tensor(array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(device)

    def padded(values: Sequence[Sequence[float]], dtype: type) -> Tensor:
        return tensor(_padded(values, action_shape, dtype))

    sequence = [[first + at for at in row.places] for first, row in zip(firsts, rows, strict=True)]
    return Batch(
        ids=tensor(_padded(segments, shape, np.int64, pad_id)),
        attention=tensor(np.arange(shape[1]) < lengths[:, None]),
        first=tensor(firsts),
        sequence=padded(sequence, np.int64),
        columns=padded([row.columns for row in rows], np.int64),
        actions=padded([row.actions for row in rows], np.int64),
        mask=padded([[True] * len(row.actions) for row in rows], np.bool_),
        logprobs=padded([row.logprobs for row in rows], np.float32),
        versions=padded([row.versions for row in rows], np.int64),
        rewards=padded([row.rewards for row in rows], np.float32),
        last=tensor(np.stack([ends, lengths[ends] - 1], axis=1)),
        truncated=tensor(np.array([isinstance(t.outcome, Truncated) for t in trajectories])),
        totals=tensor(np.array([t.reward for t in trajectories], dtype=np.float64)),
        groups=tensor(np.array([t.task.index for t in trajectories], dtype=np.int64)),
    )


class _Row:
    """One trajectory, flattened over its turns."""

    def __init__(self, trajectory: Trajectory) -> None:
        self.segments: list[list[int]] = [[]]
        self.places: list[int] = []
        """Which of its segments holds the token before each action token."""
        self.columns: list[int] = []
        self.actions: list[int] = []
        self.logprobs: list[float] = []
        self.versions: list[int] = []
        self.rewards: list[float] = []
        early = 0.0  # rewards of turns without action tokens, before the first action token
        for turn in trajectory.turns:
            if turn.restart and self.segments[-1]:
                self.segments.append([])
            ids = self.segments[-1]
            ids.extend(turn.observation_ids)
            first = len(ids)
            if turn.action_ids and first == 0:
                raise ValueError(f"rollout {trajectory.rollout}: nothing precedes its first action")
            ids.extend(turn.action_ids)
            self.places.extend([len(self.segments) - 1] * len(turn.action_ids))
            self.columns.extend(range(first - 1, len(ids) - 1))
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


def _padded(
    rows: Sequence[Sequence[float]], shape: tuple[int, int], dtype: type, fill: int = 0
) -> np.ndarray:
    array: np.ndarray = np.full(shape, fill, dtype=dtype)
    for index, row in enumerate(rows):
        array[index, : len(row)] = row
    return array
