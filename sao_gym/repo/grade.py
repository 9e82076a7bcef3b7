"""The sealed grader: a fix, a fresh box, a verdict.

    carry (source files only)  ->  fresh box from the pristine image  ->  signed report  ->  Verdict

A test counts only if the report tells that it passed; one that is missing has failed. What the
tests print is never read. If the tests do not end in time, or end their own runner, that is the
agent's doing and the verdict is "not resolved". Machinery that breaks raises MachineryError: to
tell the one from the other, a run without a report is repeated once, and then followed by a run of
nothing, each in a new box.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypeAlias

from sao_gym.errors import MachineryError
from sao_gym.repo import runner_functions, runner_parent, runner_pytest, swe
from sao_gym.repo.carry import carry
from sao_gym.repo.task import RepoTask, Verdict
from sao_gym.sandbox import WORK, Box, BoxSpec, Ran, Sandbox
from sao_gym.tree import Entry, Patch, Tree

EMPTY = Patch({}, ())
"""The fix that changes nothing."""

EACH = 10.0
"""Seconds that one test of the runner `functions` may take, unless `extra["test_seconds"]` says."""

TEST_FILES = ("test_*.py", "*_test.py")

_TREE, _GRADER, _OUT = "tree", "grader", "report"
_GRACE = 10.0  # what the runner may take besides the tests
_PERHAPS_THE_TESTS = ("box", "disk", "too_large")
"""Kinds of failure that code under test can bring about; the probe tells."""
_INI = f"{_GRADER}/pytest.ini"

Outcomes: TypeAlias = Mapping[str, tuple[bool, str]]
"""Name of a test -> whether it passed, and if not, why."""


def grade(task: RepoTask, fix: Tree | Patch, *, sandbox: Sandbox) -> Verdict:
    """Judge what an agent made of `task.tree`, in a fresh box.

    Raises:
        MachineryError: the machinery broke, not the fix.
        InputError: a SWE-bench instance, and the package `swebench` is not installed.
    """
    carried = carry(task, fix)
    if task.runner == "swebench":
        return swe.grade(task, carried.tree, sandbox=sandbox)
    return verdict(task, run_tests(task, carried.tree, sandbox=sandbox))


def run_tests(
    task: RepoTask, tree: Tree, *, sandbox: Sandbox, everything: bool = False
) -> dict[str, Any]:
    """The runner's answer for a tree as it is: `outcomes`, `timed_out`, `tampered`, `why`.

    `everything`: all tests that are found, not only the expected ones.
    """
    plan = plan_of(task, everything=everything)
    why, late = "the tests ended their own runner", False
    for _ in range(2):  # a box can be lost by chance; twice, with the same tree, it is the tree
        try:
            answer, ran = _run(task, tree, plan, sandbox)
        except MachineryError as error:
            if error.kind not in _PERHAPS_THE_TESTS:
                raise
            why = _line(f"the fix or its tests broke the box: {error}")
            continue
        if answer is None:
            late = ran.timed_out  # the runner keeps the time limit of the tests by itself
            continue
        if "error" in answer:
            raise MachineryError("grader", f"{task.id}: {answer['error']}")
        return answer
    _probe(task, sandbox)
    if late:
        return {"outcomes": {}, "timed_out": True}
    return {"outcomes": {}, "tampered": True, "why": why}


def plan_of(task: RepoTask, *, everything: bool = False) -> dict[str, Any]:
    """What the runner in the box is asked to do."""
    expected = {*task.fail_to_pass, *task.pass_to_pass}
    files = [p for p, e in task.tests.items() if e.kind == "file" and is_test_file(p)]
    if not everything:
        named = {name.partition("::")[0] for name in expected}
        files = [path for path in files if path in named]
    return {
        "root": task.root or _TREE,
        "modules": sorted(files),
        "watched": sorted(task.tests),
        "only": None if everything else sorted(expected),
        "seconds": task.seconds,
        "each": float(task.extra.get("test_seconds", EACH)),
        "ini": _INI,
        "arguments": list(task.extra.get("pytest_arguments", ())),
        "plugins": list(task.extra.get("pytest_plugins", ())),
    }


def box_of(task: RepoTask) -> BoxSpec:
    """The box that a task's agent works in, and its tests run in."""
    if task.root is None:
        return BoxSpec(image=task.image)
    return BoxSpec(image=task.image, empty=(task.root,), limits=swe.LIMITS)


def is_test_file(path: str) -> bool:
    """Whether a runner looks for tests in it."""
    return any(fnmatchcase(path.rpartition("/")[2], pattern) for pattern in TEST_FILES)


