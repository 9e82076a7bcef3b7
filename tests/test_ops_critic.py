"""The value model: what is frozen, how its head starts, and that fits see only action tokens."""

from __future__ import annotations

import math
import random

import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)

from sao_gym.errors import InputError
from sao_gym.learners.ops.batch import collate
from sao_gym.learners.ops.critic import ATTENTION, Critic, ValueModel, freeze, ridge
from sao_gym.learners.ops.optim import adamw, step
from sao_gym.learners.ops.returns import rewards_to_go
from sao_gym.types import Concept, Task, Terminated, Timing, Trajectory, Turn, VersionSpan

VOCABULARY = 12
CONCEPT = Concept(id="A", params={})
SIZE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "initializer_range": 0.3,
}


def llama():
    torch.manual_seed(5)
    return LlamaForCausalLM(LlamaConfig(**SIZE))


def gpt2():
    return GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_embd=16, n_layer=2, n_head=2))


def qwen3():
    return Qwen3ForCausalLM(Qwen3Config(**SIZE, head_dim=8, num_key_value_heads=1))


def qwen3_next():
    config = Qwen3NextConfig(
        **SIZE,
        head_dim=8,
        num_key_value_heads=1,
        linear_num_value_heads=2,
        linear_num_key_heads=2,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        num_experts=2,
        num_experts_per_tok=1,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
        layer_types=["linear_attention", "full_attention"],
    )
    return Qwen3NextForCausalLM(config)


def rollouts(count, reward=None, seed=0):
    """Two turns each; the reward is 1 where the first prompt token is even, unless given."""
    draws = random.Random(seed)
    result = []
    for index in range(count):
        prompt = (draws.randrange(VOCABULARY), draws.randrange(VOCABULARY))
        score = float(prompt[0] % 2 == 0) if reward is None else reward
        turns = (
            turn(prompt, [draws.randrange(VOCABULARY)]),
            turn((1, 2), [draws.randrange(VOCABULARY) for _ in range(1 + index % 3)], score),
        )
        result.append(
            Trajectory(
                rollout=index,
                task=Task(index=index, seed=index),
                concept_start=CONCEPT,
                concept_scored=CONCEPT,
                turns=turns,
                outcome=Terminated(),
                timing=Timing(started=0.0, finished=1.0),
            )
        )
    return result


def turn(observation, action, reward=0.0):
    return Turn(
        observation_ids=tuple(observation),
        action_ids=tuple(action),
        logprobs=(-1.0,) * len(action),
        versions=(VersionSpan(0, len(action)),),
        reward=reward,
    )


def critic(model, frozen=(ATTENTION,), **settings):
    values = {"learning_rate": 1e-2, "warmup": 0, "max_grad_norm": 10.0, "micro_batch_size": None}
    return Critic(model, frozen=frozen, **(values | settings))


def monte_carlo(part, _values):
    return rewards_to_go(part.rewards, part.mask)


@pytest.mark.parametrize(
    ("make", "inside", "outside"),
    [
        (llama, ["self_attn.q_proj", "self_attn.o_proj"], ["mlp.up_proj", "input_layernorm"]),
        (gpt2, ["attn.c_attn", "attn.c_proj"], ["mlp.c_fc", "ln_1", "wte"]),
        (qwen3, ["self_attn.q_norm", "self_attn.k_norm"], ["mlp.gate_proj", "embed_tokens"]),
        (qwen3_next, ["linear_attn.A_log", "linear_attn.conv1d", "self_attn.q_norm"], ["experts"]),
    ],
)
def test_attention_by_name(make, inside, outside):
    model = ValueModel(make())
    frozen = freeze(model, [ATTENTION])
    for part in inside:
        assert any(part in name for name in frozen), part
    for part in outside:
        assert not any(part in name for name in frozen), part
    for name, parameter in model.backbone.named_parameters():
        assert parameter.requires_grad == (name not in frozen)
    assert model.head.weight.requires_grad


def test_norms_of_queries_and_keys_count_wherever_they_sit():
    norms = torch.nn.ModuleDict({name: torch.nn.LayerNorm(4) for name in ("q_norm", "k_norm")})
    model = ValueModel(llama())
    model.backbone = torch.nn.ModuleDict({"block": norms, "mlp": torch.nn.Linear(4, 4)})
    assert {name.split(".")[1] for name in freeze(model, [ATTENTION])} == {"q_norm", "k_norm"}


