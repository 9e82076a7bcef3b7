"""A continuous-batching engine on ticks, for any `transformers` causal LM on the CPU.

    submit -> [ active sequences ] -- step(): one batched forward, one token each --> Completion
                     ^                            |
                     +---- KV pool, one row a rollout, kept between the rollout's turns

A tick feeds every active sequence what its cache lacks: one token while decoding, the new
observation when it joins, everything after a publish with `kv="rebuild"`. There is one rule for
all three: feed `tokens[cached:]`. Weights change only in `load`, between two ticks; each token
carries the version that sampled it and its float32 log-probability at temperature 1.

Sampling inverts the cumulative distribution at a uniform number keyed by (seed, rollout, turn,
index), so what a sequence says does not depend on who else is in the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from sao_gym import rng
from sao_gym.engines.decoder import Decoder, make_decoder
from sao_gym.engines.kv import Packed
from sao_gym.types import Completion, Request, VersionSpan, Weights


@dataclass(slots=True)
class _Sequence:
    """A rollout's tokens and how many of them the cache holds."""

    row: int
    tokens: list[int]
    cached: int = 0
    request: Request | None = None
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)


class LocalEngine:
    """`Engine` on this process's CPU (one forward pass a tick)."""

    def __init__(
        self,
        model: Any,
        *,
        seed: int,
        purpose: str = "sample",
        version: int = 0,
        kv: Literal["rebuild", "keep"] = "rebuild",
        decoder: Decoder | None = None,
    ) -> None:
        self._decoder = make_decoder(model) if decoder is None else decoder
        self._seed, self._purpose = seed, purpose
        self._version, self._kv = version, kv
        self._sequences: dict[int, _Sequence] = {}
        self._active: dict[int, _Sequence] = {}
        self.ticks = 0

    @property
    def active(self) -> int:
        return len(self._active)

    @property
    def version(self) -> int:
        return self._version

    def submit(self, request: Request) -> None:
        """Join at the next tick.

        Raises ValueError if the rollout is still decoding, or if `context_ids` is not an
        extension of what the engine has seen of it (a history tokenised again) and no `restart`.
        """
        rollout = request.rollout
        if rollout in self._active:
            raise ValueError(f"rollout {rollout} already has a request in the engine")
        if not request.context_ids:
            raise ValueError(f"rollout {rollout}: a request needs at least one token of context")
        if request.max_new_tokens < 1:
            raise ValueError(f"rollout {rollout}: max_new_tokens must be >= 1")
        if request.restart:
            self.release(rollout)
        sequence = self._sequences.get(rollout)
        context = list(request.context_ids)
        if sequence is None:
            sequence = _Sequence(row=self._decoder.pool.take(), tokens=context)
            self._sequences[rollout] = sequence
        elif context[: len(sequence.tokens)] != sequence.tokens:
            raise ValueError(f"rollout {rollout}: its history differs from the sampled tokens")
        sequence.tokens = context
        sequence.request, sequence.logprobs, sequence.versions = request, [], []
        self._active[rollout] = sequence

    def step(self) -> Sequence[Completion]:
        """Advance every active sequence by one token; return those that ended, oldest row first."""
        if not self._active:
            return ()
        self.ticks += 1
        batch = sorted(self._active.values(), key=lambda s: s.row)
        feeds = [s.tokens[s.cached :] for s in batch]
        self._decoder.pool.reserve(max(len(s.tokens) for s in batch))
        logits = self._decoder.forward(
            Packed(
                ids=torch.tensor([token for feed in feeds for token in feed]),
                rows=[s.row for s in batch],
                counts=[len(feed) for feed in feeds],
                starts=[s.cached for s in batch],
            )
        )
        ids, logprobs = _sample(logits, [self._draw(s) for s in batch])
        done = []
        for sequence, token, logprob in zip(batch, ids, logprobs, strict=True):
            completion = self._advance(sequence, token, logprob)
            if completion is not None:
                done.append(completion)
        return done

    def load(self, weights: Weights | None, version: int) -> None:
        """Swap weights; None keeps them. Raises ValueError if `version` goes back."""
        if version < self._version:
            raise ValueError(f"policy version goes back from {self._version} to {version}")
        self._version = version
        if weights is None:
            return
        self._decoder.load(weights)
        if self._kv == "rebuild":
            for sequence in self._sequences.values():
                sequence.cached = 0

    def release(self, rollout: int) -> None:
        self._active.pop(rollout, None)
        sequence = self._sequences.pop(rollout, None)
        if sequence is not None:
            self._decoder.pool.give_back(sequence.row)

    def holds(self, weights: Weights) -> bool:
        return self._decoder.holds(weights)

    def restart(self) -> None:
        for rollout in list(self._sequences):
            self.release(rollout)

    def state_dict(self) -> dict[str, Any]:
        return {
            "version": self._version,
            "ticks": self.ticks,
            "pool": self._decoder.pool.state_dict(self._held()),
            "sequences": [
                (rollout, s.row, list(s.tokens), s.cached, s.request, s.logprobs, s.versions)
                for rollout, s in self._sequences.items()
            ],
        }

    def load_state_dict(self, state: dict[str, Any], weights: Weights) -> None:
        self._decoder.load(weights)
        self._version, self.ticks = state["version"], state["ticks"]
        self._sequences = {
            rollout: _Sequence(row, tokens, cached, request, list(logprobs), list(versions))
            for rollout, row, tokens, cached, request, logprobs, versions in state["sequences"]
        }
        self._active = {n: s for n, s in self._sequences.items() if s.request is not None}
        self._decoder.pool.load_state_dict(state["pool"], self._held())

    def _held(self) -> list[tuple[int, int]]:
        """(row, cached positions) of every rollout."""
        return [(s.row, s.cached) for s in self._sequences.values()]

    def _draw(self, sequence: _Sequence) -> float:
        request = sequence.request
        assert request is not None
        index = len(sequence.logprobs)
        return rng.uniform(self._seed, self._purpose, request.rollout, request.turn, index)

    def _advance(self, sequence: _Sequence, token: int, logprob: float) -> Completion | None:
        request = sequence.request
        assert request is not None
        sequence.cached = len(sequence.tokens)
        sequence.tokens.append(token)
        sequence.logprobs.append(logprob)
        sequence.versions.append(self._version)
        stopped = token in request.stop_ids
        if not stopped and len(sequence.logprobs) < request.max_new_tokens:
            return None
        del self._active[request.rollout]
        sequence.request = None
        return Completion(
            rollout=request.rollout,
            turn=request.turn,
            action_ids=tuple(sequence.tokens[-len(sequence.logprobs) :]),
            logprobs=tuple(sequence.logprobs),
            versions=_spans(sequence.versions),
            stopped=stopped,
        )


def _spans(versions: list[int]) -> tuple[VersionSpan, ...]:
    spans: list[VersionSpan] = []
    for version in versions:
        if spans and spans[-1].version == version:
            spans[-1] = VersionSpan(version, spans[-1].tokens + 1)
        else:
            spans.append(VersionSpan(version, 1))
    return tuple(spans)


@torch.inference_mode()
def _sample(logits: Tensor, uniforms: list[float]) -> tuple[list[int], list[float]]:
    """Draw one token a row by inverse CDF; (B, vocabulary) logits, B uniforms in [0, 1)."""
    logprobs = torch.log_softmax(logits, -1)
    # float64 keeps the cumulative sum exact enough for vocabularies of 100k tokens
    cumulative = logprobs.double().exp_().cumsum_(-1)
    at = torch.tensor(uniforms, dtype=torch.float64)[:, None] * cumulative[:, -1:]
    ids = torch.searchsorted(cumulative, at, right=True).clamp_(max=logits.shape[-1] - 1)
    return ids[:, 0].tolist(), logprobs.gather(1, ids)[:, 0].tolist()
