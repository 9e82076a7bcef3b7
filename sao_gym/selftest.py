"""Before a run: the engine and the model that is trained must agree on what was sampled.

A ratio that is not 1 at zero lag (dropout left on, another precision, a processed distribution, a
stale cache) looks like staleness for the whole run. Here it is an error before the run begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sao_gym.errors import RunError
from sao_gym.protocols import Engine
from sao_gym.types import Completion, Request

TOLERANCE = 1e-4
"""Largest |log-prob difference|, in nats."""


def check_agreement(
    engine: Engine, model: Any, prompts: Sequence[Sequence[int]], *, max_new_tokens: int
) -> float:
    """Sample a continuation of each prompt; return the largest log-prob difference.

    Raises RunError if it exceeds `TOLERANCE`. The engine must hold the model's weights and none of
    the rollouts 0 .. len(prompts) - 1.
    """
    for number, prompt in enumerate(prompts):
        engine.submit(
            Request(rollout=number, turn=1, context_ids=prompt, max_new_tokens=max_new_tokens)
        )
    done: list[Completion] = []
    while engine.active:
        done.extend(engine.step())
    worst = max(_difference(model, prompts[c.rollout], c) for c in done)
    for completion in done:
        engine.release(completion.rollout)
    if not worst <= TOLERANCE:
        raise RunError(
            f"self-test: the engine's log-probs differ from the model's by {worst:.2e} at zero lag "
            f"(at most {TOLERANCE:.0e}); the importance ratio would not start at 1"
        )
    return worst


def _difference(model: Any, prompt: Sequence[int], completion: Completion) -> float:
    import torch

    ids = torch.tensor([[*prompt, *completion.action_ids]])
    with torch.inference_mode():
        logits = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1]
    actions = torch.tensor(completion.action_ids)
    logprobs = torch.log_softmax(logits.float(), -1).gather(1, actions[:, None])[:, 0]
    return float((logprobs - torch.tensor(completion.logprobs)).abs().max())