def verdict(task: RepoTask, answer: Mapping[str, Any]) -> Verdict:
    """What the expected tests did, by the runner's answer."""
    outcomes: Outcomes = answer["outcomes"]
    expected = tuple(dict.fromkeys((*task.fail_to_pass, *task.pass_to_pass)))
    sound = not answer.get("tampered")
    passed = tuple(n for n in expected if sound and n in outcomes and outcomes[n][0])
    missing = tuple(n for n in expected if n not in outcomes)
    failed = tuple(n for n in expected if n not in passed and n not in missing)
    ended = not answer.get("timed_out")
    resolved = bool(expected) and len(passed) == len(expected) and ended
    return Verdict(
        resolved=resolved,
        passed=passed,
        failed=failed,
        missing=missing,
        detail="" if resolved else _detail(task, answer, failed, missing),
    )


def _detail(
    task: RepoTask, answer: Mapping[str, Any], failed: Sequence[str], missing: Sequence[str]
) -> str:
    if answer.get("timed_out"):
        return f"tests did not end within {task.seconds:g} s"
    if answer.get("tampered"):
        return _line(answer.get("why") or "a test file was changed while the tests ran")
    total = len({*task.fail_to_pass, *task.pass_to_pass})
    if failed:
        why = answer["outcomes"][failed[0]][1]
        return _line(f"{len(failed) + len(missing)} of {total} failed: {failed[0]}: {why}")
    if missing:
        return _line(f"{len(missing)} of {total} were never seen: {missing[0]}")
    return "the task names no expected test"


def _line(text: str) -> str:
    """One line of printable text, whatever the tests said."""
    shown = "".join(c if c.isprintable() else " " for c in text)
    return " ".join(shown.encode("utf-8", "replace").decode().split())[:300]


def _run(
    task: RepoTask, tree: Tree, plan: dict[str, Any], sandbox: Sandbox
) -> tuple[dict[str, Any] | None, Ran]:
    """The signed answer, None if there is none; and how the runner ended."""
    key = secrets.token_bytes(32)
    small = task.runner == "functions"
    worker = "runner_functions.py" if small else "runner_pytest.py"
    isolated = ["-I", "-S", "-B"] if small else ["-I", "-B"]
    command = ["python3", *isolated, f"{_GRADER}/runner_parent.py", f"{_GRADER}/{worker}", _OUT]
    order = json.dumps({"key": key.hex(), "plan": plan}).encode()
    if task.setup:
        command = ["bash", "-c", f'{task.setup}\nexec "$@"', "bash", *command]
    box = sandbox.start(box_of(task))
    try:
        box.put(_grader(task))
        box.put(tree, at=task.root or f"{WORK}/{_TREE}")
        ran = box.run(command, seconds=task.seconds + _GRACE, stdin=order)
        return _report(box, key), ran
    finally:
        box.close()


def _grader(task: RepoTask) -> dict[str, Entry]:
    """The grader's own files, and an empty folder for the report."""
    modules = (runner_parent, runner_functions, runner_pytest)
    files = {f"{_GRADER}/{m.__name__.rpartition('.')[2]}.py": source(m) for m in modules}
    ini = str(task.extra.get("pytest_ini", "[pytest]\n")).encode()
    return {
        **{path: Entry("file", data) for path, data in files.items()},
        _INI: Entry("file", ini),
        _OUT: Entry("dir"),
    }


def source(module: Any) -> bytes:
    """The text of a runner."""
    return Path(module.__file__).read_bytes()


def _report(box: Box, key: bytes) -> dict[str, Any] | None:
    try:
        written = box.get(f"{WORK}/{_OUT}", limit=32 << 20)[runner_parent.REPORT].data
        outer = json.loads(written)
        body = outer["body"].encode()
        signature = hmac.new(key, body, hashlib.sha256).hexdigest()
        if not hmac.compare_digest(signature, str(outer["signature"])):
            return None
        answer: dict[str, Any] = json.loads(body)
    except MachineryError as error:
        if error.kind in ("too_large", "missing"):
            return None  # the tests filled or removed the folder
        raise
    except (KeyError, ValueError, TypeError, AttributeError):
        return None
    return None if "lost" in answer else answer


def _probe(task: RepoTask, sandbox: Sandbox) -> None:
    """Raise if the image or the sandbox cannot even run no tests at all."""
    plan = plan_of(task) | {"modules": [], "watched": [], "arguments": []}
    answer, ran = _run(task, {}, plan, sandbox)
    if answer is not None and "error" not in answer:
        return
    said = ran.output.decode("utf-8", "replace").splitlines()[-1:]
    needs = "python3" if task.runner == "functions" else "python3 and pytest"
    raise MachineryError(
        "image", _line(f"image {task.image}: no test run; it needs {needs} ({''.join(said)})")
    )
