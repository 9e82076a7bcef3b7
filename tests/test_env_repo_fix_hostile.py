"""Code under test that writes what it likes wherever it can, and test files that are none."""

from __future__ import annotations

import contextlib

import pytest
from repo_tasks import ASKED, FAULTY, KEPT, RIGHT, TESTS, file, patch, size_task

from sao_gym.envs.repo_fix.bench import Bench, Outcome
from sao_gym.repo import grade as graders
from sao_gym.repo import runner_pytest
from sao_gym.repo.fast import FastGrader
from sao_gym.repo.grade import grade, source
from sao_gym.sandboxes.process import ProcessSandbox

ENDED = "the tests ended their process, with exit code 0"


def writing(payload: str, rest: str = "") -> str:
    """A module that writes bytes, an expression, to every descriptor it has."""
    return (
        f"import os\ndata = {payload}\nfor fd in range(3, 64):\n"
        f"    try:\n        os.write(fd, data)\n    except OSError:\n        pass\n{rest}"
    )


LINES = (
    "b'[' * 200_000",
    "b'{\"a\":' * 200_000",
    "b'1' * 100_000",
    "b'\\xff\\xfe\\0'",
    "b'[1]'",
    "b'null'",
    "b'{\"token\": 1}'",
    "b'\"' + b'\\\\ud800\"'",
)


@pytest.fixture(scope="module")
def sandbox():
    """Without isolation: the payloads are ours."""
    with contextlib.closing(ProcessSandbox()) as made:
        yield made


@pytest.mark.parametrize("line", LINES)
def test_the_grader_passes_over_what_a_fix_writes(sandbox, line: str) -> None:
    task, payload = size_task("pytest"), f"b'\\n' + {line} + b'\\n'"
    found = grade(task, patch(size__core=writing(payload, FAULTY)), sandbox=sandbox)
    assert (found.passed, found.failed) == ((KEPT,), (ASKED,))
    assert grade(task, patch(size__core=writing(payload, RIGHT)), sandbox=sandbox).resolved


def test_more_than_the_grader_reads_is_the_fixs_doing(sandbox, monkeypatch) -> None:
    whole = graders.source(runner_pytest)
    less = whole.replace(b"_MOST = 64 << 20", b"_MOST = 1 << 20")
    assert less != whole
    monkeypatch.setattr(graders, "source", lambda m: less if m is runner_pytest else source(m))
    flood = patch(size__core=writing("b'x' * (1 << 21)", RIGHT))
    found = grade(size_task("pytest"), flood, sandbox=sandbox)
    assert (found.resolved, found.detail) == (
        False,
        "pytest was left before its end, with status 0",
    )


def test_an_error_without_a_name_is_one(sandbox) -> None:
    nameless = "def larger(a, b):\n    raise type('', (Exception,), {})\n"
    for runner in ("functions", "pytest"):
        found = grade(size_task(runner), patch(size__core=nameless), sandbox=sandbox)
        assert found.failed == (ASKED, KEPT)


def test_the_runner_of_functions_reads_no_report(sandbox) -> None:
    bad = patch(size__core=writing("b'R' + b'[' * 200_000", FAULTY))
    assert grade(size_task(), bad, sandbox=sandbox).failed == (ASKED, KEPT)
    with FastGrader(sandbox) as fast:
        assert fast.grade(size_task(), bad).failed == (ASKED, KEPT)


@pytest.fixture(scope="module")
def runs():
    with contextlib.closing(Bench("process")) as made:
        yield made


def outcomes(runs: Bench, runner: str, text: str, **more: str) -> list[Outcome]:
    """What an agent is told of its tests, whose file is `text`."""
    task = size_task(runner)
    files = {name.replace("__", "/") + ".py": file(body) for name, body in more.items()}
    tree = {**task.tree, TESTS: file(text), **files}
    with contextlib.closing(runs.tests(task)) as tests:
        return tests.run(tree)


@pytest.mark.parametrize(
    "payload",
    [
        *LINES,
        *("b'5'", "b'{}'", "b'[[1]]'", "b'[[\"a\", true]]'", "b'[[1, 2, 3]]'", "b'[null]'"),
        *("b'[[\"a\", true, null]]'", 'b\'[["a", 1, ""]]\'', "b'[\"abc\"]'", "b''"),
    ],
)
def test_a_report_of_another_shape_is_none(runs, payload: str) -> None:
    text = "import size.core\n\n\ndef test_it():\n    pass\n"
    found = outcomes(runs, "functions", text, size__core=writing(payload, "os._exit(0)\n"))
    assert found == [Outcome("", False, ENDED)]


@pytest.mark.parametrize("runner", ["functions", "pytest"])
@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("import nothing_here\n", "ModuleNotFoundError: No module named 'nothing_here'"),
        ("def (:\n", "SyntaxError: invalid syntax"),
        ("1 / 0\n", "ZeroDivisionError: division by zero"),
        ("raise SystemExit(3)\n", "SystemExit: 3"),
        ("try:\n    1 / 0\nexcept Exception as e:\n    raise KeyError(1) from e\n", "KeyError: 1"),
        ("x = " + "-" * 100_000 + "1\n", ""),
    ],
)
def test_a_test_file_that_cannot_be_run_is_named(runs, runner: str, text: str, why: str) -> None:
    ((name, passed, said),) = outcomes(runs, runner, text)
    assert (name, passed) == (TESTS, False)
    assert said.startswith(why)


def test_the_other_files_are_run_nevertheless(runs) -> None:
    more = {"tests__test_a": "def test_one(): pass\n", "tests__test_z": "def test_two(): pass\n"}
    found = outcomes(runs, "pytest", "import nothing_here\n", **more)
    assert {(one.test, one.passed) for one in found} == {
        (TESTS, False),
        ("tests/test_a.py::test_one", True),
        ("tests/test_z.py::test_two", True),
    }


def test_the_grader_hears_of_expected_tests_alone(sandbox) -> None:
    task = size_task("pytest", fail_to_pass=(TESTS,))
    found = grade(task, patch(size__core="import nothing_here\n"), sandbox=sandbox)
    assert (found.failed, found.missing) == ((), (TESTS, KEPT))


def test_files_without_tests_say_so(runs) -> None:
    for runner in ("functions", "pytest"):
        assert outcomes(runs, runner, "x = 1\n") == [Outcome("", False, "there are no tests")]
