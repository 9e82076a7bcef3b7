"""The start-up check passes for the policy that sampled and for nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from sao_gym.errors import RunError
from sao_gym.learners.ops.batch import collate
from sao_gym.learners.ops.ratios import double_sided, log_ratio
from sao_gym.learners.ops.scoring import Scorer
from sao_gym.learners.ops.selftest import check_on_policy
from sao_gym.types import Concept, Task, Terminated, Timing, Trajectory, Turn, VersionSpan

VOCABULARY = 12


def gpt2():
    """With dropout configured, and left in training mode, as a fresh model is."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=16,
        n_layer=2,
        n_head=2,
        resid_pdrop=0.3,
        embd_pdrop=0.3,
        attn_pdrop=0.3,
        initializer_range=0.5,
    )
    return GPT2LMHeadModel(config).train()


def llama():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        initializer_range=0.5,
    )
    return LlamaForCausalLM(config).train()


@torch.no_grad()
def sampled(model, rollout, temperature=1.0):
    """Two turns, token by token on the growing prefix, the way a sampler does it."""
    draws = torch.Generator().manual_seed(rollout)
    model.eval()
    history, turns = [], []
    for observation in ((1, 2 + rollout), (3,)):
        history.extend(observation)
        ids, logprobs = [], []
        for _ in range(1 + rollout % 3):
            logits = model(torch.tensor([history])).logits[0, -1] / temperature
            distribution = torch.log_softmax(logits, dim=-1)
            token = int(torch.multinomial(distribution.exp(), 1, generator=draws))
            ids.append(token)
            logprobs.append(float(distribution[token]))
            history.append(token)
        turns.append(
            Turn(
                observation_ids=observation,
                action_ids=tuple(ids),
                logprobs=tuple(logprobs),
                versions=(VersionSpan(0, len(ids)),),
                reward=0.0,
            )
        )
    concept = Concept(id="A", params={})
    model.train()
    return Trajectory(
        rollout=rollout,
        task=Task(index=rollout, seed=rollout),
        concept_start=concept,
        concept_scored=concept,
        turns=tuple(turns),
        outcome=Terminated(),
        timing=Timing(started=0.0, finished=1.0),
    )


@pytest.mark.parametrize("make", [gpt2, llama])
def test_same_weights_pass_and_nothing_is_masked(make):
    model = make()
    trajectories = [sampled(model, rollout) for rollout in range(5)]
    check_on_policy(model, trajectories)
    scorer = Scorer(model)
    model.train()  # whoever set it: a scorer always scores without dropout
    batch = collate(trajectories, 0)
    ratio = log_ratio(scorer(batch).logprobs.detach(), batch.logprobs, batch.mask)
    assert float((ratio.value.exp() - 1).abs().max()) < 1e-4
    assert torch.equal(double_sided(ratio, eps_low=0.001, eps_high=0.001).kept, batch.mask)


def test_perturbed_weights_are_refused():
    model = llama()
    trajectories = [sampled(model, rollout) for rollout in range(3)]
    with torch.no_grad():
        model.lm_head.weight[4] += 0.01
    with pytest.raises(RunError, match="self-test"):
        check_on_policy(model, trajectories)


def test_another_temperature_is_refused():
    model = llama()
    with pytest.raises(RunError, match="temperature 1"):
        check_on_policy(model, [sampled(model, 2, temperature=1.1)])


def test_retokenised_history_is_refused():
    """The second spelling of an observation: other ids than those the policy was given."""
    model = llama()
    trajectory = sampled(model, 1)
    first, second = trajectory.turns
    respelled = replace(first, observation_ids=(1, 9, 9))
    with pytest.raises(RunError, match="self-test"):
        check_on_policy(model, [replace(trajectory, turns=(respelled, second))])


def test_a_logprob_that_is_not_finite_is_refused():
    model = llama()
    trajectory = sampled(model, 0)
    first, second = trajectory.turns
    lost = replace(second, logprobs=(float("nan"),))
    with pytest.raises(RunError, match=r"1 of 2 tokens.*1 not finite.*action token 1"):
        check_on_policy(model, [replace(trajectory, turns=(first, lost))])
