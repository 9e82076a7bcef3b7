"""Maths tasks with drifting operators: expected answers are computed here, by other means."""

from __future__ import annotations

import re

import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from hypothesis import given, settings
from hypothesis import strategies as st

from sao_gym.envs.operators import MEANINGS, Operators
from sao_gym.errors import InputError
from sao_gym.testing import check_environment

EXPECTED = {
    "add": lambda a, b: sum((a, b)),
    "sub": lambda a, b: a + -b,
    "mul": lambda a, b: sum([a] * b),
    "max": lambda a, b: sorted((a, b))[1],
    "min": lambda a, b: sorted((a, b))[0],
    "first": lambda a, b: (a, b)[0],
    "second": lambda a, b: (a, b)[1],
    "distance": lambda a, b: max(a, b) - min(a, b),
}


def ask(env, seed=0, **concept):
    prompt, info = env.reset(seed=seed, options={"concept": concept})
    return prompt, info


def parts(prompt, base=10):
    a, symbol, b = re.fullmatch(r"(\d+)(\D)(\d+)=", prompt).groups()
    return int(a, base), symbol, int(b, base)


def one(meaning, **params):
    """A world of one symbol with one meaning."""
    return Operators(symbols="@", meanings=[meaning], **params)


def test_every_meaning_is_tested():
    assert set(EXPECTED) == set(MEANINGS)


@settings(max_examples=60, deadline=None)
@given(
    meaning=st.sampled_from(sorted(EXPECTED)),
    seed=st.integers(0, 10**6),
    base=st.integers(2, 10),
    modulus=st.one_of(st.none(), st.integers(1, 999)),
    offset=st.integers(-50, 50),
    backwards=st.booleans(),
)
def test_the_right_answer_is_right(meaning, seed, base, modulus, offset, backwards):
    env = one(meaning)
    concept = {
        "base": base,
        "modulus": modulus,
        "answer_offset": offset,
        "answer": "reversed" if backwards else "plain",
        "operands": [0, 99],
    }
    a, _, b = parts(ask(env, seed, **concept)[0], base)
    value = EXPECTED[meaning](a, b) + offset
    if modulus is not None:
        value = np.mod(value, modulus)
    written = np.base_repr(abs(int(value)), base)
    expected = ("-" if value < 0 else "") + (written[::-1] if backwards else written)
    assert env.reference_action() == expected
    assert expected in env.action_space
    assert env.step(expected)[:4] == (">", 1.0, True, False)


@pytest.mark.parametrize(
    ("concept", "action"),
    [
        # 12 and 12 in a world of addition.
        ({"modulus": None}, "24"),
        ({"modulus": 10}, "4"),
        ({"modulus": 7}, "3"),
        ({"modulus": None, "answer": "reversed"}, "42"),
        ({"modulus": None, "answer_offset": -25}, "-1"),
        ({"modulus": 10, "answer_offset": -25}, "9"),
        ({"modulus": None, "base": 2}, "11000"),
        ({"modulus": None, "base": 2, "answer": "reversed"}, "00011"),
        ({"modulus": None, "base": 3}, "220"),
        ({"modulus": 1}, "0"),
    ],
)
def test_answers_by_hand(concept, action):
    env = one("add")
    prompt, _ = ask(env, 0, operands=[12, 12], **concept)
    assert prompt == {2: "1100@1100=", 3: "110@110="}.get(concept.get("base", 10), "12@12=")
    assert env.step(action)[1:3] == (1.0, True)


def test_a_wrong_answer_is_told_and_may_be_tried_again():
    env = one("add", tries=3, retry_reward=0.25)
    concept = {"operands": [2, 2]}
    ask(env, 0, **concept)
    assert env.step("5")[:4] == ("!", 0.0, False, False)
    *_, info = env.step("")
    assert info["retry"] is True
    observation, reward, terminated, truncated, info = env.step("4")
    assert (observation, reward, terminated, truncated) == (">", 0.25, True, False)
    assert info["retry"] is False
    ask(env, 0, **concept)
    assert [env.step("5")[2] for _ in range(3)] == [False, False, True]


def test_the_last_wrong_try_ends_without_reward():
    env = one("add", tries=1)
    ask(env, 0, operands=[2, 2])
    observation, reward, terminated, truncated, info = env.step("5")
    assert (observation, reward, terminated, truncated) == ("!", 0.0, True, False)
    assert info["retry"] is False
    with pytest.raises(ResetNeeded):
        env.step("4")


@pytest.mark.parametrize("action", ["04", " 4", "4 ", "+4", "four", "4=", "\u0664", ""])
def test_malformed_answers_are_wrong(action):
    env = one("add")
    ask(env, 0, operands=[2, 2])
    assert env.step(action)[0] == "!"


def test_only_the_symbols_named_are_asked():
    env = Operators()
    asked = {parts(ask(env, s, operators={"#": "add", "%": "max"})[0])[1] for s in range(100)}
    assert asked == {"#", "%"}
    assert {parts(ask(env, s)[0])[1] for s in range(100)} == set("@#&%")


def test_the_order_of_the_mapping_does_not_matter():
    one, other = Operators(), Operators()
    for seed in range(50):
        one_way = ask(one, seed, operators={"@": "add", "#": "max"})[0]
        assert ask(other, seed, operators={"#": "max", "@": "add"})[0] == one_way


