"""The grader's public suite on each sandbox, and that its cases are worth something."""

from __future__ import annotations

import hmac
import json
import os

import pytest
from repo_tasks import KINDS, file, opened

from sao_gym.repo import carry, grade, suite, tamper, tree_cases
from sao_gym.repo.carry import Carried
from sao_gym.repo.fast import FastGrader
from sao_gym.sandbox import BoxSpec
from sao_gym.sandboxes.process import ProcessSandbox
from sao_gym.tree import Patch, apply

CASES = suite.cases()


WHOLE = bool(os.environ.get("CI"))
"""Docker takes minutes for all cases: outside of CI a sample of them runs there."""


@pytest.fixture(scope="module", params=KINDS)
def sandbox(request):
    made = opened(request.param)
    yield made
    made.close()


@pytest.mark.parametrize("name", CASES)
def test_case(sandbox, name: str) -> None:
    if sandbox.name == "docker" and not WHOLE and list(CASES).index(name) % 5:
        pytest.skip("one case in five on Docker; CI=true runs all")
    assert CASES[name](sandbox) == ""


def test_every_case_has_a_name_of_its_own() -> None:
    names = [case.name for case in tamper.CASES]
    assert len(names) == len(set(names))
    for wanted in (
        *("conftest hook", "same-path test file", "forged output", "forged report"),
        *("weakened assertion", "sitecustomize", ".pth file", "PYTHONPATH", "patched runner"),
        *("pytest plugin by entry point", "symlinked test", "time-of-check race", "future commit"),
    ):
        assert wanted in names
    assert set(tree_cases.patches()) >= {
        *("line endings", "no final newline", "binary", "rename", "modes", "symlinks"),
        *("odd names", "encodings", "untracked and ignored files", "submodule", "huge file"),
    }


def test_the_fast_grader_is_cheated_by_none_and_stays_usable(sandbox) -> None:
    task = tamper.task("functions")
    with FastGrader(sandbox) as grader:
        for case in tamper.CASES:
            if "functions" in case.runners:
                assert not grader.grade(task, case.patch).resolved, case.name
                assert grader.grade(task, task.gold).resolved, case.name


def all_of_it(task, fix):
    """A grader that carries over whatever the agent made."""
    made = apply({**task.tree, **task.tests}, fix)
    return Carried(made, ())


def wrong(names) -> list[str]:
    box = ProcessSandbox()
    try:
        return [name for name in names if CASES[name](box)]
    finally:
        box.close()


def test_the_cases_see_a_grader_that_carries_tests_over(monkeypatch) -> None:
    monkeypatch.setattr(grade, "carry", all_of_it)
    names = [f"tamper/functions/{n}" for n in ("same-path test file", "weakened assertion")]
    names.append("tamper/pytest/same-path test file")
    assert wrong([*names, "tamper/functions/honest fix"]) == names


def test_the_cases_see_a_runner_that_trusts_exit_codes(monkeypatch) -> None:
    text = grade.source(grade.runner_functions).decode()
    told = 'if status == 0 and bytes(said) == b"R" + token:'
    assert told in text
    naive = text.replace(told, "if status == 0:").encode()
    real = grade.source
    monkeypatch.setattr(
        grade, "source", lambda module: naive if module is grade.runner_functions else real(module)
    )
    names = [f"tamper/functions/{n}" for n in ("exit at import", "hard exit in the test")]
    assert wrong([*names, "tamper/functions/no fix"]) == names


def test_the_cases_see_a_runner_that_calls_any_test_function(monkeypatch) -> None:
    text = grade.source(grade.runner_functions).decode()
    assert "if original is not None and (" in text
    naive = text.replace("if original is not None and (", "if False and (").encode()
    real = grade.source
    monkeypatch.setattr(
        grade, "source", lambda module: naive if module is grade.runner_functions else real(module)
    )
    names = [f"tamper/functions/{n}" for n in ("swapped test", "swapped code of the test")]
    assert wrong([*names, "tamper/functions/no fix"]) == names


BLIND = ("patched runner", "swapped test", "swapped code of the test", "registered plugin")


def test_the_cases_see_a_pytest_runner_without_its_guard(monkeypatch) -> None:
    text = grade.source(grade.runner_pytest).decode()
    assert text.count("if wrong and not found:") >= 1
    blind = text.replace("found.append(wrong)", "pass").encode()
    real = grade.source
    monkeypatch.setattr(
        grade, "source", lambda module: blind if module is grade.runner_pytest else real(module)
    )
    names = [f"tamper/pytest/{n}" for n in BLIND]
    assert wrong([*names, "tamper/pytest/no fix"]) == names


def test_a_report_counts_only_with_the_key_of_its_run() -> None:
    body = json.dumps({"outcomes": {}, "timed_out": False})
    signature = hmac.new(b"right", body.encode(), "sha256").hexdigest()
    sandbox = ProcessSandbox()
    box = sandbox.start(BoxSpec())
    try:
        for said, key, counts in (
            ({"body": body, "signature": signature}, b"right", True),
            ({"body": body, "signature": signature}, b"other", False),
            ({"body": body.replace("false", "true"), "signature": signature}, b"right", False),
            ({"body": body}, b"right", False),
            ([], b"right", False),
        ):
            box.put({"report/report.json": file(json.dumps(said))})
            assert (grade._report(box, key) is not None) is counts
    finally:
        sandbox.close()


@pytest.mark.parametrize("change", ["bytes", "mode", "lost", "more"])
def test_the_tree_cases_see_another_tree(monkeypatch, change: str) -> None:
    def careless(task, fix):
        made = dict(carry.carry(task, fix).tree)
        path = "pkg/tool.sh"
        if change == "bytes":
            made[path] = file(made[path].data.replace(b"\n", b"\r\n"), True)
        elif change == "mode":
            made[path] = file(made[path].data)
        elif change == "lost":
            del made[path]
        else:
            made["pkg/extra"] = file("")
        return Carried(made, ())

    monkeypatch.setattr(grade, "carry", careless)
    assert wrong(["tree/modes"]) == ["tree/modes"]


def test_a_submodule_leaves_no_git_folder() -> None:
    task = tree_cases.task(Patch({}, ()))
    fix = Patch({"vendor/lib/.git": file("gitdir: ../../.git/modules/lib\n")}, ())
    assert carry.carry(task, fix).dropped == ("vendor/lib/.git",)
