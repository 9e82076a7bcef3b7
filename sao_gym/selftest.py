"""Before a run: what the engine samples now, for a learner to score with the same weights.

A ratio that is not 1 at zero lag (dropout left on, another precision, a processed distribution, a
stale cache) looks like staleness for the whole run. So a learner that fits `SelfTesting` is shown
rollouts of its own starting policy, and refuses to start if it scores them differently.
"""

from __future__ import annotations

from collections.abc import Sequence

from sao_gym.protocols import Engine
from sao_gym.types import (
    Completion,
    Concept,
    Request,
    Task,
    Terminated,
    Timing,
    Trajectory,
    Turn,
)


def on_policy_rollouts(
    engine: Engine, prompts: Sequence[tuple[int, ...]], concept: Concept, *, max_new_tokens: int
) -> list[Trajectory]:
    """One-turn rollouts that continue `prompts`, sampled by the engine as it is.

    The engine must hold none of the rollouts 0 .. len(prompts) - 1, and is left without them.
    """
    for number, prompt in enumerate(prompts):
        engine.submit(
            Request(rollout=number, turn=1, context_ids=prompt, max_new_tokens=max_new_tokens)
        )
    done: list[Completion] = []
    while engine.active:
        done.extend(engine.step())
    for number in range(len(prompts)):
        engine.release(number)
    return [
        Trajectory(
            rollout=completion.rollout,
            task=Task(index=completion.rollout, seed=0),
            concept_start=concept,
            concept_scored=concept,
            turns=(
                Turn(
                    observation_ids=tuple(prompts[completion.rollout]),
                    action_ids=completion.action_ids,
                    logprobs=completion.logprobs,
                    versions=completion.versions,
                    reward=0.0,
                ),
            ),
            outcome=Terminated(),
            timing=Timing(started=0.0, finished=0.0),
        )
        for completion in done
    ]
