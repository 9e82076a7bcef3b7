"""The local engine: exact log-probs, sampling and weight swaps, whoever shares the batch."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from sao_gym.engines.decoder import FusedDecoder, ModuleDecoder, make_decoder
from sao_gym.engines.local import LocalEngine
from sao_gym.errors import RunError
from sao_gym.learners.ops.selftest import check_on_policy
from sao_gym.selftest import on_policy_rollouts
from sao_gym.types import Completion, Concept, Request, VersionSpan

VOCABULARY = 24
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,  # far from uniform, so that an error shows
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
GPT = {
    "vocab_size": VOCABULARY,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 128,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": None,
}


def build(config):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        model = transformers.AutoModelForCausalLM.from_config(config).eval()
        for name, parameter in model.named_parameters():
            if "norm" in name or name.endswith("bias"):
                parameter.data.add_(0.2 * torch.randn_like(parameter))
    return model


MODELS = {
    "llama": lambda: transformers.LlamaConfig(**SHAPE),
    "llama-gqa-tied": lambda: transformers.LlamaConfig(
        **SHAPE, num_key_value_heads=2, tie_word_embeddings=True, rope_theta=100.0
    ),
    "qwen2": lambda: transformers.Qwen2Config(**SHAPE, num_key_value_heads=2),
    "qwen3": lambda: transformers.Qwen3Config(**SHAPE, num_key_value_heads=2, head_dim=16),
    "mistral": lambda: transformers.MistralConfig(
        **SHAPE, sliding_window=None, num_key_value_heads=2, head_dim=8
    ),
    "gpt2": lambda: transformers.GPT2Config(**GPT),
    "gpt_neox": lambda: transformers.GPTNeoXConfig(**SHAPE),
}


@pytest.fixture(scope="module", params=sorted(MODELS))
def model(request):
    return build(MODELS[request.param]())


@pytest.fixture(scope="module")
def llama():
    return build(MODELS["llama"]())


def ask(rollout, context, new=6, turn=1, stop=()):
    return Request(
        rollout=rollout,
        turn=turn,
        context_ids=context,
        max_new_tokens=new,
        stop_ids=frozenset(stop),
    )


def drain(engine):
    done = []
    while engine.active:
        done.extend(engine.step())
    return {completion.rollout: completion for completion in done}


def logprobs_of(model, context, actions):
    ids = torch.tensor([[*context, *actions]])
    with torch.no_grad():
        logits = model(ids).logits[0, len(context) - 1 : -1].float()
    return torch.log_softmax(logits, -1)[torch.arange(len(actions)), list(actions)].tolist()


def close(ours, theirs, tolerance=1e-4):
    assert len(ours) == len(theirs)
    assert max(abs(a - b) for a, b in zip(ours, theirs, strict=True)) < tolerance


def test_families_take_the_fast_path_and_others_the_module():
    assert isinstance(make_decoder(build(MODELS["qwen3"]())), FusedDecoder)
    assert isinstance(make_decoder(build(MODELS["gpt2"]())), ModuleDecoder)
    scaled = transformers.LlamaConfig(
        **SHAPE,
        rope_parameters={
            "rope_type": "linear",
            "factor": 2.0,
            "rope_theta": 10000.0,
        },
    )
    assert isinstance(make_decoder(build(scaled)), ModuleDecoder)


def test_logprobs_are_the_models_over_turns_and_ragged_rows(model):
    engine = LocalEngine(model, seed=3)
    contexts = {i: [(i * 5 + j) % VOCABULARY for j in range(1 + 3 * i)] for i in range(5)}
    for turn in (1, 2, 3):
        for rollout, context in contexts.items():
            engine.submit(ask(rollout, context, new=2 + rollout, turn=turn))
        for rollout, done in drain(engine).items():
            context = contexts[rollout]
            close(done.logprobs, logprobs_of(model, context, done.action_ids))
            contexts[rollout] = [*context, *done.action_ids, 3, 1 + rollout, turn]


def test_both_decoders_say_the_same(llama):
    engines = [
        LocalEngine(llama, seed=1, decoder=decoder(llama))
        for decoder in (FusedDecoder, ModuleDecoder)
    ]
    for engine in engines:
        for i in range(7):
            engine.submit(ask(i, list(range(1, 2 + 2 * i)), new=9))
    ours, theirs = (drain(engine) for engine in engines)
    for rollout, done in ours.items():
        assert done.action_ids == theirs[rollout].action_ids
        close(done.logprobs, theirs[rollout].logprobs)


@settings(max_examples=25, deadline=None)
@given(
    joins=st.lists(
        st.tuples(st.integers(0, 6), st.integers(1, 9), st.integers(1, 6)), min_size=1, max_size=9
    ),
    released=st.sets(st.integers(0, 8)),
)
def test_what_a_sequence_says_does_not_depend_on_who_else_is_there(llama, joins, released):
    """Join and leave at any tick: ids and log-probs equal those of the sequence alone."""
    engine = LocalEngine(llama, seed=11)
    context = {i: [(7 * i + j) % VOCABULARY for j in range(n)] for i, (_, n, _) in enumerate(joins)}
    done: dict[int, Completion] = {}
    for tick in range(14):
        for i, (when, _, new) in enumerate(joins):
            if when == tick:
                engine.submit(ask(i, context[i], new=new))
            if i in released and when + 1 == tick:
                engine.release(i)
        done |= {c.rollout: c for c in engine.step()}
    for i, (_, _, new) in enumerate(joins):
        alone = LocalEngine(llama, seed=11)
        alone.submit(ask(i, context[i], new=new))
        expected = drain(alone)[i]
        if i in done:
            assert done[i].action_ids == expected.action_ids
            close(done[i].logprobs, expected.logprobs, 1e-5)
        else:
            assert i in released


def test_sampling_is_exact_at_temperature_1(llama):
    """Chi-square of 6,000 first tokens against the model's own softmax."""
    prompt, draws = [4, 9, 2], 6000
    engine = LocalEngine(llama, seed=5)
    counts: Counter[int] = Counter()
    for first in range(0, draws, 500):
        for rollout in range(first, first + 500):
            engine.submit(ask(rollout, prompt, new=1))
        for done in drain(engine).values():
            counts[done.action_ids[0]] += 1
            engine.release(done.rollout)
    with torch.no_grad():
        expected = torch.softmax(llama(torch.tensor([prompt])).logits[0, -1].double(), -1) * draws
    frequent = [i for i in range(VOCABULARY) if expected[i] >= 5]
    seen = [*(counts[i] for i in frequent), draws - sum(counts[i] for i in frequent)]
    wanted = [*(float(expected[i]) for i in frequent)]
    wanted.append(draws - math.fsum(wanted))
    if wanted[-1] < 1e-6:
        seen, wanted = seen[:-1], wanted[:-1]
    assert len(frequent) > 5
    assert chisquare(seen, wanted, sum_check=False).pvalue > 1e-3


