"""Repositories with a fault: full calls, shell commands, imported tasks, broken machinery."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest
from sandbox_kinds import owned_by

from sao_gym import boundary
from sao_gym.envs.repo_fix import RepoFix, bench, family, functions, terminal
from sao_gym.errors import InputError, MachineryError
from sao_gym.repo.admission import Admission
from sao_gym.repo.store import save_admission, save_task
from sao_gym.testing import check_environment
from sao_gym.tree import Entry
from sao_gym.types import Concept, Failed, Task


def reset(env, seed=0, **concept):
    return env.reset(seed=seed, options={"concept": concept})


def operator_task(env):
    """`mul` adds, on the second line of `m.py`."""
    return reset(env, OPERATOR_SEED, faults=["operator"])


OPERATOR_SEED = next(
    seed
    for seed in range(100)
    if reset(env := RepoFix(), seed, faults=["operator"])[0] == "mul\n"
    and b"\nmul=lambda a,b:a+b\n" in env._task.tree["m.py"].data
    and env._task.tree["m.py"].data.count(b"\n") == 2
)


@pytest.fixture(scope="module", autouse=True)
def nothing_left():
    yield
    for kind in ("auto", "process"):
        bench.shared_bench(kind).close()


def test_the_contract_holds_in_full_form():
    concepts = [{}, {"style": "block", "tools": "cat grep replace check done"}]
    check_environment(lambda: RepoFix(form="full"), concepts=concepts, episodes=4)


def test_the_contract_holds_with_partial_credit():
    check_environment(lambda: RepoFix(partial=True), episodes=4, partial_credit=True)


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

    monkeypatch.setattr(bench.Tests, "run", broken)
    env = RepoFix()
    concept = Concept(id="A", params={"faults": ["operator"]})
    boundary.reset(env, Task(index=0, seed=OPERATOR_SEED), concept)
    assert boundary.step(env, "t") == Failed("engine", "MachineryError: gone")


@pytest.mark.parametrize("boxes", ["warm", "fresh"])
def test_every_box_is_closed(boxes):
    before = owned_by(os.getpid())
    shared = bench.Bench("process", boxes)
    task = family.task_of("operator-lambda-assert-00000001")
    tests = [shared.tests(task) for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        said = list(pool.map(lambda one: one.run(task.tree), [*tests, *tests]))
    assert all(outcomes == said[0] for outcomes in said)
    assert len(owned_by(os.getpid())) > len(before)
    for one in tests:
        one.close()
    shared.close()
    shared.close()
    assert owned_by(os.getpid()) == before


def test_an_episode_in_boxes_of_its_own():
    """`n` test runs and a verdict take two boxes, and say what warm ones say."""
    said = []
    for boxes in ("warm", "fresh"):
        env = RepoFix(sandbox="process", boxes=boxes)
        operator_task(env)
        calls = ("t", "e2-", "t", "e2*", "t", "s")
        said.append([env.step(call)[:4] for call in calls])
        bench.shared_bench("process", boxes).close()
    assert said[0] == said[1]
    assert said[0][-1] == ("P", 1.0, True, False)


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
    assert env.step("git log --all --format='%an %ad %s'")[0] == (
        "agent Sat Jan 1 <time> 2000 +0000 The task\n"
    )
    assert env.step(" \n")[0] == "error: no commands\n"
    assert env.get_state() is None
    assert env.step("sed -i '2s/a+b/a*b/' m.py")[0] == "[exit code 0]\n"
    shown, reward, terminated, _, info = env.step("submit\n")
    assert (shown, reward, terminated) == ("resolved\n", 1.0, True)
    assert list(info["record"]["patch"]["written"]) == ["m.py"]
    bench.shared_bench("process").close()


def test_a_tree_that_grew_too_large_cannot_be_submitted(monkeypatch):
    monkeypatch.setattr(terminal, "_ADDED", 1000)
    env = RepoFix(form="bash", sandbox="process", calls=3)
    operator_task(env)
    env.step("head -c 100000 /dev/zero > big")
    said = "error: the repository holds too much; remove what it does not need\n"
    assert env.step("submit")[:3] == (said, 0.0, False)
    _, reward, terminated, truncated, info = env.step("true")
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert info["record"]["patch"]["written"] == {}
    bench.shared_bench("process").close()


def test_a_task_that_cannot_be_set_up_leaves_no_box(monkeypatch):
    monkeypatch.setattr(terminal, "_HISTORY", "echo no git here; exit 3")
    env = RepoFix(form="bash", sandbox="process")
    with pytest.raises(MachineryError, match="no repository: no git here"):
        operator_task(env)
    assert bench.shared_bench("process")._pool._lent == set()
    bench.shared_bench("process").close()


def test_the_recorded_fix_is_followed_in_a_box():
    env = RepoFix(form="bash", sandbox="process")
    reset(env, 3)
    assert "submit" in env.valid_actions()
    env.step(env.reference_action())
    assert env.reference_action() == "submit"
    assert env.step("submit")[1] == 1.0
    bench.shared_bench("process").close()
