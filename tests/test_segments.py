"""Episodes longer than the context: a new segment begins, the old one stays as it was sampled."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from scripted import of, simulate

from sao_gym import plain
from sao_gym.assemble import assemble
from sao_gym.doubles import ScriptedAgent, ScriptedEngine, ScriptedEnvironment
from sao_gym.errors import InputError
from sao_gym.evaluation import EpisodeEvaluator
from sao_gym.events import (
    CheckpointTaken,
    RolloutFailed,
    RolloutFinished,
    RolloutStarted,
    UpdateFinished,
)
from sao_gym.log import encode
from sao_gym.policy import weights_hash
from sao_gym.rollout import reopened
from sao_gym.scenario import load_scenario
from sao_gym.trajectories import read_trajectories
from sao_gym.types import Concept, Failed, Truncated


class Reopens(ScriptedAgent):
    """Every turn is the tokens 2 1; a new segment opens with 7 and the number left out."""

    def reopen(self, observation, left_out):
        assert observation == "o"
        return (7, left_out)


class Declines(ScriptedAgent):
    def reopen(self, observation, left_out):
        return None


def test_the_last_turns_that_leave_half_of_the_room_stay():
    said, heard = [(2,)] * 8, [(1,)] * 9
    kept = [reopened(Reopens(), "o", said, heard, room) for room in (15, 13, 9, 4, 3)]
    assert kept == [[7, 6, 2, 1, 2, 1], [7, 6, 2, 1, 2, 1], [7, 7, 2, 1], [7, 7, 2, 1], None]
    long = [(1,)] * 8 + [(1, 5, 5, 5, 5)]
    assert reopened(Reopens(), "o", said, long, 9) == [7, 7, 2, 1, 5, 5, 5, 5]
    assert reopened(Reopens(), "o", said[:1], long[:2], 2) is None
    assert reopened(ScriptedAgent(), "o", said, heard, 15) is None
    assert reopened(Declines(), "o", said, heard, 15) is None


CONTEXTS = [[1], [1, 2, 1], [1, 2, 1, 2, 1], [1, 2, 1, 2, 1, 2, 1]]
CONTEXTS += [[7, 3, 2, 1], [7, 3, 2, 1, 2, 1], [7, 5, 2, 1], [7, 5, 2, 1, 2, 1]]


@pytest.fixture
def asked(monkeypatch):
    """Requests by turn."""
    found = {}
    submit = ScriptedEngine.submit

    def noted(engine, request):
        found.setdefault(request.turn, []).append((list(request.context_ids), request.restart))
        submit(engine, request)

    monkeypatch.setattr(ScriptedEngine, "submit", noted)
    return found


def long():
    return ScriptedEnvironment(turns=8)


def test_an_episode_goes_on_in_new_segments(asked):
    history = list(simulate(agent=Reopens(), make_environment=long, rollouts=6, context=8))
    for turn, requests in asked.items():
        assert requests == [(CONTEXTS[turn - 1], turn in (5, 7))] * 6
    finished = [event.trajectory for event in of(history, RolloutFinished)]
    assert len(finished) == 6
    for trajectory in finished:
        assert trajectory.reward == 1.0
        assert [turn.restart for turn in trajectory.turns] == [
            *(False, False, False, False, True, False, True, False)
        ]
        context = []
        for turn, expected in zip(trajectory.turns, CONTEXTS, strict=True):
            context = [*([] if turn.restart else context), *turn.observation_ids]
            assert context == expected
            context += turn.action_ids


def test_one_that_does_not_go_on_is_truncated():
    """With a context of 4 a new segment of 4 would leave no room for an action."""
    for agent, context in ((ScriptedAgent(), 8), (Declines(), 8), (Reopens(), 4)):
        history = list(simulate(agent=agent, make_environment=long, rollouts=3, context=context))
        ends = [event.trajectory.outcome for event in of(history, RolloutFinished)]
        assert ends == [Truncated("context")] * 3


class Speechless(ScriptedAgent):
    def reopen(self, observation, left_out):
        raise InputError("the tokenizer cannot say it")


def test_a_segment_that_cannot_be_opened_fails_the_rollout_alone():
    parts = {"make_environment": long, "context": 8, "stop_above": 1.0}
    history = list(simulate(agent=Speechless(), rollouts=3, **parts))
    failures = [event.failure for event in of(history, RolloutFailed)]
    assert failures == [Failed("contract", "the tokenizer cannot say it")] * 3
    evaluator = EpisodeEvaluator(
        make_environment=long,
        agent=Speechless(),
        engine=ScriptedEngine(),
        instances=2,
        seed=0,
        context=8,
    )
    (score,) = evaluator.evaluate(None, [Concept(id="A", params={"good": "a"})])
    assert (score.score, score.instances) == (None, 0)


def test_the_evaluation_goes_on_as_well(asked):
    evaluator = EpisodeEvaluator(
        make_environment=long,
        agent=Reopens(),
        engine=ScriptedEngine(),
        instances=4,
        seed=0,
        context=8,
    )
    (score,) = evaluator.evaluate(None, [Concept(id="A", params={"good": "a"})])
    assert (score.score, score.instances) == (1.0, 4)
    for turn, requests in asked.items():
        assert requests == [(CONTEXTS[turn - 1], turn in (5, 7))] * 4


def test_the_log_gives_the_segments_back():
    history = list(simulate(agent=Reopens(), make_environment=long, rollouts=4, context=8))
    records = [json.loads(encode(t, event)) for t, event in history]
    began = of(history, RolloutStarted)
    found = read_trajectories(records, range(4), [event.concept for event in began])
    for event in of(history, RolloutFinished):
        kept, read = event.trajectory, found[event.trajectory.rollout]
        assert read.turns == kept.turns
        assert [record.get("restarts") for record in records if "restarts" in record] == [
            [4, 6]
        ] * 4


def test_a_checkpoint_in_a_new_segment_is_gone_on_from():
    parts = {"agent": Reopens(), "make_environment": long, "rollouts": 40, "context": 8}
    whole = list(simulate(**parts, checkpoint_every=1, max_lag=9))
    taken = [i for i, (_, event) in enumerate(whole) if isinstance(event, CheckpointTaken)]
    inside = 0
    for place in taken:
        state = whole[place][1].state
        rollouts = [saved for saved, _ in plain.loads(state)["acting"].values()]
        inside += any(saved["context"][:1] == [7] for saved in rollouts)
        rest = list(simulate(**parts, checkpoint_every=1, max_lag=9, resume=state))
        assert [encode(*e) for e in rest] == [encode(*e) for e in whole[place + 1 :]]
    assert inside >= 3


# -- with a real policy, agent and environment ------------------------------------------------

TALK = {
    "environment": {
        "name": "repo_fix",
        "params": {"form": "bash", "calls": 14, "sandbox": "process"},
    },
    "agent": {"name": "shell", "params": {"max_new_tokens": 12, "window": 40}},
    "learner": {"name": "sao", "params": {"batch_size": 4, "critic_warmup": 1}},
    "timeline": {"segments": [{"concept": {"id": "A", "params": {}}}]},
    "cluster": {"slots": 4, "max_lag": 0},
    "checkpoint": {"every": 2},
    "budget": {"rollouts": 16},
    "evaluation": {"every": None},
}


@pytest.fixture(scope="module")
def talk(tmp_path_factory):
    tiny = yaml.safe_load((Path(__file__).parent / "data" / "tiny.yaml").read_text())
    scenario = {**tiny, **TALK}
    scenario.pop("arms")
    scenario["model"]["init"]["max_position_embeddings"] = 640
    path = tmp_path_factory.mktemp("talk") / "talk.yaml"
    path.write_text(yaml.safe_dump(scenario))
    return load_scenario(path)


def play(loaded, resume=None):
    lines, events = [], []
    with assemble(loaded, beside=False, warm=resume is None) as run:
        for t, event in run.events(resume):
            events.append(event)
            lines.append(encode(t, event))
        return lines, events, weights_hash(run.executor.weights())


def test_tokens_of_every_segment_score_as_they_were_sampled(talk):
    lines, events, final = play(talk)
    finished = [event.trajectory for event in events if isinstance(event, RolloutFinished)]
    assert len(finished) == 16
    assert all(any(turn.restart for turn in trajectory.turns) for trajectory in finished)
    updates = [event for event in events if isinstance(event, UpdateFinished)]
    assert len(updates) == 4
    for update in updates[1:]:  # the first one warms the critic up
        assert update.lag_max == 0
        assert update.metrics["ratio_max"] == pytest.approx(1.0, abs=1e-4)
        assert abs(update.metrics["kl_rollout"]) < 1e-5
    places = [i for i, event in enumerate(events) if isinstance(event, CheckpointTaken)]
    rest, _, weights = play(talk, events[places[0]].state)
    assert (rest, weights) == (lines[places[0] + 1 :], final)
