"""Warm boxes: nothing passes from one run to the next, and a lost interpreter is replaced."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from repo_tasks import ASKED, FAULTY, KEPT, RIGHT, patch, size_task
from sandbox_kinds import KINDS, usable

from sao_gym.errors import MachineryError
from sao_gym.repo import warm
from sao_gym.repo.fast import FastGrader
from sao_gym.repo.grade import EMPTY
from sao_gym.sandbox import Box, BoxSpec, Sandbox
from sao_gym.sandboxes import bubblewrap, open_sandbox
from sao_gym.sandboxes.kept import KeptSandbox
from sao_gym.sandboxes.lent import Lent
from sao_gym.tree import Entry, Patch


class Counted:
    """A sandbox that remembers what it started."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox, self.started = sandbox, []
        self.name, self.isolation = sandbox.name, sandbox.isolation

    def start(self, spec: BoxSpec) -> Box:
        self.started.append(self.sandbox.start(spec))
        return self.started[-1]

    def close(self) -> None:
        self.sandbox.close()


@pytest.fixture(params=KINDS)
def sandbox(request) -> Iterator[Counted]:
    made = Counted(open_sandbox(usable(request.param)))
    yield made
    made.close()


@pytest.fixture
def process() -> Iterator[Counted]:
    made = Counted(open_sandbox("process"))
    yield made
    made.close()


def test_the_fast_grader_says_what_the_sealed_one_says(sandbox: Counted) -> None:
    task = size_task()
    with FastGrader(sandbox) as grader:
        assert grader.grade(task, task.gold).resolved
        bad = grader.grade(task, EMPTY)
    assert (bad.resolved, bad.passed, bad.failed) == (False, (KEPT,), (ASKED,))


LOADED = """
import sys
from sao_gym.repo.fast import FastGrader
from sao_gym.sandboxes import bubblewrap, open_sandbox
from repo_tasks import size_task
grader = FastGrader(open_sandbox("bubblewrap"))
print(grader.grade(size_task(), size_task().gold).resolved, flush=True)
sys.stdin.read()
"""


