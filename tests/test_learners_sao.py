"""SAO's own promises: who moves when, from which values, and what each option does."""

from __future__ import annotations

import math

import pytest
import torch
from pydantic import ValidationError
from transformers import LlamaConfig, LlamaForCausalLM

from sao_gym.errors import InputError
from sao_gym.learners.ops.batch import collate
from sao_gym.learners.sao import Sao
from sao_gym.protocols import LearnerSetup
from sao_gym.types import (
    Concept,
    Task,
    Terminated,
    Timing,
    Trajectory,
    Truncated,
    Turn,
    VersionSpan,
)

VOCABULARY = 8
CONCEPT = Concept(id="A", params={})


def policy():
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=32,
            initializer_range=0.3,
        )
    )


def sao(**params):
    values = {"critic_warmup": 0, "head_init": "zero", "batch_size": 8} | params
    setup = LearnerSetup(model=policy(), seed=0, pad_id=0, demonstrate=lambda *_: None)
    return Sao(setup, Sao.Config(**values))


def rollouts(rewards=(1.0, 0.0, 0.0, 1.0), turns=2, outcome=None):
    """Rollout k sees prompt k; one action token a turn; its reward comes with the last turn."""
    result = []
    for index, reward in enumerate(rewards):
        steps = [
            Turn(
                observation_ids=(index, 7) if t == 0 else (6,),
                action_ids=((index + t) % VOCABULARY,),
                logprobs=(-2.0,),
                versions=(VersionSpan(0, 1),),
                reward=reward if t == turns - 1 else 0.0,
            )
            for t in range(turns)
        ]
        result.append(
            Trajectory(
                rollout=index,
                task=Task(index=index, seed=index),
                concept_start=CONCEPT,
                concept_scored=CONCEPT,
                turns=tuple(steps),
                outcome=outcome or Terminated(),
                timing=Timing(started=0.0, finished=1.0),
            )
        )
    return result


def moved(before, model):
    return any(not torch.equal(before[name], t) for name, t in model.state_dict().items())


