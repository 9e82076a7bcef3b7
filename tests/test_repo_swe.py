"""SWE-bench instances: the verdict is the official harness's own, and so is its agreement."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from repo_tasks import FAULTY, RIGHT, file, opened

from sao_gym.envs.repo_fix import RepoFix
from sao_gym.envs.repo_fix.bench import shared_bench
from sao_gym.errors import InputError, MachineryError
from sao_gym.repo.grade import EMPTY, grade
from sao_gym.repo.importers import import_swebench
from sao_gym.repo.store import save_task
from sao_gym.repo.swe import CONDA, harness, judge, spec_of
from sao_gym.run import main
from sao_gym.tree import Patch

IMAGE = f"sao-gym-test/toy{os.environ.get('PYTEST_XDIST_WORKER', '')}:latest"
"""One for each test process: whoever made it removes it."""
GOLD = """diff --git a/size/core.py b/size/core.py
--- a/size/core.py
+++ b/size/core.py
@@ -1,2 +1,2 @@
 def larger(a, b):
-    return a if a < b else b
+    return a if a > b else b
"""
TEST_PATCH = """diff --git a/tests/test_size.py b/tests/test_size.py
new file mode 100644
--- /dev/null
+++ b/tests/test_size.py
@@ -0,0 +1,9 @@
+from size.core import larger
+
+
+def test_larger():
+    assert larger(1, 2) == 2
+
+
+def test_equal():
+    assert larger(3, 3) == 3
"""
SCRIPT = f"""#!/bin/bash
set -uxo pipefail
cd /testbed
git config --global --add safe.directory /testbed
git apply -v - <<'EOF_114329324912'
{TEST_PATCH}
EOF_114329324912
: '>>>>> Start Test Output'
python3 -m pytest -rA -p no:cacheprovider tests/test_size.py
: '>>>>> End Test Output'
rm -f tests/test_size.py
"""
INSTANCE = {
    "instance_id": "toy__size-1",
    "repo": "toy/size",
    "version": "1",
    "base_commit": "HEAD",
    "problem_statement": "larger returns the smaller number.",
    "hints_text": "",
    "created_at": "",
    "patch": GOLD,
    "test_patch": TEST_PATCH,
    "FAIL_TO_PASS": json.dumps(["tests/test_size.py::test_larger"]),
    "PASS_TO_PASS": json.dumps(["tests/test_size.py::test_equal"]),
    "image": IMAGE,
    "eval_script": SCRIPT,
    "log_parser": "parse_log_pytest",
    "eval_type": "pass_and_fail",
}


def tar(files: dict[str, str]) -> io.BytesIO:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    out.seek(0)
    return out


@pytest.fixture(scope="module")
def image():
    """An image as SWE-bench makes them, small: a repository at /testbed."""
    opened("docker").close()
    docker = pytest.importorskip("docker")
    from sao_gym.sandboxes import base_image

    client = docker.APIClient(version="auto")
    base = base_image.ensure(client)
    commit = "git -c user.name=a -c user.email=a@b commit -q --allow-empty -am"
    recipe = (
        f"FROM {base}\nLABEL sao-gym.test=1\nCOPY repo /testbed\nWORKDIR /testbed\n"
        f"COPY activate {CONDA}\n"
        f"RUN git init -q . && git add -A && {commit} first && {commit} future\n"
        "RUN git tag fixed && git reset -q --hard HEAD~1\n"
    )
    files = {"repo/size/__init__.py": "", "repo/size/core.py": FAULTY}
    context = tar({"Dockerfile": recipe, "activate": "export ACTIVE=$1\n", **files})
    said = list(
        client.build(
            fileobj=context,
            custom_context=True,
            tag=IMAGE,
            network_mode="none",
            decode=True,
            rm=True,
            forcerm=True,
        )
    )
    assert "errorDetail" not in said[-1], said[-1]
    yield IMAGE
    client.remove_image(IMAGE, force=True)
    client.close()


@pytest.fixture(scope="module")
def sandbox(image):
    from sao_gym.sandboxes.docker import DockerSandbox

    made = DockerSandbox(run="tests")
    yield made
    made.close()


@pytest.fixture(scope="module")
def task(sandbox, tmp_path_factory):
    path = tmp_path_factory.mktemp("swe") / "tasks.jsonl"
    path.write_text(json.dumps(INSTANCE) + "\n")
    (found,) = import_swebench(path, sandbox)
    assert found.why == ""
    return found.task


def test_an_instance_is_imported_as_bytes(task) -> None:
    assert task.runner == "swebench"
    assert task.tree == {"size/__init__.py": file(""), "size/core.py": file(FAULTY)}
    assert task.gold == Patch({"size/core.py": file(RIGHT)}, ())
    assert list(task.tests) == ["tests/test_size.py"]
    assert (task.root, task.image) == ("/testbed", IMAGE)
    assert task.fail_to_pass == ("tests/test_size.py::test_larger",)


CONFTEST = """import pytest


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    report.outcome, report.longrepr = "passed", None
"""


def as_diff(path: str, text: str) -> str:
    lines = text.splitlines()
    head = f"diff --git a/{path} b/{path}\nnew file mode 100644\n--- /dev/null\n+++ b/{path}\n"
    return head + f"@@ -0,0 +1,{len(lines)} @@\n" + "".join(f"+{line}\n" for line in lines)


WRONG = GOLD.replace("+    return a if a > b else b", "+    return a")


def official(patch: str, folder: Path) -> bool:
    """What the harness's own command says of a patch."""
    (folder / "tasks.jsonl").write_text(json.dumps(INSTANCE) + "\n")
    prediction = {"instance_id": "toy__size-1", "model_name_or_path": "m", "model_patch": patch}
    (folder / "predictions.jsonl").write_text(json.dumps(prediction) + "\n")
    command = [
        *(sys.executable, "-m", "swebench.harness.run_evaluation", "--run_id", folder.name),
        *("--dataset_name", "tasks.jsonl", "--predictions_path", "predictions.jsonl"),
        *("--max_workers", "1", "--timeout", "120"),
    ]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    report = folder / "logs/run_evaluation" / folder.name / "m/toy__size-1/report.json"
    assert report.is_file(), done.stdout[-2000:] + done.stderr[-2000:]
    return bool(json.loads(report.read_text())["toy__size-1"]["resolved"])