def alive(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_killed_owner_of_a_fast_grader_leaves_nothing(tmp_path) -> None:
    if (reason := bubblewrap.unusable()) is not None:
        pytest.skip(f"bubblewrap: {reason}")
    environment = os.environ | {"TMPDIR": str(tmp_path), "PYTHONPATH": os.path.dirname(__file__)}
    environment["PYTHONPATH"] += "/support"
    owner = subprocess.Popen(
        [sys.executable, "-c", LOADED],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
    )
    with owner:
        assert owner.stdout.readline() == b"True\n"
        children = Path(f"/proc/{owner.pid}/task/{owner.pid}/children").read_text().split()
        assert children
        owner.kill()
    deadline = time.monotonic() + 10
    while any(map(alive, children)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(map(alive, children))
    assert list(tmp_path.iterdir()) == []


def test_the_fast_grader_serves_threads(process: Counted) -> None:
    task = size_task()
    with FastGrader(process, workers=2) as grader, ThreadPoolExecutor(4) as pool:
        fixes = [task.gold, EMPTY] * 10
        said = list(pool.map(lambda fix: grader.grade(task, fix).resolved, fixes))
    assert said == [True, False] * 10


LEAVES = f"""
import os
for name in ("../left.py", "../job2", "../../jobs/job3/m.py", "size/left.py"):
    os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
    open(name, "w").write("x = 1")
{RIGHT}
"""
FINDS = f"""
import os
assert sorted(os.listdir("..")) == ["job"], os.listdir("..")
assert sorted(os.listdir("size")) == ["__init__.py", "core.py"]
{RIGHT}
"""


def test_the_next_tests_do_not_find_what_others_left(sandbox: Counted) -> None:
    task = size_task()
    with FastGrader(sandbox) as grader:
        assert grader.grade(task, patch(size__core=LEAVES)).resolved
        assert grader.grade(task, patch(size__core=FINDS)).resolved
    assert len(sandbox.started) == 1


SHUTS = f"""
import os
if not os.path.exists("shut"):
    os.makedirs("shut/deep")
    open("shut/deep/file", "w").close()
    os.chmod("shut/deep", 0)
    os.chmod("shut", 0)
{RIGHT}
"""


def test_a_folder_that_was_shut_does_not_stay(sandbox: Counted) -> None:
    task = size_task()
    with FastGrader(sandbox) as grader:
        assert grader.grade(task, patch(size__core=SHUTS)).resolved
        assert grader.grade(task, patch(size__core=FINDS)).resolved
    assert len(sandbox.started) == 1


def test_a_tree_that_cannot_be_written_is_not_resolved(process: Counted) -> None:
    task = size_task()
    fix = Patch({f"{'x' * 300}.py": Entry("file", b"")} | task.gold.written, ())
    with FastGrader(process) as grader:
        found = grader.grade(task, fix)
        assert grader.grade(task, task.gold).resolved
    assert not found.resolved
    assert found.detail == "the tree cannot be written: File name too long"
    assert len(process.started) == 1


def test_an_interpreter_that_stands_still_is_replaced(process: Counted, monkeypatch) -> None:
    """Once it is chance; a tree with which it happens twice is not resolved."""
    monkeypatch.setattr(warm, "GRACE", 0.5)
    task = size_task(seconds=1.0)
    stops = f"import os, signal\nos.kill(os.getppid(), signal.SIGSTOP)\n{RIGHT}"
    with FastGrader(process) as grader:
        assert grader.grade(task, task.gold).resolved
        supervisor = process.started[0]._link.pid
        children = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()
        os.kill(int(children[0]), signal.SIGSTOP)
        assert grader.grade(task, task.gold).resolved
        assert len(process.started) == 2
        found = grader.grade(task, patch(size__core=stops))
    assert not found.resolved
    assert found.detail == "tests did not end within 1 s"


def test_a_box_that_died_in_the_pool_is_replaced(process: Counted, monkeypatch) -> None:
    start = process.sandbox.start

    def dead_at_first(spec: BoxSpec) -> Box:
        box = start(spec)
        if not process.started:
            box.close()
        return box

    monkeypatch.setattr(process.sandbox, "start", dead_at_first)
    with FastGrader(process) as grader:
        assert grader.grade(size_task(), size_task().gold).resolved
    assert len(process.started) == 2


def test_a_box_that_dies_between_two_runs_is_replaced(sandbox: Counted) -> None:
    task = size_task()
    with FastGrader(sandbox) as grader:
        assert grader.grade(task, task.gold).resolved
        sandbox.started[0].close()
        assert grader.grade(task, task.gold).resolved
    assert len(sandbox.started) == 2


def test_a_box_serves_so_many_runs(process: Counted, monkeypatch) -> None:
    monkeypatch.setattr(warm, "PER_BOX", 3)
    task = size_task()
    with FastGrader(process) as grader:
        assert [grader.grade(task, fix).resolved for fix in [task.gold, EMPTY] * 4] == [1, 0] * 4
    assert len(process.started) == 3


ENDS = f"""
import os, signal
os.kill(os.getppid(), signal.SIGKILL)
{RIGHT}
"""


def test_tests_that_end_their_runner_are_not_resolved(sandbox: Counted) -> None:
    task = size_task()
    with FastGrader(sandbox) as grader:
        found = grader.grade(task, patch(size__core=ENDS))
        assert (found.resolved, found.missing) == (False, (ASKED, KEPT))
        assert found.detail == "the tests ended their own runner"
        assert grader.grade(task, task.gold).resolved


def test_boxes_that_cannot_be_had_are_no_verdict(process: Counted, monkeypatch) -> None:
    def refused(_: BoxSpec) -> Box:
        raise MachineryError("engine", "no room")

    task = size_task()
    with FastGrader(process) as grader:
        monkeypatch.setattr(process.sandbox, "start", refused)
        for _ in range(2):
            with pytest.raises(MachineryError, match="no room") as caught:
                grader.grade(task, task.gold)
            assert caught.value.kind == "engine"
        monkeypatch.undo()
        assert not grader.grade(task, patch(size__core=FAULTY)).resolved


def test_a_box_is_kept_and_given_empty(sandbox: Counted) -> None:
    kept = KeptSandbox(sandbox)
    first = kept.start(BoxSpec())
    first.put({"a/b.txt": Entry("file", b"x"), ".c": Entry("link", b"/nowhere")})
    first.close()
    again = kept.start(BoxSpec())
    assert isinstance(first, Lent)
    assert isinstance(again, Lent)
    assert again.box is first.box
    assert again.get() == {}
    again.box.close()
    third = kept.start(BoxSpec())
    assert third.run(["echo", "well"], seconds=10).output == b"well\n"
    kept.close()
    assert len(sandbox.started) == 2
    with pytest.raises(MachineryError):
        third.run(["true"], seconds=5)


def test_every_folder_that_began_empty_is_emptied(sandbox: Counted) -> None:
    if sandbox.name == "process":
        pytest.skip("it has no folder but its own")
    spec, kept = BoxSpec(empty=("/app",)), KeptSandbox(sandbox)
    kept.start(spec).put({"f": Entry("file", b"x")}, at="/app")
    assert kept.start(spec).get("/app") == {}
    kept.close()
    assert len(sandbox.started) == 1


def test_a_box_that_cannot_be_emptied_is_replaced(sandbox: Counted) -> None:
    if sandbox.name == "process":
        pytest.skip("as root nothing withstands")
    kept = KeptSandbox(sandbox)
    kept.start(BoxSpec()).run(["sh", "-c", "mkdir d; touch d/f; chmod 0 d"], seconds=10)
    assert kept.start(BoxSpec()).get() == {}
    kept.close()
    assert len(sandbox.started) == 2