def test_a_stop_token_ends_an_action_and_belongs_to_it(llama):
    engine = LocalEngine(llama, seed=2)
    engine.submit(ask(0, [1, 2], new=12))
    free = drain(engine)[0].action_ids
    stop = free[3]
    engine = LocalEngine(llama, seed=2)
    engine.submit(ask(0, [1, 2], new=12, stop=(stop,)))
    done = drain(engine)[0]
    assert done.stopped
    assert done.action_ids == free[: free.index(stop) + 1]
    assert len(free) == 12


def other_weights(model):
    return {
        name: (t + 0.3 * torch.sin(torch.arange(t.numel()).view(t.shape)) if t.ndim > 1 else t)
        for name, t in model.state_dict().items()
    }


@pytest.fixture(scope="module")
def second(llama):
    changed = build(MODELS["llama"]())
    changed.load_state_dict(other_weights(llama))
    return changed


def test_weights_change_between_tokens_and_the_sampler_says_so(llama, second):
    engine = LocalEngine(llama, seed=8)
    engine.submit(ask(0, [1, 2, 3], new=8))
    for _ in range(3):
        engine.step()
    engine.load(second.state_dict(), 5)
    done = drain(engine)[0]
    assert done.versions == (VersionSpan(0, 3), VersionSpan(5, 5))
    before = logprobs_of(llama, [1, 2, 3], done.action_ids)
    after = logprobs_of(second, [1, 2, 3], done.action_ids)
    close(done.logprobs, before[:3] + after[3:])
    assert max(abs(a - b) for a, b in zip(before, after, strict=True)) > 0.1


