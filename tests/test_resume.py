"""Exact resume of real runs: model, engine, learner, critic and all."""

from __future__ import annotations

from pathlib import Path

import pytest

from sao_gym.assemble import assemble
from sao_gym.events import CheckpointTaken, PolicyPublished, TurnSampled, UpdateFinished
from sao_gym.log import encode
from sao_gym.policy import weights_hash
from sao_gym.scenario import load_scenario

TINY = Path(__file__).parent / "data" / "tiny.yaml"


def scenario(*overrides, learner=None):
    return load_scenario(TINY, learner=learner, overrides=list(overrides))


def play(loaded, *, resume=None, beside=False, stop_after=None):
    """(lines without checkpoints, checkpoints with the number of lines before, final weights)"""
    lines, taken = [], []
    with assemble(loaded, beside=beside, warm=resume is None) as run:
        for t, event in run.events(resume):
            if isinstance(event, CheckpointTaken):
                taken.append((len(lines), event))
                continue
            lines.append(encode(t, event))
            if stop_after is not None and stop_after(len(lines), event):
                run.executor.interrupt()
        return lines, taken, weights_hash(run.executor.weights())


@pytest.fixture(scope="module", params=["sao", "grpo"])
def whole(request):
    loaded = scenario("checkpoint.every=4", "cluster.kv=keep", learner=request.param)
    return loaded, play(loaded)


def test_a_run_goes_on_from_its_checkpoints_bit_for_bit(whole):
    loaded, (lines, taken, final) = whole
    assert len(taken) >= 4
    for before, checkpoint in taken[::2]:
        rest, _, weights = play(loaded, resume=checkpoint.state)
        assert rest == lines[before:]
        assert weights == final


def test_taking_checkpoints_changes_nothing(whole):
    loaded, (lines, _, final) = whole
    never = loaded.model_copy(update={"checkpoint": loaded.checkpoint.model_copy(
        update={"every": None})})  # fmt: skip
    assert play(never)[::2] == (lines, final)


@pytest.mark.parametrize("kind", [TurnSampled, UpdateFinished, PolicyPublished])
def test_an_interrupted_run_goes_on_as_if_it_had_not_been(whole, kind):
    """Whatever was under way: the caches of the engine are part of the state."""
    loaded, (lines, _, final) = whole

    def stop(count, event):
        return count > 300 and isinstance(event, kind)

    cut, taken, _ = play(loaded, stop_after=stop)
    before, checkpoint = taken[-1]
    assert not checkpoint.scheduled
    assert cut[:before] == lines[:before]
    rest, _, weights = play(loaded, resume=checkpoint.state)
    assert rest == lines[before:]
    assert weights == final


def test_the_learner_beside_keeps_and_restores_its_state(whole):
    loaded, (lines, taken, final) = whole
    before, checkpoint = taken[1]
    rest, again, weights = play(loaded, resume=checkpoint.state, beside=True)
    assert rest == lines[before:]
    assert weights == final
    assert [c.update for _, c in again] == [c.update for _, c in taken[2:]]
