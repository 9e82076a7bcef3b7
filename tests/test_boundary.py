"""The boundary where what an environment does wrong becomes data."""

from __future__ import annotations

import pytest

from sao_gym import boundary
from sao_gym.boundary import Step
from sao_gym.doubles import ScriptedEnvironment
from sao_gym.errors import MachineryError
from sao_gym.types import Concept, Failed, Task

TASK = Task(index=0, seed=0)
A = Concept(id="A", params={"good": "a"})


class Fixed(ScriptedEnvironment):
    """Answers what it is told to."""

    def __init__(self, answer=None, opening=None):
        super().__init__()
        self.answer, self.opening = answer, opening

    def reset(self, *, seed=None, options=None):
        usual = super().reset(seed=seed, options=options)
        return usual if self.opening is None else self.opening

    def step(self, action):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


INFO = {"concept": {"good": "a"}}


def test_a_good_answer_passes_through():
    env = Fixed(("seen", 0.5, True, False, INFO | {"retry": True}))
    assert boundary.reset(env, TASK, A) == Step("o")
    assert boundary.step(env, "a") == Step("seen", 0.5, True, False, True)


@pytest.mark.parametrize(
    ("answer", "kind", "detail"),
    [
        (("o", 0.0, False, {}), "contract", "step must return (observation, reward, terminated"),
        (None, "contract", "step must return"),
        ((b"o", 0.0, False, False, INFO), "contract", "observation is bytes, not str"),
        (("\ud800", 0.0, False, False, INFO), "contract", "not valid Unicode"),
        (("o", float("nan"), False, False, INFO), "contract", "a reward is a finite number"),
        (("o", "much", False, False, INFO), "contract", "reward 'much'"),
        (OSError("disk\nfull"), "environment", "step: OSError: disk"),
        (ValueError(), "environment", "step: ValueError"),
        (OSError("\udcff"), "environment", "step: OSError: ?"),
    ],
)
def test_what_a_step_may_do_wrong(answer, kind, detail):
    failed = boundary.step(Fixed(answer), "a")
    assert isinstance(failed, Failed)
    assert failed.kind == kind
    assert detail in failed.detail
    assert "\n" not in failed.detail


@pytest.mark.parametrize(
    ("opening", "detail"),
    [
        ("o", "reset must return (observation, info)"),
        (("o", {}), 'info["concept"] is missing'),
        (("o", {"concept": {}}), "parameter 'good' was declared 'a', applied nothing"),
        (("o", {"concept": {"good": "b"}}), "parameter 'good' was declared 'a', applied 'b'"),
    ],
)
def test_what_a_reset_may_do_wrong(opening, detail):
    failed = boundary.reset(Fixed(opening=opening), TASK, A)
    assert isinstance(failed, Failed)
    assert failed.kind == "contract"
    assert detail in failed.detail


def test_a_concept_that_is_not_applied_in_mid_episode_is_seen():
    env = Fixed(("o", 0.0, False, False, INFO))
    env.reset()
    failed = boundary.step(env, "a", Concept(id="B", params={"good": "b"}))
    assert isinstance(failed, Failed)
    assert failed.kind == "contract"


def test_a_late_score_is_a_finite_number():
    class Scores(ScriptedEnvironment):
        def score(self, params):
            return params["value"]

    assert boundary.score(Scores(), Concept(id="B", params={"value": 0.25})) == 0.25
    failed = boundary.score(Scores(), Concept(id="B", params={"value": float("inf")}))
    assert isinstance(failed, Failed)


class Recording(ScriptedEnvironment):
    def __init__(self, record):
        super().__init__(turns=1)
        self.record = record

    def step(self, action):
        *rest, info = super().step(action)
        return *rest, {**info, "record": self.record}


def test_what_an_environment_leaves_for_the_log_is_carried_as_it_is():
    env = Recording({"patch": {"a": "eA=="}, "n": [1, None]})
    boundary.reset(env, TASK, A)
    assert boundary.step(env, "a").record == {"patch": {"a": "eA=="}, "n": [1, None]}


@pytest.mark.parametrize("record", [["a"], {"x": object()}, {"x": float("nan")}])
def test_a_record_that_is_no_json_breaks_the_contract(record):
    env = Recording(record)
    boundary.reset(env, TASK, A)
    failed = boundary.step(env, "a")
    assert failed.kind == "contract"
    assert 'info["record"]' in failed.detail


class OutOfMachinery(ScriptedEnvironment):
    def step(self, action):
        raise MachineryError("engine", "no answer from the engine")


def test_broken_machinery_fails_with_its_own_kind():
    env = OutOfMachinery()
    boundary.reset(env, TASK, A)
    failed = boundary.step(env, "a")
    assert failed == Failed("engine", "MachineryError: no answer from the engine")
