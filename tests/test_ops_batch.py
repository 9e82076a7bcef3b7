"""Collation: ids as sampled, and every action token scored by the prefix before it."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from sao_gym.learners.ops.batch import collate, micro_batches
from sao_gym.learners.ops.critic import ValueModel
from sao_gym.learners.ops.scoring import Scorer
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

VOCABULARY = 12
CONCEPT = Concept(id="A", params={})


def turn(observation, action, reward=0.0, versions=None, logprobs=None, restart=False):
    return Turn(
        restart=restart,
        observation_ids=tuple(observation),
        action_ids=tuple(action),
        logprobs=tuple(logprobs or [-1.0] * len(action)),
        versions=versions or (VersionSpan(0, len(action)),),
        reward=reward,
    )


def trajectory(*turns, rollout=0, task=0, outcome=None):
    return Trajectory(
        rollout=rollout,
        task=Task(index=task, seed=task),
        concept_start=CONCEPT,
        concept_scored=CONCEPT,
        turns=tuple(turns),
        outcome=outcome or Terminated(),
        timing=Timing(started=0.0, finished=1.0),
    )


def small(kind):
    torch.manual_seed(3)
    size = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    size["intermediate_size"] = 32
    if kind == "llama":
        return LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, **size))
    if kind == "qwen3":
        return Qwen3ForCausalLM(
            Qwen3Config(vocab_size=VOCABULARY, head_dim=8, num_key_value_heads=1, **size)
        )
    if kind == "gemma2":  # soft-capped logits: the output layer alone would be wrong
        config = Gemma2Config(
            vocab_size=VOCABULARY, head_dim=8, num_key_value_heads=1, pad_token_id=0, **size
        )
        config.final_logit_softcapping = 0.05
        return Gemma2ForCausalLM(config)
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY, n_embd=16, n_layer=2, n_head=2, n_positions=64, resid_pdrop=0.5
        )
    )


MIXED = [
    trajectory(turn([1, 2, 3], [4, 5]), turn([6, 7], [8], 1.0), rollout=0),
    trajectory(turn([2], [3], 1.0), rollout=1, task=7, outcome=Truncated("context")),
    trajectory(turn([9, 1], [2]), turn([], [3, 4]), turn([5], [6, 7, 8], 0.5), rollout=2),
]
SEGMENTS = [
    trajectory(
        turn([1, 2, 3], [4, 5]),
        turn([1, 10, 5, 7], [8, 2], 1.0, restart=True),
        turn([6], [3]),
        turn([9], [4, 4], restart=True),
    ),
    trajectory(turn([2], [3], 1.0), outcome=Truncated("context")),
    trajectory(turn([5, 5], [6, 7]), turn([8, 5], [6, 7], restart=True)),
]


def test_layout_by_hand():
    batch = collate(
        [
            trajectory(
                turn([1, 2, 3], [4, 5], 0.25, (VersionSpan(6, 1), VersionSpan(7, 1)), [-0.1, -0.2]),
                turn([6, 7], [8], 1.0, (VersionSpan(8, 1),), [-0.3]),
            ),
            trajectory(turn([2], [3], 2.0), task=7, outcome=Truncated("context")),
        ],
        pad_id=11,
    )
    assert batch.ids.tolist() == [[1, 2, 3, 4, 5, 6, 7, 8], [2, 3] + [11] * 6]
    assert batch.attention.sum(dim=1).tolist() == [8, 2]
    assert batch.sequence.tolist() == [[0, 0, 0], [1, 0, 0]]
    assert batch.first.tolist() == [0, 1]
    assert batch.columns.tolist() == [[2, 3, 6], [0, 0, 0]]
    assert batch.actions.tolist() == [[4, 5, 8], [3, 0, 0]]
    assert batch.mask.tolist() == [[True, True, True], [True, False, False]]
    assert batch.rewards.tolist() == [[0.0, 0.25, 1.0], [2.0, 0.0, 0.0]]
    assert batch.versions.tolist() == [[6, 7, 8], [0, 0, 0]]
    torch.testing.assert_close(batch.logprobs[0], torch.tensor([-0.1, -0.2, -0.3]))
    assert batch.last.tolist() == [[0, 7], [1, 1]]
    assert batch.truncated.tolist() == [False, True]
    assert batch.totals.tolist() == [1.25, 2.0]
    assert batch.groups.tolist() == [0, 7]
    assert batch.tokens == 4
    assert batch.lengths.tolist() == [3, 1]


def test_segments_by_hand():
    batch = collate(SEGMENTS, pad_id=0)
    assert batch.ids.tolist() == [
        [1, 2, 3, 4, 5, 0, 0, 0],
        [1, 10, 5, 7, 8, 2, 6, 3],
        [9, 4, 4, 0, 0, 0, 0, 0],
        [2, 3, 0, 0, 0, 0, 0, 0],
        [5, 5, 6, 7, 0, 0, 0, 0],
        [8, 5, 6, 7, 0, 0, 0, 0],
    ]
    assert batch.attention.sum(dim=1).tolist() == [5, 8, 3, 2, 4, 4]
    assert batch.first.tolist() == [0, 3, 4]
    assert batch.sequence[0].tolist() == [0, 0, 1, 1, 1, 2, 2]
    assert batch.columns[0].tolist() == [2, 3, 3, 4, 6, 0, 1]
    assert batch.actions[0].tolist() == [4, 5, 8, 2, 3, 4, 4]
    assert batch.last.tolist() == [[2, 2], [3, 1], [5, 3]]
    part = batch.rows(1, 3)
    assert part.ids.tolist() == [[2, 3, 0, 0], [5, 5, 6, 7], [8, 5, 6, 7]]
    assert part.first.tolist() == [0, 1]
    assert part.sequence.tolist() == [[0, 0, 0, 0, 0, 0, 0], [1, 1, 2, 2, 0, 0, 0]]
    assert part.last.tolist() == [[0, 1], [2, 3]]
    with pytest.raises(ValueError, match="nothing precedes"):
        collate([trajectory(turn([1], [2]), turn([], [3], restart=True))], pad_id=0)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["llama", "qwen3", "gpt2", "gemma2"])
@pytest.mark.parametrize("mixed", [MIXED, SEGMENTS], ids=["one segment", "segments"])
def test_logprob_and_value_are_those_of_the_prefix_before_the_token(kind, mixed):
    """Reference: one prefix at a time, unpadded, through the model's own forward."""
    model = small(kind)
    critic = ValueModel(model, head_std=0.5, seed=1)
    batch = collate(mixed, pad_id=0)
    scores, values = Scorer(model)(batch), critic(batch)
    entropy = 0.0
    model.eval()
    critic.eval()
    for row, one in enumerate(mixed):
        history, slot = [], 0
        for step in one.turns:
            history = [] if step.restart else history
            history.extend(step.observation_ids)
            for token in step.action_ids:
                prefix = torch.tensor([history])
                expected = torch.log_softmax(model(prefix).logits[0, -1].float(), dim=-1)
                hidden = critic.backbone(prefix).last_hidden_state[0, -1]
                assert float(scores.logprobs[row, slot]) == pytest.approx(
                    float(expected[token]), abs=1e-5
                )
                assert float(values.tokens[row, slot]) == pytest.approx(
                    float(critic.head(hidden)), abs=1e-4
                )
                entropy -= float((expected.exp() * expected).sum())
                history.append(token)
                slot += 1
        hidden = critic.backbone(torch.tensor([history])).last_hidden_state[0, -1]
        assert float(values.cut[row]) == pytest.approx(float(critic.head(hidden)), abs=1e-4)
    assert float(scores.entropy()) == pytest.approx(entropy, abs=1e-3)
    assert scores.distribution.shape == (int(batch.mask.sum()), VOCABULARY)
    assert (scores.logprobs[~batch.mask] == 0).all()


