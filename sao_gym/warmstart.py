"""A short supervised phase before the run: the policy imitates noisy reference solutions.

The paper starts reinforcement learning from a supervised checkpoint; so do we. The result depends
only on what goes into its key, so it is kept in a cache and found again by content.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from sao_gym import __version__, rng
from sao_gym.demonstration import demonstrate
from sao_gym.protocols import Agent, Learner, TextEnv
from sao_gym.types import Concept, Task, Trajectory, Weights


def cache_directory() -> Path:
    """`$SAO_GYM_CACHE`, else the user's cache directory."""
    chosen = os.environ.get("SAO_GYM_CACHE")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "sao-gym"


class Demonstrations:
    """Batches of noisy reference solutions of one concept, by index."""

    def __init__(
        self,
        make_environment: Callable[[], TextEnv],
        agent: Agent,
        concept: Concept,
        *,
        seed: int,
        noise: float,
        noise_after_error: float,
    ) -> None:
        self._env, self._agent, self._concept = make_environment(), agent, concept
        self._seed, self._noise, self._after = seed, noise, noise_after_error

    def batch(self, index: int, size: int) -> list[Trajectory]:
        return [self._one(index * size + i) for i in range(size)]

    def _one(self, index: int) -> Trajectory:
        return demonstrate(
            self._env,
            self._agent,
            self._concept,
            Task(index=index, seed=rng.integer(self._seed, "warm_start", index)),
            seed=self._seed,
            noise=self._noise,
            noise_after_error=self._after,
        )


def content_key(
    weights_hash: str, settings: Mapping[str, Any], demonstrations: Demonstrations
) -> str:
    """SHA-256 of all that a warm start depends on.

    The first 64 demonstrations stand for the code of environment, agent and tokenizer: if one of
    them changes what it does, the key changes too.
    """
    import torch

    sample = [
        [(turn.observation_ids, turn.action_ids) for turn in trajectory.turns]
        for trajectory in demonstrations.batch(0, 64)
    ]
    content = [__version__, torch.__version__, weights_hash, dict(settings), sample]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def cached(key: str) -> Weights | None:
    """The warm-started weights kept under `key`, or None."""
    from safetensors.torch import load_file

    path = cache_directory() / "warm-start" / f"{key}.safetensors"
    return load_file(path) if path.is_file() else None


def keep(key: str, weights: Weights) -> None:
    """Keep weights under `key`; never a half-written file."""
    from safetensors.torch import save_file

    folder = cache_directory() / "warm-start"
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f"{key}.{os.getpid()}.partial"
    save_file({name: tensor.contiguous().clone() for name, tensor in weights.items()}, partial)
    partial.replace(folder / f"{key}.safetensors")


def imitate(
    learner: Learner, demonstrations: Demonstrations, *, steps: int, batch_size: int
) -> Iterator[tuple[int, Weights | None]]:
    """Train `learner` on demonstrations; yield (steps done, weights) after each step."""
    for step in range(steps):
        update = learner.update(demonstrations.batch(step, batch_size))
        yield step + 1, update.weights