def test_patterns_that_do_nothing_or_everything_are_errors():
    with pytest.raises(InputError, match="matches no critic parameter"):
        freeze(ValueModel(llama()), [ATTENTION, "c_attn"])
    with pytest.raises(InputError, match="no backbone parameter to train"):
        freeze(ValueModel(llama()), ["."])
    assert freeze(ValueModel(llama()), []) == []


@pytest.mark.parametrize("make", [llama, qwen3, gpt2])
def test_frozen_tensors_stay_to_the_bit_and_the_rest_moves(make):
    policy = make()
    original = {name: p.detach().clone() for name, p in policy.state_dict().items()}
    fitted = critic(ValueModel(policy))
    before = {name: p.detach().clone() for name, p in fitted.model.named_parameters()}
    batch = collate(rollouts(8), 0)
    for _ in range(3):
        fitted.fit(batch, monte_carlo)
    frozen = {f"backbone.{name}" for name in fitted.frozen}
    in_optimizer = {id(p) for g in fitted._optimizer.param_groups for p in g["params"]}
    for name, parameter in fitted.model.named_parameters():
        if name in frozen:
            assert torch.equal(parameter, before[name])
            assert id(parameter) not in in_optimizer
    moved = {n for n, p in fitted.model.named_parameters() if not torch.equal(p, before[n])}
    assert {"head.weight", "head.bias"} <= moved
    assert any("mlp" in name for name in moved)
    assert all(torch.equal(p, original[name]) for name, p in policy.state_dict().items())


def test_ridge_minimises_its_objective():
    """At the minimum of mean (Xw + b - y)^2 + penalty * s * |w|^2 the gradient is zero."""
    draws = torch.Generator().manual_seed(0)
    x = torch.randn((20, 5), generator=draws, dtype=torch.float64) * 7 + 3
    y = torch.randn(20, generator=draws, dtype=torch.float64)
    solution = ridge(x, y, 0.3)
    weight = solution.weight.clone().requires_grad_(True)
    bias = solution.bias.clone().requires_grad_(True)
    scale = x.var(dim=0, unbiased=False).mean()
    (((x @ weight + bias - y) ** 2).mean() + 0.3 * scale * weight @ weight).backward()
    torch.testing.assert_close(weight.grad, torch.zeros_like(weight), atol=1e-8, rtol=0)
    torch.testing.assert_close(bias.grad, torch.zeros_like(bias), atol=1e-8, rtol=0)


def test_ridge_of_a_line_and_of_constants():
    x = torch.arange(5.0)[:, None]
    line = ridge(x, 2 * x[:, 0] + 1, 1e-9)
    assert float(line.weight[0]) == pytest.approx(2.0, abs=1e-6)
    assert float(line.bias) == pytest.approx(1.0, abs=1e-6)
    flat = ridge(torch.ones(4, 3), torch.full((4,), 0.25), 1.0)
    assert flat.weight.tolist() == [0.0, 0.0, 0.0]
    assert float(flat.bias) == 0.25


def test_initialised_head_predicts_rollouts_it_has_not_seen():
    fitted = critic(ValueModel(llama()))
    batch, unseen = collate(rollouts(128), 0), collate(rollouts(128, seed=1), 0)

    def error(values):
        return float(
            ((values - rewards_to_go(unseen.rewards, unseen.mask))[unseen.mask] ** 2).mean()
        )

    cold = error(fitted.predict(unseen).tokens)
    fitted.initialise_head(batch, rewards_to_go(batch.rewards, batch.mask), penalty=0.1)
    warm = error(fitted.predict(unseen).tokens)
    constant = error(torch.full_like(unseen.rewards, float(batch.totals.mean())))
    assert warm < 0.9 * constant < cold
    flat = collate(rollouts(16, reward=0.5), 0)
    fitted.initialise_head(flat, rewards_to_go(flat.rewards, flat.mask), penalty=0.1)
    torch.testing.assert_close(
        fitted.predict(flat).tokens[flat.mask], torch.full((flat.tokens,), 0.5)
    )


def test_fit_returns_what_stood_before_the_step():
    fitted = critic(ValueModel(llama(), head_std=0.1, seed=2))
    batch = collate(rollouts(8), 0)
    before = fitted.predict(batch)
    fit = fitted.fit(batch, monte_carlo)
    torch.testing.assert_close(fit.values.tokens, before.tokens)
    target = rewards_to_go(batch.rewards, batch.mask)
    expected = float(((before.tokens - target)[batch.mask] ** 2).mean())
    assert fit.loss == pytest.approx(expected, rel=1e-5)
    assert fitted.fit(batch, monte_carlo).loss < fit.loss