def test_a_turn_without_action_tokens_keeps_its_reward():
    batch = collate(
        [trajectory(turn([1], [], 0.5), turn([2], [3, 4], 1.0), turn([5], [], 0.25))], pad_id=0
    )
    assert batch.rewards.tolist() == [[0.0, 1.75]]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ([], "at least one"),
        ([trajectory(turn([1, 2], []))], "no action tokens"),
        ([trajectory(turn([], [1]))], "nothing precedes"),
    ],
)
def test_what_cannot_be_trained_on_is_an_error(bad, message):
    with pytest.raises(ValueError, match=message):
        collate(bad, pad_id=0)


def test_a_missing_logprob_is_an_error_not_a_zero():
    with pytest.raises(ValueError, match="2 action tokens but 1 log-probs"):
        Turn(
            observation_ids=(1,),
            action_ids=(2, 3),
            logprobs=(-0.5,),
            versions=(VersionSpan(0, 2),),
            reward=0.0,
        )


tokens = st.lists(st.integers(0, VOCABULARY - 1), max_size=4)
turns = st.lists(
    st.builds(turn, tokens, tokens, st.sampled_from([0.0, 0.5, 1.0]))
    | st.builds(partial(turn, restart=True), tokens.map(lambda ids: [1, *ids]), tokens),
    min_size=1,
    max_size=4,
)
rows = st.lists(turns.map(lambda ts: trajectory(turn([1], [2]), *ts)), min_size=1, max_size=5)


@settings(max_examples=60, deadline=None)
@given(rows, st.integers(1, 6))
def test_every_action_token_follows_its_column(trajectories, size):
    batch = collate(trajectories, pad_id=0)
    assert (_following(batch) == batch.actions)[batch.mask].all()
    torch.testing.assert_close(batch.rewards.sum(dim=1).double(), batch.totals)
    assert batch.lengths.tolist() == [t.action_tokens for t in trajectories]
    assert int(batch.attention.sum()) == sum(
        len(turn.observation_ids) + len(turn.action_ids) for t in trajectories for turn in t.turns
    )
    parts = list(micro_batches(batch, size))
    assert max(len(part.first) for part in parts) <= size
    assert torch.equal(torch.cat([part.actions for part in parts]), batch.actions)
    at = 0
    for part in parts:
        assert (_following(part) == part.actions)[part.mask].all()
        whole = batch.ids[at : at + len(part.ids)]
        assert torch.equal(part.ids, whole[:, : part.ids.shape[1]])
        assert part.ids.shape[1] == int(part.attention.sum(dim=1).max())
        at += len(part.ids)
    assert at == len(batch.ids)


def _following(batch):
    """(N, A) tokens after the places where action tokens are scored."""
    width = batch.ids.shape[1] - 1
    return batch.ids[batch.sequence, (batch.columns + 1).clamp(max=width)]
