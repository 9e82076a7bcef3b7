"""What sets each critic-free learner apart: its baseline, its loss, its options."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from learning import VOCABULARY, demonstrate, policy, trajectory

from sao_gym.learners.grpo import Grpo
from sao_gym.learners.grpo_dis import GrpoDis
from sao_gym.learners.oracle import Oracle, newest_concept
from sao_gym.learners.reinforce import Reinforce
from sao_gym.learners.running_mean import RunningMean
from sao_gym.protocols import LearnerSetup
from sao_gym.types import (
    Concept,
    Truncated,
)


def build(learner, demonstrate=demonstrate, **params):
    setup = LearnerSetup(model=policy(), seed=0, pad_id=0, demonstrate=demonstrate)
    if learner in (Grpo, GrpoDis):
        params["group_size"] = 4
    return learner(setup, learner.Config(**params))


def test_zero_advantage_groups_are_counted_and_teach_nothing():
    rewards = [[0, 0, 0, 0], [1, 0, 0, 1], [1, 1, 1, 1]]
    rolls = [
        trajectory(10 * g + k, 1, [3], [-1.8], [float(r)], task=g)
        for g, group in enumerate(rewards)
        for k, r in enumerate(group)
    ]
    metrics = build(Grpo, batch_size=12).update(rolls).metrics
    assert metrics["zero_advantage_groups"] == 2.0
    only_flat = build(Grpo, batch_size=8).update(rolls[:4] + rolls[8:])
    assert only_flat.weights is None
    assert only_flat.metrics["grad_norm"] == 0.0


def test_which_loss_runs():
    """A ratio of e: inside DIS's (0.7, 6), beyond PPO's 1.28, so only one of them learns."""
    rolls = [
        trajectory(k, 1, [3], [math.log(1 / VOCABULARY) - 1.0], [float(k == 0)], task=0)
        for k in range(4)
    ]
    clipped = build(Grpo, batch_size=4).update(rolls)
    masked = build(GrpoDis, batch_size=4).update(rolls)
    assert clipped.metrics["masked_fraction"] == pytest.approx(0.25)
    assert masked.metrics["masked_fraction"] == 0.0
    assert masked.metrics["ratio_mean"] == pytest.approx(math.e, rel=0.1)


def test_running_mean_uses_earlier_batches_only():
    learner = build(RunningMean, batch_size=2, window=3)

    def rolls(first, second):
        return [
            trajectory(0, 1, [3], [-1.8], [first]),
            trajectory(1, 2, [3], [-1.8], [second]),
        ]

    baselines = [
        learner.update(rolls(*pair)).metrics["baseline_mean"]
        for pair in ((1.0, 0.0), (4.0, 1.0), (9.0, 9.0))
    ]
    assert baselines == pytest.approx([0.5, 0.5, (0.0 + 4.0 + 1.0) / 3])
    by_prompt = build(RunningMean, batch_size=2, window=3, scope="prompt")
    by_prompt.update(rolls(1.0, 0.0))
    advantages = by_prompt.update(rolls(1.0, 0.0)).metrics
    assert advantages["advantage_mean"] == advantages["advantage_std"] == 0.0


@pytest.mark.parametrize("scope", ["global", "prompt"])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_running_mean_forgets_rewards_that_are_not_finite(scope, bad):
    learner = build(RunningMean, batch_size=2, window=3, scope=scope)

    def update(first, second):
        rolls = [trajectory(k, 1, [3], [-1.8], [r]) for k, r in enumerate((first, second))]
        return learner.update(rolls).metrics

    update(1.0, 0.0)
    assert update(bad, 4.0)["skipped_steps"] == 1.0
    after = update(2.0, 2.0)
    assert after["baseline_mean"] == pytest.approx((1.0 + 0.0 + 4.0) / 3)
    assert after["skipped_steps"] == 0.0


def test_oracle_counts_each_step_that_is_skipped():
    """Of three steps the second has a gradient that is not finite."""
    learner = build(Oracle, batch_size=2, steps=3)
    scales = iter((1.0, math.nan, 1.0))
    parameter = learner.policy.model.get_input_embeddings().weight
    parameter.register_hook(lambda gradient: gradient * next(scales))
    update = learner.update([trajectory(k, 1, [3], [-1.8], [0.0]) for k in range(2)])
    assert update.metrics["skipped_steps"] == 1.0
    assert update.metrics["policy_moved"] == 1.0
    assert update.weights is not None


def test_reinforce_options_change_what_they_say():
    rolls = [trajectory(k, 1, [3], [-1.8], [float(k == 0)]) for k in range(4)]
    plain = build(Reinforce, batch_size=4).update(rolls).metrics
    loo = build(Reinforce, batch_size=4, leave_one_out=True).update(rolls).metrics
    white = build(Reinforce, batch_size=4, whiten=True).update(rolls).metrics
    assert plain["advantage_std"] == pytest.approx(0.5)
    assert loo["advantage_std"] == pytest.approx(0.5 * 4 / 3)
    assert white["advantage_std"] == pytest.approx(1.0)
    # One token far out, its sequence's mean inside the band: only the token region rejects it.
    base = math.log(1 / VOCABULARY)
    mixed = [
        trajectory(k, 1, [3, 3], [base - 2.0, base + 2.0], [0.0, float(k == 0)]) for k in range(4)
    ]
    token = build(Reinforce, batch_size=4).update(mixed).metrics
    sequence = build(Reinforce, batch_size=4, trust_region="sequence").update(mixed).metrics
    assert token["masked_fraction"] == 1.0
    assert sequence["masked_fraction"] == 0.0


def test_oracle_imitates_the_newest_concept_not_the_rollouts():
    old, new = Concept(id="old", params={"shift": 1}), Concept(id="new", params={"shift": 2})
    asked = []

    def solve(concept, task):
        asked.append((concept.id, task.index))
        return demonstrate(concept, task)

    learner = build(Oracle, demonstrate=solve, batch_size=2)
    rolls = [trajectory(k, 1, [0], [-1.8], [0.0]) for k in range(2)]
    began_late = replace(rolls[1], concept_start=new, concept_scored=new)
    began_early = replace(rolls[0], concept_start=old, concept_scored=old)
    learner.update([began_late, began_early])  # in whatever order
    assert asked == [("new", 1), ("new", 0)]
    rescored = replace(rolls[1], concept_start=old, concept_scored=new)
    assert newest_concept([began_early, rescored]).id == "new"


def test_truncated_rollouts_are_trained_on():
    learner = build(Reinforce, batch_size=2)
    rolls = [
        trajectory(0, 1, [3], [-1.8], [1.0], outcome=Truncated("context")),
        trajectory(1, 1, [2], [-1.8], [0.0]),
    ]
    assert learner.update(rolls).weights is not None
