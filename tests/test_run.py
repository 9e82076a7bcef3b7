"""Whole runs of a tiny scenario with a real model: determinism, isolation, synchrony."""

from __future__ import annotations

import copy
import re
import sys
import types
from collections import Counter
from pathlib import Path

import pytest
import torch

from sao_gym import rng
from sao_gym.assemble import assemble, make_learner
from sao_gym.envs.tool_use import ToolUse
from sao_gym.errors import InputError
from sao_gym.events import EnvironmentStepped, Evaluated, TurnSampled, UpdateFinished
from sao_gym.log import encode
from sao_gym.policy import weights_hash
from sao_gym.scenario import load_scenario
from sao_gym.types import Task, Terminated, Timing, Trajectory, Turn, VersionSpan
from sao_gym.world import make_world

TINY = Path(__file__).parent / "data" / "tiny.yaml"


def scenario(*overrides, learner=None, seed=None):
    return load_scenario(TINY, learner=learner, seed=seed, overrides=list(overrides))


def play(loaded, *, beside=False):
    """(log lines, events, hash of the final weights)"""
    with assemble(loaded, beside=beside) as run:
        history = list(run.events())
        final = weights_hash(run.executor.weights())
    return [encode(t, event) for t, event in history], [e for _, e in history], final


@pytest.fixture(scope="module")
def reference():
    return play(scenario())


def test_same_scenario_and_seed_same_log_and_same_weights(reference):
    assert play(scenario())[::2] == reference[::2]


def test_another_seed_is_another_run(reference):
    lines, _, final = play(scenario(seed=1))
    assert lines != reference[0]
    assert final != reference[2]


def test_ticks_may_take_unequal_times(reference):
    uneven = scenario("time.decode={kind: lognormal, mean: 0.1, sigma: 1.0}")
    lines, events, _ = play(uneven)
    assert play(uneven)[0] == lines
    assert lines != reference[0]
    assert any(isinstance(e, UpdateFinished) for e in events)


def test_updates_beside_this_process_make_the_same_run(reference):
    assert play(scenario(), beside=True)[::2] == reference[::2]


def test_the_policy_moves_and_the_run_is_asynchronous(reference):
    updates = [e for e in reference[1] if isinstance(e, UpdateFinished)]
    assert sum(e.metrics["policy_moved"] for e in updates) == len(updates) - 2
    assert max(e.lag_max for e in updates) > 0
    spans = {span.version for e in reference[1] if isinstance(e, TurnSampled)
             for span in e.completion.versions}  # fmt: skip
    assert len(spans) > 10


def test_the_training_trace_is_the_same_with_evaluation_off(reference):
    trained = [
        line for line, e in zip(reference[0], reference[1], strict=True)
        if not isinstance(e, Evaluated)
    ]  # fmt: skip
    lines, events, final = play(scenario("evaluation.every=null"))
    assert not any(isinstance(e, Evaluated) for e in events)
    assert lines == trained
    assert final == reference[2]


def test_evaluation_draws_no_number_of_the_run(monkeypatch):
    digest = rng._digest
    drawn: Counter[str] = Counter()

    def noted(seed, purpose, key, size):
        drawn[f"{seed}/{purpose}/{key}"] += 1
        return digest(seed, purpose, key, size)

    monkeypatch.setattr(rng, "_digest", noted)
    play(scenario("evaluation.every=null"))
    of_the_run = drawn.copy()
    drawn.clear()
    play(scenario())
    of_the_evaluation = drawn - of_the_run
    assert len(of_the_run) > 100
    assert len(of_the_evaluation) > 50
    assert not of_the_run.keys() & of_the_evaluation.keys()


@pytest.mark.parametrize("learner", ["sao", "reinforce", "running_mean", "frozen", "oracle"])
def test_every_learner_runs_on_the_same_world(learner, reference):
    _, events, _ = play(scenario(f"learner={{name: {learner}, params: {{batch_size: 4}}}}"))
    assert any(isinstance(e, UpdateFinished) for e in events)
    first = [e for e in events if isinstance(e, EnvironmentStepped) and e.turn == 0][:20]
    theirs = {e.rollout: e.observation for e in reference[1]
              if isinstance(e, EnvironmentStepped) and e.turn == 0}  # fmt: skip
    for event in first:
        assert event.observation == theirs[event.rollout], "every arm is asked the same questions"


