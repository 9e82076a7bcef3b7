"""Repositories with a fault: the contract, the tools by hand, determinism, processes that end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import sandbox_kinds
from gymnasium.error import ResetNeeded
from sandbox_kinds import KINDS, owned_by, usable

from sao_gym import plain
from sao_gym.envs.repo_fix import RepoFix, bench, family
from sao_gym.errors import InputError
from sao_gym.repo.record import patch_from_json, verdict_from_json
from sao_gym.testing import check_environment
from sao_gym.tree import apply

CONCEPTS = [
    {"faults": ["operator", "wrong_variable"], "tools": "rfets"},
    {"faults": {"comparison": 2, "missing_case": 1}, "style": "letters", "tools": "tfers"},
    {"faults": ["swapped_arguments"], "style": "block", "tests": "table"},
    {"faults": ["off_by_one"], "style": "line", "tests": "loop"},
]


def reset(env, seed=0, **concept):
    return env.reset(seed=seed, options={"concept": concept})


def operator_task(env):
    """`mul` adds, on the second line of `m.py`."""
    return reset(env, OPERATOR_SEED, faults=["operator"])


OPERATOR_SEED = next(
    seed
    for seed in range(100)
    if reset(env := RepoFix(), seed, faults=["operator"])[0] == "mul\n"
    and env._task.extra["place"].path == "m.py"
    and env._task.extra["place"].line == 2
    and "a+b" in env._task.tree["m.py"].data.decode().splitlines()[1]
)


@pytest.fixture(scope="module", autouse=True)
def nothing_left():
    yield
    bench.shared_bench("auto").close()


def test_the_contract_holds_in_compact_form():
    check_environment(RepoFix, concepts=CONCEPTS, episodes=8)


def test_an_episode_by_hand():
    env = RepoFix()
    prompt, info = operator_task(env)
    assert prompt == "mul\n"
    assert info["concept"]["faults"] == ["operator"]
    assert info["concept"]["tools"] == "rfets"
    assert env.step("f")[:4] == ("2mul=lambda a,b:a+b\n", 0.0, False, False)
    assert env.step("r2")[0] == "mul=lambda a,b:a+b\n"
    assert env.step("e2-")[0] == "."
    shown, *_, info = env.step("t")
    assert shown.startswith("Fmul(")
    assert info["retry"] is True
    shown, *_, info = env.step("e2<")
    assert (shown, info["retry"]) == ("!", True)
    assert env.step("e2*")[0] == "."
    assert env.step("r2")[0] == "mul=lambda a,b:a*b\n"  # from a+b, not from a-b
    shown, *_, info = env.step("t")
    assert (shown, info["retry"]) == ("P", False)
    shown, reward, terminated, truncated, info = env.step("s")
    assert (shown, reward, terminated, truncated) == ("P", 1.0, True, False)
    kept = json.loads(json.dumps(info["record"]))
    assert kept["task"].startswith("operator-lambda-assert-")
    assert verdict_from_json(kept["verdict"]).resolved
    task = family.task_of(kept["task"])
    assert apply(task.tree, patch_from_json(kept["patch"])) == apply(task.tree, task.gold)
    with pytest.raises(ResetNeeded):
        env.step("s")


@pytest.mark.parametrize("wrong", ["", "x", "e", "e9+", "e2", "r", "r0", "f2", "e2?", "e2++"])
def test_a_call_that_means_nothing_may_be_tried_again(wrong):
    env = RepoFix()
    operator_task(env)
    shown, reward, terminated, truncated, info = env.step(wrong)
    if wrong in ("e2", "f2", "e2?"):  # takes an edit back; surplus ignored; adds a case
        assert shown != "!"
        return
    assert (shown, reward, terminated, truncated, info["retry"]) == ("!", 0.0, False, False, True)


def test_an_edit_without_a_symbol_takes_the_first_back():
    env = RepoFix()
    operator_task(env)
    assert [env.step(call)[0] for call in ("e2*", "e2", "r2")] == [".", ".", "mul=lambda a,b:a+b\n"]


def test_valid_calls_differ_from_the_right_one_in_one_part():
    env = RepoFix()
    operator_task(env)
    assert env.reference_action() == "f"
    assert set(env.valid_actions()) == {"f", "t", "s", "r2", "e1*", "e3*"}
    env.step("f")
    assert env.reference_action() == "e2*"
    symbols = {f"e2{symbol}" for symbol in "+-*%ab?"}  # no number, comparison, call or bound there
    others = {"e1*", "e3*", "r2*", "f2*", "t2*", "s2*"}
    assert set(env.valid_actions()) == symbols | others
    env.step("e1%")
    env.step("e2*")
    assert env.reference_action() == "e1"  # damage on another line is taken back
    env.step("e1")
    assert env.reference_action() == "t"
    env.step("t")
    assert env.reference_action() == "s"
    env.step("e2*")
    assert env.reference_action() == "t"  # tests that passed say nothing of a tree edited since


def test_another_symbol_that_happens_to_be_the_fix_is_not_offered():
    env = RepoFix()
    seed = next(s for s in range(99) if reset(env, s, faults=["off_by_one"])[0] == "sec\n")
    reset(env, seed, faults=["off_by_one"])
    env.step("f")
    assert env.reference_action()[2] == "^"
    assert {call[2] for call in env.valid_actions() if call[:2] == env.reference_action()[:2]} == {
        *"23ab^_?"  # 1 would do as well
    }


def test_an_unmended_fault_is_not_resolved():
    env = RepoFix()
    operator_task(env)
    shown, reward, terminated, _, info = env.step("s")
    assert (shown, reward, terminated) == ("F", 0.0, True)
    verdict = verdict_from_json(info["record"]["verdict"])
    assert [name.partition("::")[2] for name in verdict.failed] == ["test_mul"]


def test_running_out_of_calls_is_unresolved_and_truncated():
    env = RepoFix(calls=3)
    operator_task(env)
    env.step("f")
    env.step("e2*")
    shown, reward, terminated, truncated, info = env.step("t")
    assert (shown, reward, terminated, truncated) == ("P", 0.0, False, True)
    assert info["record"]["verdict"] is None
    assert list(info["record"]["patch"]["written"]) == ["m.py"]


def test_the_schema_can_be_renamed_in_mid_episode():
    env = RepoFix()
    operator_task(env)
    env.set_concept({"faults": ["comparison"], "tools": "abcde"})
    assert env.step("f")[0] == "!"
    assert env.step("b")[0] == "2mul=lambda a,b:a+b\n"
    assert env.step("c2*")[0] == "."
    assert env.step("d")[0] == "P"
    assert env.step("e")[1] == 1.0


@pytest.mark.parametrize(
    ("concept", "message"),
    [
        ({"faults": ["operatr"]}, "did you mean 'operator'"),
        ({"faults": []}, "at least one weight"),
        ({"faults": {"operator": -1}}, "must be >= 0"),
        ({"faults": {"operator": float("nan")}}, "must be >= 0"),
        ({"faults": "operator"}, "a list of kinds"),
        ({"style": "lines"}, "did you mean 'line'"),
        ({"tests": 3}, "no 3"),
        ({"tools": "rfet"}, "five different letters"),
        ({"tools": "rfett"}, "five different letters"),
        ({"tools": 5}, "five different letters"),
        ({"tool": "rfets"}, "did you mean 'tools'"),
    ],
)
def test_a_wrong_concept_is_refused(concept, message):
    env = RepoFix()
    with pytest.raises(InputError, match=message):
        reset(env, **concept)
    assert reset(env)[1]["concept"]["tools"] == "rfets"


def test_how_faults_are_written_does_not_change_the_task():
    one, other = RepoFix(), RepoFix()
    reset(one, 5, faults=["operator", "comparison"])
    reset(other, 5, faults={"comparison": 3.0, "operator": 3})
    assert one._task == other._task


def test_the_same_seed_gives_the_same_package_under_another_schema():
    one, other = RepoFix(), RepoFix()
    reset(one, 5)
    reset(other, 5, tools="vwxyz")
    assert one._task == other._task


def test_an_episode_can_be_saved_and_continued():
    one, other = RepoFix(), RepoFix()
    operator_task(one)
    one.step("f")
    one.step("e2*")
    operator_task(other)
    other.set_state(plain.loads(plain.dumps(one.get_state())))
    assert other.reference_action() == "t"
    one.step("t")
    one.set_concept({"faults": ["operator"], "tools": "abcde"})
    renamed = RepoFix()
    operator_task(renamed)
    renamed.set_state(plain.loads(plain.dumps(one.get_state())))
    assert renamed.reference_action() == "e"
    assert renamed.step("c2+")[4]["concept"]["tools"] == "abcde"
    assert renamed.reference_action() == "c2*"
    assert [other.step(call)[0] for call in ("r2", "t", "s")] == ["mul=lambda a,b:a*b\n", "P", "P"]


EPISODES = """
import json, sys
from sao_gym import rng
from sao_gym.envs.repo_fix import RepoFix
env = RepoFix(form=sys.argv[1], calls=8)
seen = []
for seed in range(12):
    observation, info = env.reset(seed=seed)
    seen.append(observation)
    ended = False
    while not ended:
        choices = env.valid_actions()
        turn = len(seen)
        action = choices[int(rng.uniform(seed, "play", turn) * len(choices))]
        if turn % 2:
            action = env.reference_action()
        observation, reward, terminated, truncated, info = env.step(action)
        ended = terminated or truncated
        seen.append([action, observation, reward, info])
print(json.dumps(seen))
"""


@pytest.mark.parametrize("form", ["compact", "full"])
def test_episodes_are_the_same_in_every_process(form):
    said = [
        subprocess.run(
            [sys.executable, "-c", EPISODES, form],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("0", "4711")
    ]
    assert said[0] == said[1]
    assert b"resolved" in said[0]


@pytest.mark.parametrize("kind", KINDS)
def test_boxes_end_with_the_process_that_started_them(kind):
    usable(kind)
    code = (
        EPISODES.replace("calls=8", f"calls=8, sandbox={kind!r}")
        + "from sandbox_kinds import owned_by\nimport os\nprint(os.getpid(), owned_by(os.getpid()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "compact"],
        env=os.environ | {"PYTHONPATH": str(Path(sandbox_kinds.__file__).parent)},
        capture_output=True,
        check=True,
    )
    pid, _, owned = done.stdout.decode().splitlines()[-1].partition(" ")
    assert owned != "[]"
    assert owned_by(int(pid)) == []
