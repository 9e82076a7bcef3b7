"""Chains of tool calls: rules by hand, common random numbers, drift, late judgement."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from gymnasium.error import ResetNeeded
from hypothesis import given, settings
from hypothesis import strategies as st

from sao_gym.envs.tool_use import ToolUse
from sao_gym.errors import InputError

KINDS = "abcdef"


def reset(env, seed=0, **concept):
    observation, info = env.reset(seed=seed, options={"concept": concept})
    return observation, info


def chain_of(seed, length, **concept):
    """The kinds of a chain, read off by serving it under the identity mapping."""
    env = ToolUse()
    observation, _ = reset(env, seed, lengths=[length, length], **concept)
    kinds = [observation[0]]
    for _ in range(length - 1):
        observation, *_ = env.step(kinds[-1].upper())
        assert observation[0] == ">"
        kinds.append(observation[1])
    return kinds


def test_an_episode_by_hand():
    env = ToolUse()
    mapping = "BACDEF"
    prompt, info = reset(env, 5, mapping=mapping, lengths=[3, 3])
    assert re.fullmatch(r"[a-f]3:", prompt)
    assert info == {"concept": {"mapping": mapping, "lengths": [3, 3]}, "retry": False}

    kind = prompt[0]
    right = mapping[KINDS.index(kind)]
    wrong = "F" if right != "F" else "A"
    assert env.step(wrong)[:4] == ("!" + kind, 0.0, False, False)
    seen = []
    for number in (1, 2, 3):
        observation, reward, terminated, truncated, info = env.step(mapping[KINDS.index(kind)])
        seen.append((observation[0], reward, terminated, truncated, info["retry"]))
        if number < 3:
            assert re.fullmatch(r">[a-f]", observation)
            kind = observation[1]
    assert seen == [(">", 0.0, False, False, False)] * 2 + [(">", 1.0, True, False, False)]
    assert observation == ">"


def test_running_out_of_calls_is_the_tasks_own_end():
    env = ToolUse(extra_calls=2)
    reset(env, 1, lengths=[4, 4])
    answers = [env.step("?") for _ in range(6)]
    assert [a[2] for a in answers] == [False] * 5 + [True]
    assert not any(a[3] for a in answers)
    assert [a[1] for a in answers] == [0.0] * 6
    assert [a[4]["retry"] for a in answers] == [True] * 5 + [False]


def test_every_extra_call_may_be_used_up():
    env = ToolUse(extra_calls=2)
    kinds = chain_of(1, 4)
    reset(env, 1, lengths=[4, 4])
    env.step("?")
    env.step("?")
    *_, last = [env.step(kind.upper()) for kind in kinds]
    assert last[:4] == (">", 1.0, True, False)


def test_no_extra_calls_forgive_nothing():
    env = ToolUse(extra_calls=0)
    kinds = chain_of(2, 2)
    reset(env, 2, lengths=[2, 2])
    env.step("?")
    assert env.step(kinds[0].upper())[1:4] == (0.0, True, False)


@pytest.mark.parametrize("action", ["", "AA", "a", " A", "A ", "\u2603", "Z", "7"])
def test_malformed_actions_are_wrong_calls(action):
    env = ToolUse()
    prompt, _ = reset(env, 3, lengths=[2, 2], mapping="AAAAAA")
    observation, reward, terminated, _, info = env.step(action)
    assert (observation, reward, terminated, info["retry"]) == ("!" + prompt[0], 0.0, False, True)


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10**6), mapping=st.text("ABCDEF", min_size=6, max_size=6))
def test_tasks_do_not_depend_on_the_mapping(seed, mapping):
    env = ToolUse()
    prompt, _ = reset(env, seed, mapping=mapping)
    assert prompt == reset(ToolUse(), seed)[0]
    length = int(prompt[1:-1])
    kinds = chain_of(seed, length)
    shown = [env.step(mapping[KINDS.index(kind)])[0][1] for kind in kinds[:-1]]
    assert [prompt[0], *shown] == kinds


def test_the_quantile_of_the_length_is_common_to_all_mixes():
    env = ToolUse()
    for seed in range(200):
        short = int(reset(env, seed, lengths=[1, 4])[0][1:-1])
        long = int(reset(env, seed, lengths=[1, 8])[0][1:-1])
        assert long in (2 * short - 1, 2 * short)
        fixed = reset(env, seed, lengths={"3": 1})[0]
        assert fixed[0] == reset(env, seed)[0][0]


def test_tasks_after_an_unseeded_reset_are_common_to_all_concepts_too():
    def prompts(**concept):
        env = ToolUse(argument=True)
        reset(env, 3, **concept)
        return [reset(env, None, **concept)[0][:2] for _ in range(20)]

    assert prompts() == prompts(mapping="FEDCBA", lengths={1: 1, 16: 2})


def test_kinds_keys_and_the_final_number_are_drawn_apart():
    env = ToolUse(argument=True, final_answer=True)
    seen = set()
    for seed in range(12000):
        kind, key, *_ = reset(env, seed, lengths=[1, 1])[0]
        seen.add((kind, key, env.step(kind.upper() + key)[0][2]))
    # All 6 x 10 x 10; that one of them is missed by chance has probability 1e-6.
    assert len(seen) == 600


def test_lengths_follow_their_weights():
    env = ToolUse()
    mixed = Counter(reset(env, s, lengths={2: 1, 16: 3, 5: 0})[0][1:-1] for s in range(4000))
    assert set(mixed) == {"2", "16"}
    # Five standard deviations of a share of 3/4 among 4,000.
    assert abs(mixed["16"] / 4000 - 0.75) < 5 * (0.75 * 0.25 / 4000) ** 0.5
    uniform = Counter(reset(env, s)[0][1:-1] for s in range(4000))
    assert set(uniform) == set("12345678")
    assert all(abs(n / 4000 - 1 / 8) < 5 * (7 / 64 / 4000) ** 0.5 for n in uniform.values())


def test_arguments_carry_the_key_by_the_offset():
    env = ToolUse(argument=True)
    for seed in range(50):
        prompt, _ = reset(env, seed, lengths=[12, 12], argument_offset=4)
        assert re.fullmatch(r"[a-f]\d12:", prompt)
        kind, key = prompt[0], int(prompt[1])
        plain, moved = f"{kind.upper()}{key}", f"{kind.upper()}{(key + 4) % 10}"
        assert env.step(plain)[0] == f"!{kind}{key}"
        assert env.step(kind.upper())[0] == f"!{kind}{key}"
        assert re.fullmatch(r">[a-f]\d", env.step(moved)[0])


@pytest.mark.parametrize(("argument", "form"), [(False, "{}"), (True, "={}")])
def test_the_final_answer_by_hand(argument, form):
    env = ToolUse(argument=argument, final_answer=True, extra_calls=1)
    for seed in range(30):
        prompt, _ = reset(env, seed, lengths=[1, 1], answer_offset=7)
        observation, reward, terminated, _, _ = env.step(
            prompt[0].upper() + (prompt[1] if argument else "")
        )
        assert re.fullmatch(r">=\d", observation)
        assert (reward, terminated) == (0.0, False)
        number = int(observation[2])
        assert env.step(form.format(number))[0] == f"!={number}"
        assert env.step(form.format((number + 7) % 10))[:3] == (">", 1.0, True)


def test_a_transposition_breaks_two_kinds_of_six():
    env = ToolUse()
    broken = set()
    for seed in range(100):
        prompt, _ = reset(env, seed, mapping="DBCAEF")
        if env.step(prompt[0].upper())[0][0] == "!":
            broken.add(prompt[0])
    assert broken == {"a", "d"}


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    mapping=st.permutations("ABCDEF").map("".join),
    argument=st.booleans(),
    final_answer=st.booleans(),
    extra=st.integers(0, 4),
)
def test_reference_takes_exactly_the_calls_needed(seed, mapping, argument, final_answer, extra):
    env = ToolUse(argument=argument, final_answer=final_answer, extra_calls=extra)
    prompt, _ = reset(env, seed, mapping=mapping)
    needed = int(prompt[2 if argument else 1 : -1]) + final_answer
    rewards, ended = [], False
    while not ended:
        _, reward, ended, _, _ = env.step(env.reference_action())
        rewards.append(reward)
    assert rewards == [0.0] * (needed - 1) + [1.0]
    reset(env, seed, mapping=mapping)
    calls, ended = 0, False
    while not ended:
        right = env.reference_action()
        wrong = next(a for a in env.valid_actions() if a != right)
        _, reward, ended, _, _ = env.step(wrong)
        calls += 1
        assert reward == 0.0
    assert calls == needed + extra


def test_valid_actions_differ_from_the_right_one_in_one_part():
    env = ToolUse(argument=True, final_answer=True)
    prompt, _ = reset(env, 0, lengths=[1, 1])
    right = prompt[0].upper() + prompt[1]
    valid = env.valid_actions()
    assert len(valid) == 6 + 9
    assert all((action[0] == right[0]) or (action[1] == right[1]) for action in valid)
    env.step(right)
    assert env.valid_actions() == tuple(f"={digit}" for digit in range(10))
    reset(other := ToolUse(kinds=2, tools=3), 0)
    assert other.valid_actions() == ("A", "B", "C")


def test_set_concept_acts_from_the_next_call_on():
    env = ToolUse()
    kind = reset(env, 4, lengths=[2, 2])[0][0]
    env.set_concept({"mapping": "FEDCBA", "lengths": [5, 6]})
    swapped = "FEDCBA"[KINDS.index(kind)]
    assert env.reference_action() == swapped
    assert env.step(kind.upper())[0] == "!" + kind
    observation, _, _, _, info = env.step(swapped)
    assert observation[0] == ">"
    assert info["concept"] == {"mapping": "FEDCBA", "lengths": [5, 6]}
    # The chain itself stays: two questions.
    assert env.step("FEDCBA"[KINDS.index(observation[1])])[1:3] == (1.0, True)


def test_a_refused_concept_changes_nothing():
    env = ToolUse()
    reset(env, 4, mapping="FEDCBA")
    right = env.reference_action()
    for params in ({"mapping": "A"}, {"mapping": "ABCDEF", "lengths": [0, 1]}, {"maping": "A"}):
        with pytest.raises(InputError):
            env.set_concept(params)
        assert env.reference_action() == right
    assert env.step(right)[4]["concept"]["mapping"] == "FEDCBA"


def test_late_score_judges_each_call_for_its_own_question():
    env = ToolUse()
    # A chain of three different kinds, so that each question has a tool of its own.
    seed = next(seed for seed in range(1000) if len(set(chain_of(seed, 3))) == 3)
    kinds = chain_of(seed, 3)
    concept = {"lengths": [3, 3]}
    reset(env, seed, **concept)
    env.step("F" if kinds[0] != "f" else "A")
    for kind in kinds:
        env.step(kind.upper())
    assert env.score(concept) == 1.0
    mapping = list("ABCDEF")
    first = KINDS.index(kinds[0])
    # The first question was also tried with the tool that serves it now: still served.
    mapping[first] = "F" if kinds[0] != "f" else "A"
    assert env.score({"mapping": "".join(mapping)}) == 1.0
    # Any other tool was never tried on it.
    mapping[first] = "B" if kinds[0] != "b" else "C"
    assert env.score({"mapping": "".join(mapping)}) == 0.0
    with pytest.raises(InputError):
        env.score({"maping": "ABCDEF"})


def test_late_score_of_an_incomplete_chain_is_zero():
    env = ToolUse(extra_calls=0)
    kinds = chain_of(11, 3)
    reset(env, 11, lengths=[3, 3])
    for kind in (*kinds[:2], "x"):
        env.step(kind.upper())
    assert env.score({}) == 0.0


def test_changing_what_was_returned_or_given_changes_nothing():
    env = ToolUse()
    lengths = {2: 1.0}
    options = {"concept": {"lengths": lengths}}
    _, info = env.reset(seed=0, options=options)
    info["concept"]["lengths"][3] = 5.0
    info["concept"]["mapping"] = "?"
    lengths[7] = 1.0
    _, _, _, _, info = env.step("?")
    assert info["concept"] == {"mapping": "ABCDEF", "lengths": {2: 1.0}}
    # The changed declaration is read anew, not taken for the one seen last.
    assert env.reset(seed=0, options=options)[1]["concept"]["lengths"] == {2: 1.0, 7: 1.0}


def test_without_options_the_defaults_hold_again():
    env = ToolUse()
    reset(env, 0, mapping="FEDCBA")
    for options in (None, {}, {"concept": {}}, {"concept": None}):
        _, info = env.reset(seed=0, options=options)
        assert info["concept"] == {"mapping": "ABCDEF", "lengths": [1, 8]}


def test_stepping_when_nothing_is_open_is_refused():
    env = ToolUse()
    for call in (lambda: env.step("A"), env.reference_action, env.valid_actions):
        with pytest.raises(ResetNeeded):
            call()
    kind = reset(env, 0, lengths=[1, 1])[0][0]
    env.step(kind.upper())
    with pytest.raises(ResetNeeded):
        env.step("A")