def test_questions_do_not_depend_on_the_meanings():
    env = Operators()
    swapped = {"@": "sub", "#": "add", "&": "min", "%": "max"}
    for seed in range(50):
        before = ask(env, seed)[0]
        assert ask(env, seed, operators=swapped, answer_offset=3)[0] == before
        a, symbol, b = parts(before)
        assert env.reference_action() == str((EXPECTED[swapped[symbol]](a, b) + 3) % 10)


def test_operands_cover_their_range_evenly():
    env = Operators()
    seen = [parts(ask(env, s, operands=[3, 6])[0])[::2] for s in range(2000)]
    for column in zip(*seen, strict=True):
        assert set(column) == {3, 4, 5, 6}
        assert abs(np.mean(column) - 4.5) < 5 * (1.25 / 2000) ** 0.5


def test_valid_actions_are_what_the_symbol_could_mean():
    env = Operators(symbols="@", meanings=["add", "sub", "max", "min"])
    for seed in range(200):
        a, _, b = parts(ask(env, seed, operands=[0, 9])[0])
        expected = {str((a + b) % 10), str((a - b) % 10), str(max(a, b)), str(min(a, b))}
        valid = env.valid_actions()
        assert expected <= set(valid)
        assert len(valid) == max(2, len(expected))
        assert env.reference_action() in valid


def test_set_concept_acts_from_the_next_try_on():
    env = Operators(symbols="@#", meanings=["add", "max"])
    prompt, _ = ask(env, 0, operands=[4, 4], operators={"@": "add"})
    assert prompt == "4@4="
    env.step("0")
    env.set_concept({"operators": {"@": "max"}})
    assert env.reference_action() == "4"
    # A symbol that is no longer asked has its default meaning.
    env.set_concept({"operators": {"#": "max"}})
    assert env.reference_action() == "8"
    with pytest.raises(InputError):
        env.set_concept({"operators": {"@": "min"}})
    assert env.reference_action() == "8"
    _, reward, _, _, info = env.step("8")
    assert reward == 0.5
    assert info["concept"]["operators"] == {"#": "max"}


def test_late_score_by_hand():
    env = Operators(symbols="@", meanings=["add", "max"], tries=3, retry_reward=0.5)
    ask(env, 0, operands=[4, 4], operators={"@": "add"})
    for answer in ("4", "1", "8"):
        env.step(answer)
    assert env.score({"operators": {"@": "add"}}) == 0.5
    assert env.score({"operators": {"@": "max"}}) == 1.0
    assert env.score({"answer_offset": 3}) == 0.5
    assert env.score({"answer_offset": 5}) == 0.0
    with pytest.raises(InputError):
        env.score({"operator": {}})


@pytest.mark.parametrize(
    ("concept", "message"),
    [
        ({"operator": {}}, "did you mean 'operators'"),
        ({"operators": {}}, "symbol: meaning"),
        ({"operators": "add"}, "symbol: meaning"),
        ({"operators": {"?": "add"}}, "unknown symbol '\\?'"),
        ({"operators": {"@": "ad"}}, "did you mean 'add'"),
        ({"operators": {"@": "mul"}}, "unknown meaning 'mul'"),
        ({"operators": {"@": 3}}, "unknown meaning 3"),
        ({"operators": {3: "add"}}, "unknown symbol 3"),
        ({"operators": {"": "add"}}, "unknown symbol ''"),
        ({"operators": {"@#": "add"}}, "unknown symbol '@#'"),
        ({"operands": [0, 1000]}, r"0\.\.999"),
        ({"operands": [2, 1]}, "low <= high"),
        ({"modulus": 0}, r"1\.\.999"),
        ({"modulus": "10"}, "whole number"),
        ({"base": 11}, r"2\.\.10"),
        ({"base": None}, "whole number"),
        ({"answer": "backwards"}, "plain, reversed"),
        ({"answer_offset": 0.5}, "whole number"),
    ],
)
def test_a_wrong_concept_is_refused(concept, message):
    with pytest.raises(InputError, match=message):
        ask(Operators(), 0, **concept)


@pytest.mark.parametrize(
    "params",
    [
        {"symbols": ""},
        {"symbols": "@@"},
        {"symbols": "@1"},
        {"symbols": "="},
        {"symbols": "-"},
        {"meanings": []},
        {"meanings": ["ad"]},
        {"tries": 0},
        {"retry_reward": 1.5},
        {"retry_reward": -0.1},
        {"retry_reward": float("nan")},
    ],
)
def test_wrong_parameters_are_refused(params):
    with pytest.raises(InputError):
        Operators(**params)


@pytest.mark.parametrize(
    ("params", "concepts"),
    [
        ({}, [{}, {"operators": {"@": "max", "#": "min"}}, {"answer": "reversed"}]),
        (
            {"symbols": "?", "meanings": sorted(MEANINGS), "tries": 1},
            [{"modulus": None, "operands": [0, 999], "base": 2, "answer_offset": -999}],
        ),
    ],
)
def test_the_contract_holds(params, concepts):
    check_environment(lambda: Operators(**params), concepts=concepts)