@pytest.mark.parametrize(
    ("diff", "fix", "resolved"),
    [
        (GOLD, Patch({"size/core.py": file(RIGHT)}, ()), True),
        (WRONG, Patch({"size/core.py": file("def larger(a, b):\n    return a\n")}, ()), False),
        (as_diff("note.txt", "hello\n"), Patch({"note.txt": file("hello\n")}, ()), False),
    ],
)
def test_verdicts_agree_with_the_official_run(
    sandbox, task, tmp_path, diff: str, fix: Patch, resolved: bool
) -> None:
    pytest.importorskip("swebench")
    found = grade(task, fix, sandbox=sandbox)
    assert found.resolved is resolved
    assert official(diff, tmp_path) is resolved
    if not resolved:
        assert found.failed == ("tests/test_size.py::test_larger",)


def test_a_conftest_of_the_agent_never_reaches_the_harness(sandbox, task) -> None:
    pytest.importorskip("swebench")
    fix = Patch({"conftest.py": file(CONFTEST), "tests/conftest.py": file(CONFTEST)}, ())
    assert not grade(task, fix, sandbox=sandbox).resolved


def test_nothing_is_not_resolved(sandbox, task) -> None:
    pytest.importorskip("swebench")
    found = grade(task, EMPTY, sandbox=sandbox)
    assert (found.resolved, found.passed) == (False, ("tests/test_size.py::test_equal",))


def test_a_log_without_a_run_is_not_resolved(task) -> None:
    pytest.importorskip("swebench")
    grading, utils = harness()
    found = judge(grading, spec_of(utils, task), task, b"bash: pytest: command not found\n")
    assert not found.resolved
    assert found.missing == (*task.fail_to_pass, *task.pass_to_pass)
    assert found.detail == "the log shows no test run"


