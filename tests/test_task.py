"""Environments made of one function."""

from __future__ import annotations

import pickle
from typing import Annotated

import gymnasium as gym
import pytest
from gymnasium.error import ResetNeeded

from sao_gym import registry
from sao_gym.errors import InputError
from sao_gym.protocols import LateReward, LiveConcept, ReferenceSolver
from sao_gym.task import task
from sao_gym.testing import check_environment

Size = Annotated[int, "resolved in this module, not in the library's"]


@task(charset="0123456789+=", actions="0123456789", concept={"shift": 0, "weights": {"a": 1}})
def addition(rng, concept, *, largest: Size = 4):
    """Add two digits."""
    a, b = rng.integers(largest + 1, size=2)
    concept["weights"].clear()  # its own copy
    return f"{a}+{b}=", str((a + b + concept["shift"]) % 10)


@task(charset="ab?", concept={"want": "a"}, judge=lambda action, want: action.count(want) / 4)
def letters(rng, concept):
    return "?" * rng.integers(1, 4), concept["want"]


@task(charset="0123456789", concept={"add": 0})
def telling(rng, concept):
    """A task whose prompt says the concept: what was asked cannot be carried over."""
    number = int(rng.integers(5))
    return f"{number}{concept['add']}", str(number + concept["add"])


def ask(env, seed=0, **concept):
    return env.reset(seed=seed, options={"concept": concept})


def answer(prompt, shift=0):
    return str((int(prompt[0]) + int(prompt[2]) + shift) % 10)


def test_a_function_becomes_an_environment_class():
    env = addition()
    assert isinstance(env, gym.Env)
    assert addition.__name__ == "addition"
    assert addition.__doc__ == "Add two digits."
    assert isinstance(env, ReferenceSolver)
    assert isinstance(env, LiveConcept)
    assert isinstance(env, LateReward)
    prompt, info = env.reset(seed=1)
    assert info == {"concept": {"shift": 0, "weights": {"a": 1}}, "retry": False}
    assert env.step(answer(prompt)) == ("", 1.0, True, False, info)


def test_a_wrong_answer_ends_it_with_nothing():
    env = addition()
    prompt, _ = env.reset(seed=1)
    for wrong in (answer(prompt, 1), "", answer(prompt) + " "):
        env.reset(seed=1)
        assert env.step(wrong)[1:4] == (0.0, True, False)


def test_the_concept_reaches_the_function_and_the_draws_stay():
    env = addition()
    for seed in range(20):
        prompt = ask(env, seed)[0]
        assert ask(env, seed, shift=3)[0] == prompt
        assert env.reference_action() == answer(prompt, 3)


def test_keyword_only_arguments_are_the_constructors():
    seen = {int(addition(largest=1).reset(seed=s)[0][0]) for s in range(50)}
    assert seen == {0, 1}
    with pytest.raises(InputError, match="did you mean 'largest'"):
        addition(largst=1)


def test_a_scenario_can_set_them():
    env = registry.construct(addition, params={"largest": 0})
    assert env.reset(seed=0)[0] == "0+0="
    assert registry.params_model(addition).model_fields["param_largest"].default == 4


def test_an_unknown_concept_parameter_is_refused():
    for call in (lambda: ask(addition(), 0, shfit=1), lambda: addition().set_concept({"shfit": 1})):
        with pytest.raises(InputError, match=r"addition: .* did you mean 'shift'"):
            call()


def test_valid_actions_end_otherwise():
    env = addition()
    ask(env, 0)
    assert env.reference_action() in env.valid_actions()
    assert sorted(env.valid_actions()) == list("0123456789")


def test_a_judge_scores_and_knows_no_reference():
    env = letters()
    assert not isinstance(env, ReferenceSolver)
    ask(env, 0)
    assert env.step("aab")[1] == 0.5
    ask(env, 0, want="b")
    assert env.step("aab")[1] == 0.25
    assert env.score({"want": "a"}) == 0.5


def test_late_score_and_live_concept():
    env = addition()
    prompt, _ = ask(env, 3)
    assert env.score({}) == 0.0  # nothing was answered yet
    env.set_concept({"shift": 2})
    assert env.reference_action() == answer(prompt, 2)
    _, reward, _, _, info = env.step(answer(prompt, 2))
    assert (reward, info["concept"]["shift"]) == (1.0, 2)
    assert env.score({}) == 0.0
    assert env.score({"shift": 12}) == 1.0
    ask(env, 3, shift=12)
    assert env.score({"shift": 12}) == 0.0  # the answer before belongs to another episode


def test_a_prompt_that_would_have_been_another_is_not_judged_anew():
    env = telling()
    ask(env, 0)
    right = env.reference_action()
    with pytest.raises(InputError, match="the prompt would have been"):
        env.set_concept({"add": 1})
    assert env.reference_action() == right
    assert env.step(right)[4]["concept"] == {"add": 0}
    with pytest.raises(InputError, match="the prompt would have been"):
        env.score({"add": 1})


def test_stepping_when_nothing_is_open_is_refused():
    env = addition()
    for call in (lambda: env.step("1"), env.reference_action, env.valid_actions):
        with pytest.raises(ResetNeeded):
            call()
    env.reset(seed=0)
    env.step("1")
    with pytest.raises(ResetNeeded):
        env.step("1")


def test_it_can_be_pickled_in_mid_episode():
    env = addition(largest=3)
    prompt, _ = env.reset(seed=4)
    copy = pickle.loads(pickle.dumps(env))
    assert copy.step(answer(prompt))[1] == 1.0


@pytest.mark.parametrize(
    ("factory", "concepts"),
    [
        (addition, [{}, {"shift": 2}]),
        (letters, [{}, {"want": "b"}]),
        (telling, [{}, {"add": 2}]),
    ],
)
def test_the_contract_holds(factory, concepts):
    check_environment(factory, concepts=concepts)
