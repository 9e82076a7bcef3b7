"""Checkpoints of runs on the wall clock: nothing is lost and nothing is done twice."""

from __future__ import annotations

import time

from live_runs import keeps_promises, play, start
from scripted import of

from sao_gym.doubles import (
    ScriptedEngine,
    ScriptedEnvironment,
    ScriptedEvaluator,
    ScriptedLearner,
)
from sao_gym.events import (
    CheckpointTaken,
    Evaluated,
    PolicyPublished,
    RolloutDropped,
    RunEnded,
    TurnSampled,
    UpdateFinished,
)
from sao_gym.executors.trainers import InlineTrainer


class Slow(ScriptedEnvironment):
    def step(self, action):
        time.sleep(0.002)
        return super().step(action)


class SlowEvaluator(ScriptedEvaluator):
    def evaluate(self, weights, concepts):
        time.sleep(0.005)
        return super().evaluate(weights, concepts)


def parts():
    """Fresh ones for each part of a run."""
    return {
        "make_environment": lambda: Slow(vary=True),
        "evaluator": SlowEvaluator(),
        "evaluate_every": 1,
    }


def checkpoints(history):
    """Each with the events before it."""
    seen = []
    for when, event in history:
        if isinstance(event, CheckpointTaken):
            yield event, list(seen)
        else:
            seen.append((when, event))


def test_interrupt_takes_a_last_checkpoint_from_which_nothing_is_lost_or_doubled():
    executor, events = start(**parts())
    taken, first, after = None, [], []
    for when, event in events:
        if isinstance(event, CheckpointTaken):
            taken = event
        elif taken is None:
            first.append((when, event))
        else:
            after.append(event)
        if isinstance(event, UpdateFinished) and event.version == 5:
            executor.interrupt()
    executor.close()
    assert taken is not None
    assert not taken.scheduled
    assert all(isinstance(event, RolloutDropped | RunEnded) for event in after)
    assert {e.reason for e in after} == {"run_ended", "interrupted"}

    second = play(**parts(), resume=taken.state)
    assert second[0][0] >= first[-1][0]
    keeps_promises(first + second, 60)
    assert second[-1][1].reason == "rollouts"


def test_every_checkpoint_of_a_run_leads_to_its_end():
    whole = play(**parts(), checkpoint_every=1)
    keeps_promises(whole, 60)
    assert len(of(whole, CheckpointTaken)) == len(of(whole, UpdateFinished)) >= 14
    for taken, before in checkpoints(whole):
        assert taken.scheduled
        joined = before + play(**parts(), resume=taken.state)
        keeps_promises(joined, 60)
        # one at the start of the concept, one after each publish
        published = len(of(joined, PolicyPublished))
        expected = [0, *range(1, published + 1)]
        assert sorted(e.version for e in of(joined, Evaluated)) == expected


class Remembers(ScriptedLearner):
    """Its weights are the number of its updates."""

    updates = 0

    def update(self, batch):
        self.updates += 1
        done = super().update(batch)
        return type(done)(weights={"updates": self.updates}, metrics={})

    def state_dict(self):
        return {"updates": self.updates}

    def load_state_dict(self, state):
        self.updates = state["updates"]


class Compares(ScriptedEngine):
    """Knows what it was given."""

    weights = None

    def load(self, weights, version):
        super().load(weights, version)
        if weights is not None:
            self.weights = weights

    def holds(self, weights):
        return self.weights == weights


def test_learner_weights_and_clock_go_on_where_they_were():
    learner = Remembers(batch_size=4)
    history = play(learner=learner, engine=Compares(), checkpoint_every=3, rollouts=20)
    taken, before = next(checkpoints(history))
    assert taken.update == 3
    learner, engine = Remembers(batch_size=4), Compares()
    executor, events = start(
        learner=learner,
        trainer=InlineTrainer(learner),
        engine=engine,
        rollouts=20,
        resume=taken.state,
    )
    history = list(events)
    keeps_promises(before + history, 20)
    published = len(of(before, PolicyPublished))
    sampled = [s.version for e in of(history, TurnSampled) for s in e.completion.versions]
    assert published == 2
    assert min(sampled) >= published
    assert learner.updates == 5
    assert executor.weights() == {"updates": 5}
    executor.close()
    assert engine.weights == {"updates": 5}
