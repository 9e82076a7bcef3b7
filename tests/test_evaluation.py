"""Side evaluation: fixed instances, common random numbers, failures left out."""

from __future__ import annotations

from sao_gym.doubles import ScriptedAgent, ScriptedEngine, ScriptedEnvironment
from sao_gym.evaluation import EpisodeEvaluator
from sao_gym.stream import TaskStream
from sao_gym.types import Concept

A, B = (Concept(id=name, params={"good": name.lower()}) for name in "AB")


def evaluator(make=ScriptedEnvironment, instances=20):
    return EpisodeEvaluator(
        make_environment=make,
        agent=ScriptedAgent(),
        engine=ScriptedEngine(),
        instances=instances,
        seed=0,
        context=1000,
    )


def test_every_concept_is_scored_on_its_own():
    """The scripted policy always says `a`: right under A, wrong under B."""
    scores = evaluator().evaluate(None, [A, B])
    assert [(s.concept, s.score, s.instances) for s in scores] == [("A", 1.0, 20), ("B", 0.0, 20)]


def test_the_same_policy_scores_the_same_again():
    def vary():
        return ScriptedEnvironment(vary=True, fails=0.3)

    twice = evaluator(vary)
    first, second = (twice.evaluate({}, [A, B]) for _ in range(2))
    assert first == second


def test_failed_instances_are_left_out_and_not_scored_zero():
    (some,) = evaluator(lambda: ScriptedEnvironment(fails=0.4)).evaluate(None, [A])
    assert some.score == 1.0
    assert 5 < some.instances < 20
    (none,) = evaluator(lambda: ScriptedEnvironment(fails=1.0)).evaluate(None, [A])
    assert none.score is None
    assert none.instances == 0


def test_what_does_not_fit_the_window_ends_there():
    short = EpisodeEvaluator(
        make_environment=lambda: ScriptedEnvironment(turns=10),
        agent=ScriptedAgent(),
        engine=ScriptedEngine(),
        instances=4,
        seed=0,
        context=6,
    )
    (score,) = short.evaluate(None, [A])
    assert (score.score, score.instances) == (0.0, 4)


class Noted(ScriptedEnvironment):
    """Notes the seeds of its episodes."""

    def __init__(self, seeds):
        super().__init__()
        self._seeds = seeds

    def reset(self, *, seed=None, options=None):
        self._seeds.add(seed)
        return super().reset(seed=seed, options=options)


def test_its_instances_are_no_tasks_of_the_run():
    asked: set[int] = set()
    evaluator(lambda: Noted(asked)).evaluate(None, [A, B])
    stream = TaskStream(seed=0, group_size=1)
    trained = {stream.next(lambda task: A)[0].seed for _ in range(1000)}
    assert len(asked) == 20
    assert not asked & trained