def test_groups_share_a_task():
    _, events, _ = play(scenario(learner="grpo"))
    prompts: dict[int, set[str]] = {}
    for e in events:
        if isinstance(e, EnvironmentStepped) and e.turn == 0:
            prompts.setdefault(e.rollout // 2, set()).add(e.observation)
    assert all(len(asked) == 1 for asked in prompts.values())
    assert len(set.union(*prompts.values())) > 3


def episode(world, model, seed, number, version):
    """One rollout by whole forward passes of the module: no engine, no cache, no executor."""
    task = Task(index=number, seed=rng.integer(seed, "task", number))
    concept = world.timeline.concepts[0]
    env, agent = world.make_environment(), world.agent
    observation, _ = env.reset(seed=task.seed, options={"concept": dict(concept.params)})
    tokens, turns, over = [], [], False
    while not over:
        ids = (agent.observe if turns else agent.begin)(observation)
        tokens += ids
        with torch.no_grad():
            row = torch.log_softmax(model(torch.tensor([tokens])).logits[0, -1], -1)
        draw = rng.uniform(seed, "sample", number, len(turns) + 1, 0)
        cumulative = row.double().exp().cumsum(0)
        token = int((cumulative <= draw * cumulative[-1]).sum())
        tokens.append(token)
        observation, reward, terminated, truncated, _ = env.step(agent.act((token,)))
        over = terminated or truncated
        turns.append(
            Turn(
                observation_ids=tuple(ids),
                action_ids=(token,),
                logprobs=(float(row[token]),),
                versions=(VersionSpan(version, 1),),
                reward=float(reward),
            )
        )
    return Trajectory(
        rollout=number,
        task=task,
        concept_start=concept,
        concept_scored=concept,
        turns=tuple(turns),
        outcome=Terminated(),
        timing=Timing(started=0.0, finished=0.0),
    )


@pytest.mark.parametrize("learner", ["sao", "reinforce"])
def test_lag_zero_equals_a_plain_synchronous_loop_step_for_step(learner):
    overrides = ["cluster.max_lag=0", "budget.rollouts=40", "evaluation.every=null"]
    if learner != "sao":
        overrides.append(f"learner={{name: {learner}, params: {{batch_size: 4}}}}")
    loaded = scenario(*overrides)
    _, events, final = play(loaded)
    ours = [e for e in events if isinstance(e, UpdateFinished)]
    assert len(ours) == 10
    world = make_world(loaded)
    plain = make_learner(world, loaded)
    model = copy.deepcopy(world.policy.model)
    for step, event in enumerate(ours):
        batch = [episode(world, model, loaded.seed, step * 4 + i, step) for i in range(4)]
        update = plain.update(batch)
        assert sorted(event.rollouts) == [t.rollout for t in batch]
        assert event.lag_max == 0
        for name, value in update.metrics.items():
            if value == value:
                assert event.metrics[name] == pytest.approx(value, abs=1e-6, rel=1e-4), name
        if update.weights is not None:
            model.load_state_dict(update.weights)
    assert any(e.metrics["policy_loss"] == e.metrics["policy_loss"] for e in ours)
    assert final != weights_hash(world.policy.model.state_dict())


def test_the_process_is_left_as_it_was(reference):
    threads = torch.get_num_threads()
    assert float(torch.tensor(1e-40) * 1.0) > 0.0, "denormals are not flushed"
    with assemble(scenario()):
        assert float(torch.tensor(1e-40) * 1.0) == 0.0
        assert torch.get_num_threads() == 1
    assert float(torch.tensor(1e-40) * 1.0) > 0.0
    assert torch.get_num_threads() == threads


def test_a_warm_start_teaches_and_is_found_again(monkeypatch, tmp_path):
    monkeypatch.setenv("SAO_GYM_CACHE", str(tmp_path))
    warm = "warm_start={steps: 60, batch_size: 16, learning_rate: 0.01, noise: 0.1}"
    first = play(scenario(warm))
    kept = list(tmp_path.rglob("*.safetensors"))
    assert len(kept) == 1
    assert not list(tmp_path.rglob("*.partial"))
    assert play(scenario(warm))[::2] == first[::2], "found in the cache: the same run"
    scores = [e.score for e in first[1] if isinstance(e, Evaluated) and e.version == 0]
    cold = [e.score for e in play(scenario())[1] if isinstance(e, Evaluated) and e.version == 0]
    assert scores[0] > cold[0] + 0.2
    play(scenario(warm.replace("0.1}", "0.2}")))
    assert len(list(tmp_path.rglob("*.safetensors"))) == 2, "another setting, another key"


class FourValues(ToolUse):
    def step(self, action):
        return super().step(action)[:4]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.symbols=abcABC0123", r"no token for '!'.*symbols: auto"),
        ("model.init.hidden_sizes=16", "hidden_sizes: not a field.*did you mean 'hidden_size'"),
        ("model.init.model_type=lama", "model_type: transformers knows no 'lama'"),
        ("model.init.max_position_embeddings=3", "exceed the model's window of 3"),
        ("timeline.segments.0.concept.params.mapping=AB", "concept 'A'.*mapping"),
        ("model={path: /nonexistent}", "model.path: /nonexistent is not a directory"),
        ("environment={name: 'sao_gym_test:FourValues', params: {kinds: 3, tools: 3}}",
         "FourValues: step must return"),
        ("environment={name: 'sao_gym.doubles:ScriptedEnvironment'}", "no concept|cannot take"),
    ],
)  # fmt: skip
def test_parts_that_do_not_fit_are_one_clear_line(override, message, monkeypatch):
    module = types.ModuleType("sao_gym_test")
    module.FourValues = FourValues
    monkeypatch.setitem(sys.modules, "sao_gym_test", module)
    with pytest.raises(InputError, match=message) as caught:
        make_world(scenario(override))
    assert "\n" not in str(caught.value)
    where = r"tiny\.yaml:\d+|--set " + re.escape(override.split("=")[0])
    assert re.search(where, str(caught.value)), "says where"


SMALL_NEOX = (
    "model.init={model_type: gpt_neox, hidden_size: 16, num_hidden_layers: 1, "
    "num_attention_heads: 2, intermediate_size: 32}"
)


def test_a_model_from_a_directory(tmp_path):
    """Saved by `save_pretrained`, tokenizer included; another architecture than the fused ones."""
    policy = make_world(scenario(SMALL_NEOX)).policy
    policy.model.save_pretrained(tmp_path / "model")
    policy.tokenizer.save_pretrained(tmp_path / "model")
    short = "budget.rollouts=24"
    _, events, final = play(scenario(f"model={{path: {tmp_path}/model}}", short))
    assert any(isinstance(e, UpdateFinished) for e in events)
    assert play(scenario(SMALL_NEOX, short))[2] == final, "the same weights, read or made"