def snapshot(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def test_critic_warms_up_alone_and_first():
    learner = sao(critic_warmup=3)
    for _ in range(3):
        actor, critic = snapshot(learner.policy.model), snapshot(learner.critic.model)
        update = learner.update(rollouts())
        assert update.weights is None
        assert not moved(actor, learner.policy.model)
        assert moved(critic, learner.critic.model)
        assert math.isnan(update.metrics["policy_loss"])
        assert not math.isnan(update.metrics["critic_loss"])
    assert learner.update(rollouts()).weights is not None


def test_policy_moves_on_every_nth_update_only():
    learner = sao(critic_warmup=1, policy_every=3)
    history = [learner.update(rollouts()).weights is not None for _ in range(8)]
    assert history == [False, False, False, True, False, False, True, False]


@pytest.mark.parametrize("fits", [1, 2, 5])
def test_critic_is_fitted_k_times_before_the_policy(fits, monkeypatch):
    learner, calls = sao(critic_updates=fits), []
    fit, improve = learner.critic.fit, learner.policy.improve
    monkeypatch.setattr(learner.critic, "fit", lambda *a: (calls.append("critic"), fit(*a))[1])
    monkeypatch.setattr(
        learner.policy, "improve", lambda *a: (calls.append("policy"), improve(*a))[1]
    )
    learner.update(rollouts())
    assert calls == ["critic"] * fits + ["policy"]
    assert learner.relative_cost == pytest.approx(fits + 1)


def test_memorising_critic_leaves_no_advantage_after_but_all_of_it_before():
    """V0 = 0 (zero head): before the fits A = R - V0 = R; after 300 fits V = R, A = 0."""
    settings = {"critic_updates": 300, "critic_learning_rate": 1e-2, "policy_lambda": 1.0}
    pre = sao(**settings).update(rollouts()).metrics
    post = sao(advantages_from="post_fit", **settings).update(rollouts()).metrics
    assert pre["advantage_mean"] == pytest.approx(0.5)
    assert pre["advantage_std"] == pytest.approx(math.sqrt(8 / 7 * 0.25))
    assert post["advantage_mean"] == pytest.approx(0.0, abs=0.05)
    assert post["advantage_std"] < 0.1


def test_advantages_by_hand_with_a_constant_critic():
    """V = 0.25 everywhere, lambda adaptive over 2 tokens (2/3): deltas 0 and R - 0.25."""
    learner = sao(critic_learning_rate=0.0)
    with torch.no_grad():
        learner.critic.model.head.bias.fill_(0.25)
    metrics = learner.update(rollouts()).metrics
    last = [0.75, -0.25, -0.25, 0.75]
    tokens = torch.tensor([x for a in last for x in (a * 2 / 3, a)])
    assert metrics["advantage_mean"] == pytest.approx(float(tokens.mean()))
    assert metrics["advantage_std"] == pytest.approx(float(tokens.std()))
    assert metrics["lambda_mean"] == pytest.approx(2 / 3)
    assert metrics["value_mean"] == pytest.approx(0.25)
    assert metrics["critic_loss"] == pytest.approx((0.75**2 + 0.25**2) / 2)
    assert metrics["explained_variance"] == pytest.approx(0.0, abs=1e-6)
    assert metrics["reward_mean"] == 0.5


def test_constant_returns_have_no_explained_variance():
    """Also where advantage + value rounds each return a little differently."""
    learner = sao(head_init="normal")
    for _ in range(5):
        metrics = learner.update(rollouts((1.0,) * 4, turns=5)).metrics
        assert math.isnan(metrics["explained_variance"])


def test_fixed_lambda_and_whitening():
    assert sao(policy_lambda=0.7).update(rollouts()).metrics["lambda_mean"] == pytest.approx(0.7)
    white = sao(whiten=True).update(rollouts()).metrics
    assert white["advantage_mean"] == pytest.approx(0.0, abs=1e-6)
    assert white["advantage_std"] == pytest.approx(1.0)


def test_bootstrap_is_for_truncated_rollouts_only():
    """V = 0.25 everywhere. Cut off with bootstrap: the last delta is R + 0.25 - 0.25 = R."""
    for outcome, bootstrap, expected in (
        (Truncated("context"), True, 0.5),
        (Truncated("context"), False, 0.25),
        (Terminated(), True, 0.25),
    ):
        learner = sao(critic_learning_rate=0.0, policy_lambda=1.0, bootstrap_truncated=bootstrap)
        with torch.no_grad():
            learner.critic.model.head.bias.fill_(0.25)
        metrics = learner.update(rollouts(outcome=outcome)).metrics
        assert metrics["advantage_mean"] == pytest.approx(expected)


def test_lagged_critic_is_renewed_every_n_updates():
    """Between renewals advantages come from the old copy, though the critic moves on."""
    learner = sao(critic_lag=2, policy_lambda=1.0, learning_rate=0.0)
    expected = []
    batch = collate(rollouts(), 0)
    for step in range(4):
        if step % 2 == 0:
            old = learner.critic.predict(batch).tokens
        expected.append(float((0.5 - old[batch.mask]).mean()))
        mean = learner.update(rollouts()).metrics["advantage_mean"]
        assert mean == pytest.approx(expected[-1], abs=1e-6)
    assert expected[0] == pytest.approx(expected[1])
    assert abs(expected[2] - expected[1]) > 1e-3


def test_head_starts_from_the_rollouts():
    cold = sao(critic_warmup=1).update(rollouts()).metrics
    warm = sao(critic_warmup=1, head_init="rollouts", head_ridge=0.01).update(rollouts()).metrics
    assert cold["value_mean"] == 0.0
    assert warm["value_mean"] == pytest.approx(0.5, abs=0.05)
    assert warm["explained_variance"] > 0.5
    assert warm["critic_loss"] < 0.5 * cold["critic_loss"]
    random = sao(head_init="normal").update(rollouts()).metrics
    assert random["value_mean"] not in (0.0, warm["value_mean"])


def test_head_starts_from_the_first_batch_that_is_finite():
    settings = {"critic_warmup": 1, "head_init": "rollouts", "critic_lr_warmup": 5}
    late, prompt = sao(**settings), sao(**settings)
    spoiled = late.update(rollouts((math.inf, 0.0, 0.0, 1.0)))
    assert spoiled.metrics["skipped_steps"] == 2.0
    torch.testing.assert_close(late.state_dict(), prompt.state_dict(), rtol=0, atol=0)
    left, right = late.update(rollouts()), prompt.update(rollouts())
    assert left.metrics["value_mean"] == right.metrics["value_mean"] == pytest.approx(0.5, abs=0.2)
    assert left.weights is None  # the policy waits for the critic's warm-up all the same
    torch.testing.assert_close(late.state_dict(), prompt.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("settings", [{"policy_every": 2}, {"critic_lag": 2}])
def test_updates_without_a_fit_do_not_shift_what_is_counted(settings):
    """Spoiled batches in between: the others make of learner and copy what they would alone."""
    met, spared = sao(critic_warmup=1, **settings), sao(critic_warmup=1, **settings)
    for _ in range(5):
        met.update(rollouts((math.nan, 0.0, 0.0, 1.0)))
        left, right = met.update(rollouts()), spared.update(rollouts())
        assert repr(left.metrics) == repr(right.metrics)
        assert (left.weights is None) == (right.weights is None)
    torch.testing.assert_close(met.state_dict(), spared.state_dict(), rtol=0, atol=0)


def test_skipped_steps_of_critic_and_policy_are_counted_together():
    """The first of two fits and the policy's step meet a NaN; the second fit moves the critic."""
    learner = sao()
    scales = iter((math.nan, 1.0))
    critic, actor = (next(part.model.parameters()) for part in (learner.critic, learner.policy))
    critic.register_hook(lambda gradient: gradient * next(scales))
    actor.register_hook(lambda gradient: gradient * math.nan)
    before = snapshot(learner.critic.model), snapshot(learner.policy.model)
    update = learner.update(rollouts())
    assert update.metrics["skipped_steps"] == 2.0
    assert update.weights is None
    assert moved(before[0], learner.critic.model)
    assert not moved(before[1], learner.policy.model)


def test_critic_lambda_below_one_bootstraps_from_its_own_values():
    """V = 0.25 everywhere, lambda_critic 0: the first token's target is V of the next, 0.25."""
    learner = sao(critic_learning_rate=0.0, critic_lambda=0.0)
    with torch.no_grad():
        learner.critic.model.head.bias.fill_(0.25)
    loss = learner.update(rollouts()).metrics["critic_loss"]
    assert loss == pytest.approx((0.0 + (0.75**2 + 0.25**2) / 2) / 2)


def test_freeze_patterns_reach_the_critic():
    assert sao(frozen=()).critic.frozen == []
    assert all("self_attn" in name for name in sao().critic.frozen)
    with pytest.raises(InputError, match="matches no critic parameter"):
        sao(frozen=("c_attn",))


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"head_init": "rollouts"}, "critic_warmup >= 1"),
        ({"policy_lambda": 0.9, "alpha": 2.0}, "alpha has no effect"),
        ({"head_ridge": 3.0}, "head_ridge has no effect"),
        ({"critic_lag": 2, "advantages_from": "post_fit"}, "exclude each other"),
        ({"policy_lambda": 1.5}, "less than or equal to 1"),
        ({"eps_low": 1.2}, "less than or equal to 1"),
        ({"alpha": 0.9}, "greater than or equal to 1"),
    ],
)
def test_settings_that_would_do_nothing_or_harm_are_errors(params, message):
    with pytest.raises(ValidationError, match=message):
        sao(**params)


def test_resolved_settings_can_be_read_back():
    config = Sao.Config(policy_lambda=0.9)
    assert Sao.Config(**config.model_dump()) == config
