"""Chains of tool calls: what is refused, the spaces, the contract."""

from __future__ import annotations

import pytest

from sao_gym.envs.tool_use import ToolUse
from sao_gym.errors import InputError
from sao_gym.testing import check_environment


def reset(env, seed=0, **concept):
    return env.reset(seed=seed, options={"concept": concept})


@pytest.mark.parametrize(
    ("concept", "message"),
    [
        ({"maping": "ABCDEF"}, "did you mean 'mapping'"),
        ({"argument_offset": 1}, "no effect without `argument: true`"),
        ({"answer_offset": 1}, "no effect without `final_answer: true`"),
        ({"mapping": "ABCDE"}, "each of the 6 kinds"),
        ({"mapping": list("ABCDEF")}, "each of the 6 kinds"),
        ({"mapping": "ABCDEG"}, "names G; the tools are A..F"),
        ({"lengths": [0, 3]}, r"1\.\.16"),
        ({"lengths": [1, 17]}, r"1\.\.16"),
        ({"lengths": [3, 2]}, "low <= high"),
        ({"lengths": 3}, "low, high"),
        ({"lengths": [1.5, 2]}, "whole number"),
        ({"lengths": [True, 2]}, "whole number"),
        ({"lengths": {0: 1}}, r"1\.\.16"),
        ({"lengths": {"x": 1}}, "whole number"),
        ({"lengths": {1: -1}}, ">= 0"),
        ({"lengths": {1: float("nan")}}, ">= 0"),
        ({"lengths": {1: float("inf")}}, ">= 0"),
        ({"lengths": {1: "1"}}, ">= 0"),
        ({"lengths": {1: 0}}, "above 0"),
        ({"lengths": {}}, "above 0"),
    ],
)
def test_a_wrong_concept_is_refused(concept, message):
    with pytest.raises(InputError, match=message):
        reset(ToolUse(), 0, **concept)


@pytest.mark.parametrize("offset", [0.5, -1, 10, "1", None, True, float("nan"), float("inf")])
def test_a_wrong_offset_is_refused(offset):
    with pytest.raises(InputError, match=r"argument_offset must be a whole number in 0\.\.9"):
        reset(ToolUse(argument=True), 0, argument_offset=offset)


def test_a_whole_float_is_a_whole_number():
    _, info = reset(ToolUse(argument=True), 0, argument_offset=2.0)
    assert info["concept"]["argument_offset"] == 2.0


@pytest.mark.parametrize(
    "params", [{"kinds": 0}, {"kinds": 27}, {"tools": 1}, {"tools": 27}, {"extra_calls": -1}]
)
def test_wrong_sizes_are_refused(params):
    with pytest.raises(InputError, match=next(iter(params))):
        ToolUse(**params)


def test_fewer_tools_than_kinds_serve_several():
    env = ToolUse(kinds=5, tools=2)
    assert reset(env)[1]["concept"]["mapping"] == "ABABA"


@pytest.mark.parametrize(
    ("params", "observed", "said"),
    [
        ({}, set("abcdef0123456789:>!"), set("ABCDEF")),
        ({"argument": True}, set("abcdef0123456789:>!"), set("ABCDEF0123456789")),
        ({"final_answer": True}, set("abcdef0123456789:>!="), set("ABCDEF0123456789")),
        (
            {"argument": True, "final_answer": True},
            set("abcdef0123456789:>!="),
            set("ABCDEF0123456789="),
        ),
    ],
)
def test_the_spaces_hold_exactly_the_symbols_in_use(params, observed, said):
    env = ToolUse(**params)
    assert env.observation_space.character_set == observed
    assert env.action_space.character_set == said


@pytest.mark.parametrize(
    ("params", "concepts"),
    [
        ({}, [{}, {"mapping": "BACDEF"}, {"lengths": {4: 1, 8: 2}}]),
        ({"kinds": 26, "tools": 26, "extra_calls": 0}, [{}, {"lengths": [16, 16]}]),
        (
            {"argument": True, "final_answer": True},
            [{}, {"mapping": "BACDEF", "argument_offset": 3}, {"answer_offset": 5}],
        ),
    ],
)
def test_the_contract_holds(params, concepts):
    rules = check_environment(lambda: ToolUse(**params), concepts=concepts)
    assert {
        "reference scores one",
        "wrong actions score zero",
        "concept can change inside an episode",
        "late score agrees with reward",
    } <= set(rules)