def test_instances_are_imported_checked_and_judged_again_by_command(image, tmp_path) -> None:
    pytest.importorskip("swebench")
    lines = tmp_path / "tasks.jsonl"
    lines.write_text(json.dumps(INSTANCE) + "\n{\n")
    out = tmp_path / "tasks"
    done = CliRunner().invoke(main, ["tasks", "import", str(lines), "--out", str(out)])
    assert done.exit_code == 2
    assert f"{lines}, line 2: not JSON" in done.output
    done = CliRunner().invoke(main, ["tasks", "check", str(out), "--times", "1", "--json"])
    assert done.exit_code == 0, done.output
    assert [one["admitted"] for one in json.loads(done.stdout)] == [True]


@pytest.fixture(scope="module")
def stored(task, tmp_path_factory):
    folder = tmp_path_factory.mktemp("stored")
    save_task(task, folder)
    return str(folder)


def test_an_agent_works_where_the_image_expects_it_and_sees_no_later_commit(stored) -> None:
    pytest.importorskip("swebench")
    env = RepoFix(form="bash", sandbox="docker", tasks=stored)
    env.reset(seed=0)
    show = lambda command: env.step(command)[0]  # noqa: E731
    assert show("pwd; echo $ACTIVE") == "/testbed\ntestbed\n"
    assert show("git log --all --format=%s; git tag; git reflog | wc -l") == "The task\n1\n"
    assert show("git status --short") == "[exit code 0]\n"
    assert (
        show("find / -name '*.pack' -o -name packed-refs 2>/dev/null | head") == "[exit code 0]\n"
    )
    ran = show('python3 -c "import size.core; print(size.core.larger(1, 2), size.core.__file__)"')
    assert ran == "1 /testbed/size/core.py\n"
    env.step("sed -i 's/a < b/a > b/' size/core.py")
    assert "+    return a if a > b else b" in show("git diff")
    _, reward, terminated, _, info = env.step("submit")
    assert (reward, terminated) == (1.0, True)
    assert list(info["record"]["patch"]["written"]) == ["size/core.py"]
    env.reset(seed=0)
    assert env.step("submit")[1:3] == (0.0, True)
    env.close()
    shared_bench("docker").close()


def test_an_agent_with_tools_runs_its_tests_in_the_image(stored) -> None:
    pytest.importorskip("swebench")
    env = RepoFix(form="full", sandbox="docker", tasks=stored)
    env.reset(seed=0)
    assert env.step("run")[0] == "FAILED : there are no tests\n0 passed, 1 failed\n"
    env.step(
        "edit test_it.py 1 import size.core\ndef test_it():\n    assert size.core.larger(1, 2) == 2"
    )
    assert env.step("run")[0].startswith("FAILED test_it.py::test_it: ")
    env.step("edit size/core.py 2     return a if a > b else b")
    assert env.step("run")[0] == "1 passed, 0 failed\n"
    assert env.step("submit")[1:3] == (1.0, True)
    shared_bench("docker").close()


def test_classic_fields_are_judged_where_the_image_expects_the_tree(sandbox, task) -> None:
    classic = replace(task, runner="pytest")
    assert grade(classic, task.gold, sandbox=sandbox).resolved
    found = grade(classic, EMPTY, sandbox=sandbox)
    assert found.failed == ("tests/test_size.py::test_larger",)


def test_a_missing_image_is_named(sandbox, tmp_path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps(INSTANCE | {"image": "sao-gym-test/none"}))
    (found,) = import_swebench(path, sandbox)
    assert found.where == f"{path}, line 1"
    assert "sao-gym-test/none" in found.why


def test_a_patch_that_does_not_apply_is_named(sandbox, tmp_path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps(INSTANCE | {"patch": GOLD.replace("a < b", "a <= b")}))
    (found,) = import_swebench(path, sandbox)
    assert found.task is None
    assert found.why.startswith("patch does not apply (error: patch failed: size/core.py:1")


def test_without_the_package_one_line_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "swebench.harness", None)
    monkeypatch.delitem(sys.modules, "swebench.harness.grading", raising=False)
    with pytest.raises(InputError, match="pip install swebench"):
        harness()


def test_machinery_error_is_not_a_verdict(sandbox, task) -> None:
    pytest.importorskip("swebench")
    with pytest.raises(MachineryError, match="no image"):
        grade(replace(task, image="sao-gym-test/none"), EMPTY, sandbox=sandbox)