@pytest.mark.parametrize("size", [1, 3, 5, 12])
def test_micro_batches_give_the_same_loss_and_gradient_norm(size):
    batch = collate(rollouts(12), 0)
    whole = critic(ValueModel(llama(), head_std=0.1)).fit(batch, monte_carlo)
    cut = critic(ValueModel(llama(), head_std=0.1), micro_batch_size=size).fit(batch, monte_carlo)
    assert cut.loss == pytest.approx(whole.loss, rel=1e-5)
    assert cut.norm == pytest.approx(whole.norm, rel=1e-4)
    torch.testing.assert_close(cut.values.tokens, whole.values.tokens)


def test_learning_rate_rises_over_the_warmup():
    fitted = critic(ValueModel(llama()), warmup=4)
    batch = collate(rollouts(4), 0)
    rates = []
    for _ in range(6):
        fitted.fit(batch, monte_carlo)
        rates.append(fitted._optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx([0.0025, 0.005, 0.0075, 0.01, 0.01, 0.01])


def test_head_draws_are_keyed_by_the_seed():
    one, two = (ValueModel(llama(), head_std=0.1, seed=s).head.weight for s in (0, 1))
    again = ValueModel(llama(), head_std=0.1, seed=0).head.weight
    assert torch.equal(one, again)
    assert not torch.equal(one, two)
    assert (ValueModel(llama()).head.weight == 0).all()


def test_a_zero_gradient_is_no_step():
    parameter = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
    optimizer = adamw([parameter], 0.1)
    parameter.grad = torch.tensor([3.0, 4.0])
    assert step(optimizer, 1.0) == (True, pytest.approx(5.0), False)
    kept = parameter.detach().clone()
    parameter.grad = torch.zeros(2)
    assert step(optimizer, 1.0) == (False, 0.0, False)  # momentum must not move it
    assert torch.equal(parameter, kept)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("warm", [False, True])
def test_a_step_whose_gradient_is_not_finite_leaves_no_trace(bad, warm):
    """Beside an optimizer that never met it, on its first step and on a later one."""
    one, other = (torch.nn.Parameter(torch.tensor([1.0, 2.0])) for _ in range(2))
    met, spared = adamw([one], 0.1), adamw([other], 0.1)
    good = [torch.tensor([3.0, 4.0]), torch.tensor([-1.0, 2.0])]
    if warm:
        one.grad, other.grad = good[0].clone(), good[0].clone()
        step(met, 1.0), step(spared, 1.0)
    one.grad = torch.tensor([bad, 1.0])
    skipped = step(met, 1.0)
    assert (skipped.moved, skipped.skipped) == (False, True)
    assert not math.isfinite(skipped.norm)
    assert one.grad is None
    torch.testing.assert_close(met.state_dict(), spared.state_dict(), rtol=0, atol=0)
    assert torch.equal(one, other)
    one.grad, other.grad = good[1].clone(), good[1].clone()
    assert step(met, 1.0) == step(spared, 1.0) == (True, pytest.approx(5**0.5), False)
    assert torch.equal(one, other)


def test_a_fit_that_is_skipped_does_not_count_for_the_warmup():
    fitted = critic(ValueModel(llama(), head_std=0.1), warmup=4)
    batch = collate(rollouts(4), 0)

    def infinite(part, values):
        return torch.full_like(part.rewards, math.inf)

    rates, skipped = [], []
    for target in (infinite, monte_carlo, infinite, infinite, monte_carlo):
        before = fitted.state_dict()
        fit = fitted.fit(batch, target)
        skipped.append(fit.skipped)
        if fit.skipped:
            torch.testing.assert_close(fitted.state_dict(), before, rtol=0, atol=0)
        else:
            rates.append(fitted._optimizer.param_groups[0]["lr"])
    assert skipped == [True, False, True, True, False]
    assert rates == pytest.approx([0.0025, 0.005])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_head_that_is_not_finite_is_not_written(bad):
    fitted = critic(ValueModel(llama(), head_std=0.1))
    before = fitted.state_dict()
    batch = collate(rollouts(4), 0)
    returns = rewards_to_go(batch.rewards, batch.mask)
    fitted.initialise_head(batch, returns.index_fill(0, torch.tensor([1]), bad), penalty=0.1)
    torch.testing.assert_close(fitted.state_dict(), before, rtol=0, atol=0)


def test_gradient_is_clipped_to_the_norm():
    parameter = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    parameter.grad = torch.tensor([3.0, 4.0])
    step(optimizer, 1.0)
    torch.testing.assert_close(parameter.detach(), torch.tensor([-0.6, -0.8]))
