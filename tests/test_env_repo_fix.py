"""Repositories with a fault: the contract, the tools by hand, determinism, processes that end."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from gymnasium.error import ResetNeeded

from sao_gym import boundary, plain
from sao_gym.envs.repo_fix import RepoFix, bench, family, functions
from sao_gym.errors import InputError, MachineryError
from sao_gym.repo.admission import Admission
from sao_gym.repo.record import patch_from_json, verdict_from_json
from sao_gym.repo.store import save_admission, save_task
from sao_gym.testing import check_environment
from sao_gym.tree import Entry, apply
from sao_gym.types import Concept, Failed, Task

CONCEPTS = [
    {"faults": ["operator", "wrong_variable"], "tools": "rfets"},
    {"faults": {"comparison": 2, "missing_case": 1}, "style": "letters", "tools": "tfers"},
    {"faults": ["swapped_arguments"], "style": "block", "tests": "table"},
    {"faults": ["off_by_one"], "style": "line", "tests": "loop"},
]


def reset(env, seed=0, **concept):
    return env.reset(seed=seed, options={"concept": concept})


def operator_task(env):
    """Seed 1 of the operators: `mul` multiplies, and is the second line of `m.py`."""
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


def test_the_contract_holds_in_full_form():
    concepts = [{}, {"style": "block", "tools": "cat grep replace check done"}]
    check_environment(lambda: RepoFix(form="full"), concepts=concepts, episodes=4)


def test_the_contract_holds_with_partial_credit():
    check_environment(lambda: RepoFix(partial=True), episodes=4, partial_credit=True)


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


def partly(*edits):
    """What `edits` earn on a task where the caller of the faulty `sub` fails too."""
    env = RepoFix(form="full", partial=True)
    seed = next(
        s
        for s in range(500)
        if reset(env, s, faults=["operator"])
        and len(env._task.fail_to_pass) == 2
        and "dbl=" in env._task.tree["m.py"].data.decode()
    )
    reset(env, seed, faults=["operator"])
    for path in ("m.py", "n.py"):
        for number, line in enumerate(env._task.tree.get(path, _NOTHING).data.splitlines(), 1):
            name = line.decode().partition("=")[0]
            if name in edits:
                text = {"sub": "a-b", "dif": "a-b", "rev": "b-a"}.get(name, "None")
                env.step(f"edit {path} {number} {name}=lambda a,b=0:{text}")
    return env.step("submit")[1]


_NOTHING = Entry("file")


def test_partial_credit_is_the_share_of_failing_tests_that_pass():
    assert partly() == 0.0
    assert partly("dif", "rev") == 0.5
    assert partly("sub") == 1.0
    assert partly("dif", "rev", "dbl") == 0.0  # it breaks another one


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


def test_the_full_form_by_hand():
    env = RepoFix(form="full", calls=30)
    opening, _ = operator_task(env)
    assert "Mend mul: test_mul fails." in opening
    assert "\nm.py\n" in opening
    assert "edit PATH LINE[-LAST] NEW-LINES\n" in opening
    assert env.step("read m.py 2")[0] == "2 mul=lambda a,b:a+b\n"
    assert "m.py:2:mul=lambda a,b:a+b\n" in env.step("search mul=")[0]
    assert env.step("read m.py 99")[0] == "error: m.py has 2 lines\n"
    assert env.step("read x.py")[0] == "error: no file x.py\n"
    assert env.step("look m.py")[0].startswith("error: no tool 'look'; there are read,")
    assert env.step("edit m.py two x")[0] == "error: edit PATH LINE[-LAST] NEW-LINES\n"
    assert env.step("edit ../m.py 1 x")[0] == "error: no path ../m.py\n"
    assert env.step("edit m.py 2 def mul(a, b):\n    return a * b")[0].startswith("m.py:2:def")
    assert env.step("read m.py 3")[0] == "3     return a * b\n"
    ran, *_, info = env.step("run")
    assert ran.endswith(" passed, 0 failed\n")
    assert info["retry"] is False
    assert env.step("edit test_m.py 1 raise SystemExit")[0] != ""
    ran, *_, info = env.step("run")
    assert "FAILED test_m.py: SystemExit\n" in ran
    assert info["retry"] is True
    # what the agent made of a test file is not graded
    assert env.step("submit")[:2] == ("resolved\n", 1.0)


def test_code_that_hangs_or_leaves_is_not_resolved_and_hurts_nobody():
    env = RepoFix(form="full")
    operator_task(env)
    env._task = env._task.__class__(**{**_fields(env._task), "seconds": 1.0})
    env.step("edit m.py 2 while True: pass")
    assert "the tests did not end within 1 s" in env.step("run")[0]
    env.step("edit m.py 2 import os; os._exit(0)")
    assert "ended their process, with exit code 0" in env.step("run")[0]
    assert env.step("submit")[:2] == ("not resolved\n", 0.0)
    operator_task(env)
    env.step("edit m.py 2 mul=lambda a,b:a*b")
    assert env.step("run")[0].endswith(" passed, 0 failed\n")


def _fields(task):
    return {name: getattr(task, name) for name in task.__dataclass_fields__}


def test_a_sandbox_that_breaks_fails_the_rollout(monkeypatch):
    def broken(*_):
        raise MachineryError("engine", "gone")

    monkeypatch.setattr(bench.Bench, "run", broken)
    env = RepoFix()
    concept = Concept(id="A", params={"faults": ["operator"]})
    boundary.reset(env, Task(index=0, seed=OPERATOR_SEED), concept)
    assert boundary.step(env, "t") == Failed("engine", "MachineryError: gone")


def test_processes_end_with_the_one_that_started_them():
    code = (
        EPISODES
        + "\nfrom sao_gym.envs.repo_fix import bench\n"
        + (
            "shared = bench.shared_bench('auto')\n"
            "warm = shared._free.get()\n"
            "print(warm._process.pid, warm._folder)\n"
            "shared._free.put(warm)\n"
        )
    )
    done = subprocess.run([sys.executable, "-c", code, "compact"], capture_output=True, check=True)
    pid, folder = done.stdout.decode().splitlines()[-1].split()
    assert not os.path.exists(folder)
    assert not os.path.exists(f"/proc/{pid}")


def test_imported_tasks_are_drawn_and_mended(tmp_path):
    tasks = [family.task_of(f"{kind}-line-table-0000002a") for kind in functions.KINDS[:2]]
    for task in tasks:
        save_task(task, tmp_path)
    factory = lambda: RepoFix(form="full", tasks=str(tmp_path))  # noqa: E731
    check_environment(factory, concepts=[{}], episodes=3)
    env = factory()
    shown = {reset(env, seed)[0] for seed in range(20)}
    assert len(shown) == 2
    folder = save_task(family.task_of("operator-line-table-0000002b"), tmp_path / "more")
    save_admission(Admission(task="x", admitted=False, why="flaky"), folder)
    with pytest.raises(InputError, match="no admitted tasks"):
        RepoFix(form="full", tasks=str(tmp_path / "more"))
    with pytest.raises(InputError, match="no effect with `tasks`"):
        reset(env, style="line")
    with pytest.raises(InputError, match="compact calls are for the family"):
        RepoFix(tasks=str(tmp_path))
    with pytest.raises(InputError, match="no admitted tasks"):
        RepoFix(form="full", tasks=str(tmp_path / "nothing"))


def test_commands_run_in_a_box_of_their_own():
    env = RepoFix(form="bash", sandbox="process", calls=6, seconds=20.0)
    opening, _ = operator_task(env)
    assert "One block of shell commands a turn; submit alone when done." in opening
    assert env.step("sed -n 2p m.py")[0] == "mul=lambda a,b:a+b\n"
    assert env.step("false; echo in 0.03s; false")[0] == "in <duration>\n[exit code 1]\n"
    assert env.step("git log 2>/dev/null")[0] == "[exit code 128]\n"
    assert env.step(" \n")[0] == "error: no commands\n"
    assert env.get_state() is None
    assert env.step("sed -i '2s/a+b/a*b/' m.py")[0] == "[exit code 0]\n"
    shown, reward, terminated, _, info = env.step("submit\n")
    assert (shown, reward, terminated) == ("resolved\n", 1.0, True)
    assert list(info["record"]["patch"]["written"]) == ["m.py"]
    bench.shared_bench("process").close()


def test_the_recorded_fix_is_followed_in_a_box():
    env = RepoFix(form="bash", sandbox="process")
    reset(env, 3)
    assert "submit" in env.valid_actions()
    env.step(env.reference_action())
    assert env.reference_action() == "submit"
    assert env.step("submit")[1] == 1.0
    bench.shared_bench("process").close()
