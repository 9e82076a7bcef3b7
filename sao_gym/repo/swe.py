"""SWE-bench instances: their own script in their own image, judged by their own harness.

The script of the instance runs in a fresh box; `swebench`'s `make_test_spec` and `get_eval_report`
read its output, so the verdict is theirs. What is carried over is ours: source files only, so a
`conftest.py` of the agent never reaches them. Their parsers read what the tests print, as
everywhere in that benchmark; such verdicts are not sealed against code that prints results.

Needs the package `swebench` (5.x) and Docker: the instance's image is run as it was made, by root
and with all of it writable.
"""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from sao_gym.errors import InputError, MachineryError
from sao_gym.repo.task import RepoTask, Verdict
from sao_gym.sandbox import Box, BoxLimits, BoxSpec, Sandbox
from sao_gym.tree import Tree, between

TESTBED = "/testbed"
"""Where the repository lies in the images of SWE-bench."""

CONDA = PurePosixPath("/opt", "miniconda3", "bin", "activate")
ACTIVATE = f"if [ -r {CONDA} ]; then . {CONDA} testbed; fi"
"""The Python of the repository, in the images of SWE-bench."""
LIMITS = BoxLimits(memory=4 << 30, processes=1024, disk=2 << 30, output=32 << 20, cpus=2.0)


def as_made(image: str) -> BoxSpec:
    """An image of somebody else, run as it was made."""
    return BoxSpec(image=image, limits=LIMITS, whole=True)


def harness() -> Any:
    """The two modules of `swebench` that judge. Raises InputError if they cannot be imported."""
    try:
        grading = importlib.import_module("swebench.harness.grading")
        utils = importlib.import_module("swebench.harness.utils")
    except ImportError as error:
        raise InputError(
            f"SWE-bench instances need the package swebench 5.x (pip install swebench): {error}"
        ) from None
    if not hasattr(utils, "make_test_spec"):
        raise InputError("the installed swebench is too old; install 5.x")
    return grading, utils


def grade(task: RepoTask, tree: Tree, *, sandbox: Sandbox) -> Verdict:
    """The harness's verdict on a carried tree.

    Raises:
        InputError: `swebench` is missing, or the instance lacks one of its fields.
        MachineryError: the image or the sandbox broke.
    """
    grading, utils = harness()
    spec = spec_of(utils, task)
    change = between(task.tree, {**tree, **_pristine(task)})
    box = sandbox.start(as_made(task.image))
    try:
        if gone := [path for path in change.removed if task.tree[path].kind != "dir"]:
            _must(box, ["rm", "-f", "--", *gone])
        if change.written:
            box.put(change.written, at=TESTBED)
        script = spec.eval_script.encode()
        ran = box.run(["bash", "-s"], seconds=task.seconds, stdin=script, cwd=TESTBED)
    finally:
        box.close()
    if ran.timed_out:
        return _verdict(task, {}, {}, f"tests did not end within {task.seconds:g} s")
    return judge(grading, spec, task, ran.output)


def judge(grading: Any, spec: Any, task: RepoTask, output: bytes) -> Verdict:
    """The verdict that the harness reads from the output of its script."""
    with tempfile.TemporaryDirectory(prefix="sao-gym-swe-") as folder:
        log = Path(folder) / "test_output.txt"
        log.write_text(output.decode("utf-8", "replace"), encoding="utf-8")
        prediction = {
            "instance_id": spec.instance_id,
            "model_name_or_path": "sao-gym",
            "model_patch": "carried as files",
        }
        report = grading.get_eval_report(spec, prediction, str(log), include_tests_status=True)
        seen, _ = grading.get_logs_eval(spec, str(log))
    return _verdict(task, report[spec.instance_id], seen, "")


def spec_of(utils: Any, task: RepoTask) -> Any:
    """The harness's own description of the instance."""
    instance = task.extra.get("instance", {})
    try:
        return utils.make_test_spec(instance)
    except KeyError as error:
        raise InputError(f"{task.id}: the instance has no field {error}") from None


def _verdict(
    task: RepoTask, report: Mapping[str, Any], seen: Mapping[str, str], detail: str
) -> Verdict:
    expected = tuple(dict.fromkeys((*task.fail_to_pass, *task.pass_to_pass)))
    status = report.get("tests_status", {})
    good = {name for kind in status.values() for name in kind["success"]}
    passed = tuple(name for name in expected if name in good)
    missing = tuple(name for name in expected if name not in good and name not in seen)
    failed = tuple(name for name in expected if name not in good and name in seen)
    resolved = bool(report.get("resolved"))
    if not resolved and not detail:
        bad = [*failed, *missing]
        shown = f": {bad[0]}" if bad else ""
        detail = f"{len(bad)} of {len(expected)} failed{shown}"
        if "tests_status" not in report:
            detail = "the log shows no test run"
    return Verdict(resolved=resolved, passed=passed, failed=failed, missing=missing, detail=detail)


def _pristine(task: RepoTask) -> Tree:
    """Paths of the tests as the image has them: its own script puts the tests in place."""
    return {path: task.tree[path] for path in task.tests if path in task.tree}


def _must(box: Box, command: list[str]) -> None:
    ran = box.run(command, seconds=60, cwd=TESTBED)
    if ran.code:
        raise MachineryError("image", f"{command[0]} failed: {ran.output[-200:]!r}")
