"""Importers and the commands about tasks."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from repo_tasks import FAULTY, RIGHT, TESTS, file, harbor, patch, size_task

from sao_gym.errors import InputError
from sao_gym.events import EnvironmentStepped
from sao_gym.repo.import_harbor import copied
from sao_gym.repo.importers import import_harbor, import_swebench
from sao_gym.repo.record import record
from sao_gym.repo.store import load_admission, load_tasks, save_task
from sao_gym.repo.task import Verdict
from sao_gym.run import main
from sao_gym.sandboxes.process import ProcessSandbox
from sao_gym.tree import Patch

LINE = {
    "instance_id": "a__b-1",
    "problem_statement": "text",
    "patch": "diff",
    "test_patch": "diff",
    "FAIL_TO_PASS": '["tests/t.py::test_a"]',
    "PASS_TO_PASS": [],
    "image": "no-such-image",
}


@pytest.fixture(scope="module")
def sandbox():
    made = ProcessSandbox()
    yield made
    made.close()


COPIES = "FROM python:3\nWORKDIR /app\nCOPY size ./size\n"


def without(name: str) -> dict:
    return {key: value for key, value in LINE.items() if key != name}


def test_every_bad_line_is_named_by_its_number(sandbox, tmp_path) -> None:
    lines = [
        ("{", "not JSON"),
        ("[1]", "not an object"),
        ("", ""),
        *((json.dumps(without(name)), f"no field '{name}'") for name in ("patch", "FAIL_TO_PASS")),
        (json.dumps(LINE | {"FAIL_TO_PASS": "[]"}), "FAIL_TO_PASS is empty"),
        (json.dumps(LINE | {"FAIL_TO_PASS": "test_a"}), "neither a list nor JSON"),
        (json.dumps(LINE | {"PASS_TO_PASS": [1]}), "PASS_TO_PASS is not a list of test names"),
        (json.dumps(without("image")), "no field 'image'"),
        (json.dumps(LINE | {"FAIL_TO_PASS": ["test_a"]}), "no field 'eval_script', and its test"),
        (b"\xff\xfe".decode("latin-1"), "not JSON"),
        (json.dumps(LINE), "no-such-image"),
    ]
    path = tmp_path / "tasks.jsonl"
    path.write_text("\n".join(line for line, _ in lines) + "\n", encoding="latin-1")
    found = {one.where: one for one in import_swebench(path, sandbox)}
    for number, (line, why) in enumerate(lines, 1):
        where = f"{path}, line {number}"
        if line:
            assert found[where].task is None
            assert why in found[where].why
            assert "\n" not in found[where].why
        else:
            assert where not in found


def test_a_file_that_is_not_there_is_named(sandbox, tmp_path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        list(import_swebench(tmp_path / "none.jsonl", sandbox))


def test_a_harbor_task_becomes_a_task(sandbox, tmp_path) -> None:
    (found,) = import_harbor(harbor(tmp_path / "larger"), sandbox)
    assert found.why == ""
    task = found.task
    assert task.id == "larger"
    assert task.instruction == "# Larger\n\nIt is the smaller one.\n"
    assert task.tree == {
        "size/__init__.py": file(""),
        "size/core.py": file(FAULTY),
        "note.txt": file("a note\n"),
    }
    assert task.gold == Patch({"size/core.py": file(RIGHT)}, ())
    assert task.fail_to_pass == (f"{TESTS}::test_larger",)
    assert task.pass_to_pass == (f"{TESTS}::test_equal",)
    assert (task.runner, task.seconds) == ("pytest", 20.0)
    assert (task.image, task.root) == ("base", None)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"task.toml": "x = ["}, "task.toml: "),
        ({"instruction.md": None}, "no instruction.md"),
        ({"environment/Dockerfile": None}, "no Dockerfile"),
        ({"environment/Dockerfile": "WORKDIR /app\n"}, "no FROM"),
        ({"environment/Dockerfile": "FROM me/mine:1\n"}, "'FROM me/mine:1' needs an image"),
        ({"environment/Dockerfile": "FROM python:3\nRUN make\n"}, "'RUN make' needs a build"),
        ({"environment/Dockerfile": "FROM python:3\nWORKDIR /app\nCOPY size /etc\n"}, "outside"),
        ({"environment/Dockerfile": "FROM python:3\nWORKDIR /app\nCOPY ../tests .\n"}, "outside"),
        (
            {"environment/Dockerfile": "FROM python:3\nWORKDIR /app\nCOPY --chown=a b .\n"},
            "goes without",
        ),
        (
            {"environment/Dockerfile": "FROM python:3\nWORKDIR $APP\n"},
            "'WORKDIR $APP' needs a build",
        ),
        ({"environment/docker-compose.yaml": "x"}, "services are not supported"),
        ({"task.toml": '[environment]\ndocker_image = "x:1"\n'}, "docker_image 'x:1' needs Docker"),
        ({"task.toml": "environment = 1\n"}, "'environment' is no table"),
        *(
            ({"task.toml": f"[verifier]\ntimeout_sec = {number}\n"}, "timeout_sec is no number")
            for number in ('"1"', "true", "nan", "inf", "-1", "0", "1" + "0" * 400)
        ),
        ({"task.toml": "x = " + "1" * 5000}, "task.toml: "),
        ({"task.toml": "x = " + "[" * 5000}, "task.toml: "),
        ({"environment/Dockerfile": COPIES + "COPY x /app/../etc/x\n"}, "outside"),
        ({"environment/Dockerfile": COPIES + "COPY x ../x\n"}, "outside"),
        ({"environment/Dockerfile": COPIES + 'COPY "x .\n'}, "No closing quotation"),
        ({"environment/Dockerfile": COPIES + "COPY it's .\n"}, "No closing quotation"),
        ({"environment/Dockerfile": COPIES + "COPY x\0 .\n"}, "Dockerfile is no text"),
        ({"environment/Dockerfile": COPIES + f"COPY {'x' * 300} .\n"}, "cannot be read"),
        ({"steps/one/instruction.md": "x"}, "several steps"),
        ({"tests/test_size.py": "open('/app/size/core.py')\n"}, "sandbox has no folder /app"),
        ({"solution/solve.sh": "cd /app\n"}, "sandbox has no folder /app"),
        ({"instruction.md": "Mend /app/size/core.py.\n"}, "sandbox has no folder /app"),
        ({"environment/note.txt": "see /app.\n"}, "sandbox has no folder /app"),
        ({"solution/solve.sh": "sh /solution/x\n"}, "sandbox has no folder /solution"),
        ({"tests/test_size.py": "open('/tests/x')\n"}, "tests/test_size.py names /tests, which"),
        ({"tests/conftest.py": "X = '/solution'\n"}, "tests/conftest.py names /solution, which"),
        ({"tests/test_size.py": None}, "no pytest files"),
        ({"solution/solve.sh": None}, "no solution/solve.sh"),
        ({"solution/solve.sh": "echo broken >&2; exit 3\n"}, "exit code 3 (broken)"),
        ({"solution/solve.sh": "true\n"}, "makes no test pass"),
    ],
)
def test_what_is_not_supported_is_refused_in_one_line(sandbox, tmp_path, changes, why) -> None:
    (found,) = import_harbor(harbor(tmp_path / "x", **changes), sandbox)
    assert found.task is None
    assert why in found.why
    assert "\n" not in found.why


@pytest.mark.parametrize(
    ("to", "path"),
    [
        ("./a/../note.txt", "note.txt"),
        ("/app/a/../b/./note.txt", "b/note.txt"),
        ("/srv/../app/note.txt", "note.txt"),
        ("a/..", "x"),
        ("a/.", "a/x"),
        ("a.", "a."),
        (".", "x"),
    ],
)
def test_where_a_copied_file_comes_to_lie(tmp_path, to: str, path: str) -> None:
    text = f"{COPIES}COPY x {to}\n"
    folder = harbor(tmp_path, **{"environment/Dockerfile": text, "environment/x": "1"})
    start = copied(folder)
    assert start.workdir == "/app"
    assert start.tree == {
        "size/__init__.py": file(""),
        "size/core.py": file(FAULTY),
        path: file("1"),
    }


def test_one_bad_task_does_not_end_the_import_of_the_others(sandbox, tmp_path) -> None:
    harbor(tmp_path / "a", **{"environment/Dockerfile": COPIES + 'COPY "x .\n'})
    harbor(tmp_path / "b", **{"environment/Dockerfile": COPIES + "COPY loop .\n"})
    (tmp_path / "b/environment/loop").symlink_to("loop")
    harbor(tmp_path / "c", **{"environment/Dockerfile": COPIES + f"COPY {'x' * 300} .\n"})
    harbor(tmp_path / "d", **{"environment/Dockerfile": COPIES + "COPY .git x\n"})
    (tmp_path / "d/environment/.git").write_text("gitdir: elsewhere\n")
    found = list(import_harbor(tmp_path, sandbox))
    assert [bool(one.why) for one in found] == [True, True, True, False]
    assert "no such file" in found[1].why
    assert found[3].task.tree["x"] == file("gitdir: elsewhere\n")


def run(*arguments: str):
    return CliRunner().invoke(main, [*map(str, arguments)])


def test_tasks_are_imported_and_checked_by_command(tmp_path) -> None:
    harbor(tmp_path / "in" / "good")
    harbor(tmp_path / "in" / "bad", **{"solution/solve.sh": "true\n"})
    out = tmp_path / "out"
    done = run("tasks", "import", tmp_path / "in", "--out", out, "--sandbox", "process")
    assert done.exit_code == 2
    assert "1 imported" in done.output
    assert f"{tmp_path / 'in' / 'bad'}: its solution makes no test pass" in done.output
    assert [task.id for task in load_tasks(out)] == ["good"]
    again = run("tasks", "check", out, "--times", "1", "--sandbox", "process", "--json")
    assert again.exit_code == 0, again.output
    told = json.loads(again.stdout)
    assert told == [
        {
            "task": "good",
            "admitted": True,
            "why": "",
            "flake_rate": 0.0,
            "gold": [True],
            "empty": [False],
        }
    ]
    assert load_admission(out / "good").admitted


def test_a_quarantined_task_is_shown_and_the_exit_code_tells(tmp_path) -> None:
    save_task(size_task(), tmp_path)
    save_task(size_task(id="broken", gold=patch(size__core=FAULTY)), tmp_path)
    done = run("tasks", "check", tmp_path, "--times", "1", "--sandbox", "process")
    assert done.exit_code == 2
    assert "1 of 2 quarantined" in done.output
    rows = {line.split()[0]: line for line in done.output.splitlines() if line.strip()}
    assert "admitted" in rows["size"]
    assert "quarantined" in rows["broken"]
    assert load_admission(tmp_path / "broken").why.startswith("gold resolved 0 of 1 times")


def test_a_folder_without_tasks_is_wrong_input(tmp_path) -> None:
    done = run("tasks", "check", tmp_path, "--sandbox", "process")
    assert (done.exit_code, done.output.count("\n")) == (2, 1)
    assert "no tasks here" in done.output


@pytest.fixture
def run_of(script, record_run, tmp_path):
    """A run directory with these records, and a folder with the task."""
    save_task(size_task(), tmp_path / "tasks")

    def write(*kept):
        script.change("A")
        for one in kept:
            rollout = script.start()
            step = {"observation": "", "reward": 0.0, "terminated": True, "truncated": False}
            script.say(EnvironmentStepped(rollout=rollout, turn=1, seconds=0.0, record=one, **step))
        script.end()
        return record_run(script)

    return write


GOOD = Verdict(resolved=True, passed=(), failed=(), missing=())
BAD = Verdict(resolved=False, passed=(), failed=(), missing=())


def test_regrade_agrees_with_a_right_log(run_of, tmp_path) -> None:
    task = size_task()
    where = run_of(record("size", task.gold, GOOD), record("size", Patch({}, ()), BAD))
    done = run("regrade", where, "--tasks", tmp_path / "tasks", "--sandbox", "process")
    assert done.exit_code == 0, done.output
    assert "2 fixes, 1 resolved then, 1 now; 0 differ, 0 could not be judged" in done.output


def test_regrade_tells_what_differs(run_of, tmp_path) -> None:
    task = size_task()
    where = run_of(record("size", task.gold, BAD), record("size", Patch({}, ()), GOOD))
    arguments = ("regrade", where, "--tasks", tmp_path / "tasks", "--sandbox", "process")
    done = run(*arguments)
    assert done.exit_code == 6
    assert "rollout 0: size: not resolved -> resolved" in done.output
    assert "rollout 1: size: resolved -> not resolved 1 of 2 failed" in done.output
    told = json.loads(run(*arguments, "--json").stdout)
    assert (told["fixes"], told["differ"], told["unjudged"]) == (2, 2, 0)


def test_regrade_of_a_run_without_fixes_or_of_unknown_tasks(run_of, tmp_path) -> None:
    where = run_of(record("other", Patch({}, ()), GOOD))
    done = run("regrade", where, "--tasks", tmp_path / "tasks", "--sandbox", "process")
    assert done.exit_code == 2
    assert "1 of 1 could not be judged: unknown task" in done.output


def test_regrade_without_stored_fixes(run_of, tmp_path) -> None:
    done = run("regrade", run_of(), "--tasks", tmp_path / "tasks", "--sandbox", "process")
    assert done.exit_code == 2
    assert "no fix is stored" in done.output