def test_a_waiting_rollout_is_rebuilt_when_it_rejoins(llama, second):
    engine = LocalEngine(llama, seed=8)
    engine.submit(ask(0, [1, 2, 3], new=2))
    first = drain(engine)[0]
    engine.load(second.state_dict(), 1)
    context = [1, 2, 3, *first.action_ids, 6]
    engine.submit(ask(0, context, new=4, turn=2))
    done = drain(engine)[0]
    close(done.logprobs, logprobs_of(second, context, done.action_ids))


@pytest.mark.filterwarnings("ignore:.past_key_values")
def test_kv_keep_mixes_old_keys_with_new_weights(llama, second):
    """Expected values: two caches of `transformers` itself, the old one kept over the swap."""
    engine = LocalEngine(llama, seed=8, kv="keep")
    engine.submit(ask(0, [1, 2, 3], new=6))
    for _ in range(2):
        engine.step()
    engine.load(second.state_dict(), 1)
    done = drain(engine)[0]
    tokens = [1, 2, 3, *done.action_ids]
    cache, expected = None, []
    fed = [(llama, tokens[:3]), (llama, tokens[3:4]), *((second, [t]) for t in tokens[4:-1])]
    for model, new in fed:
        with torch.no_grad():
            out = model(torch.tensor([new]), past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        expected.append(torch.log_softmax(out.logits[0, -1].float(), -1))
    close(
        done.logprobs,
        [float(row[token]) for row, token in zip(expected, done.action_ids, strict=True)],
    )
    rebuilt = logprobs_of(second, [1, 2, 3], done.action_ids)[2:]
    assert max(abs(a - b) for a, b in zip(done.logprobs[2:], rebuilt, strict=True)) > 1e-3


def test_an_unchanged_policy_advances_the_version_and_keeps_the_cache(llama):
    engine = LocalEngine(llama, seed=8)
    engine.submit(ask(0, [1, 2, 3], new=4))
    engine.step()
    engine.load(None, 2)
    done = drain(engine)[0]
    assert done.versions == (VersionSpan(0, 1), VersionSpan(2, 3))
    close(done.logprobs, logprobs_of(llama, [1, 2, 3], done.action_ids))


def test_refusals(llama):
    engine = LocalEngine(llama, seed=8, version=3)
    engine.submit(ask(0, [1, 2, 3], new=2))
    with pytest.raises(ValueError, match="already has a request"):
        engine.submit(ask(0, [1, 2, 3]))
    done = drain(engine)[0]
    said = list(done.action_ids)
    with pytest.raises(ValueError, match="history differs from the sampled tokens"):
        engine.submit(ask(0, [1, 2, 3, said[0], (said[1] + 1) % VOCABULARY, 4], turn=2))
    with pytest.raises(ValueError, match="goes back from 3 to 2"):
        engine.load(None, 2)
    with pytest.raises(ValueError, match="at least one token"):
        engine.submit(ask(1, []))
    with pytest.raises(ValueError, match="max_new_tokens"):
        engine.submit(ask(1, [1], new=0))


def test_a_new_segment_forgets_the_old_one(llama):
    engine = LocalEngine(llama, seed=8)
    engine.submit(ask(0, [1, 2, 3], new=3))
    drain(engine)
    engine.submit(replace(ask(0, [4, 2], new=3, turn=2), restart=True))
    done = drain(engine)[0]
    close(done.logprobs, logprobs_of(llama, [4, 2], done.action_ids))
    engine.submit(ask(0, [4, 2, *done.action_ids, 5], turn=3))
    assert drain(engine)[0].turn == 3
    engine.submit(ask(1, [1], new=2))
    with pytest.raises(ValueError, match="already has a request"):
        engine.submit(replace(ask(1, [2]), restart=True))


def test_released_rows_are_used_again(llama):
    engine = LocalEngine(llama, seed=8)
    for i in range(40):
        engine.submit(ask(i, [1 + i % 5, 2], new=1 + i % 3))
        drain(engine)
        engine.release(i)
    assert engine._decoder.pool.rows == 8


def test_what_the_engine_samples_scores_the_same_in_a_learner(llama, second):
    engine = LocalEngine(llama, seed=0)
    concept = Concept(id="A", params={})
    rollouts = on_policy_rollouts(engine, [(1, 2), (3,)], concept, max_new_tokens=4)
    assert [t.action_tokens for t in rollouts] == [4, 4]
    check_on_policy(llama, rollouts)
    with pytest.raises(RunError, match="on-policy self-test"):
        check_on_policy(second, rollouts)
