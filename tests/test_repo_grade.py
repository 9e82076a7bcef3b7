"""Verdicts: what is seen, what is missing, what took too long, what broke."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from repo_tasks import ASKED, FAULTY, KEPT, KINDS, RIGHT, TESTS, file, opened, patch, size_task

from sao_gym.errors import MachineryError
from sao_gym.repo.fast import FastGrader
from sao_gym.repo.grade import EMPTY, grade
from sao_gym.repo.task import Verdict
from sao_gym.sandboxes.process import ProcessSandbox
from sao_gym.tree import Patch, apply

RUNNERS = ("functions", "pytest")


@pytest.fixture(scope="module")
def sandbox():
    """Without isolation: what is tested here is trusted."""
    made = ProcessSandbox()
    yield made
    made.close()


@pytest.fixture
def fast(sandbox):
    with FastGrader(sandbox) as grader:
        yield grader


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("runner", RUNNERS)
def test_gold_is_resolved_and_nothing_is_not(kind: str, runner: str) -> None:
    sandbox, task = opened(kind), size_task(runner)
    try:
        good = grade(task, task.gold, sandbox=sandbox)
        bad = grade(task, EMPTY, sandbox=sandbox)
        whole = grade(task, apply(task.tree, task.gold), sandbox=sandbox)
    finally:
        sandbox.close()
    assert good == Verdict(resolved=True, passed=(ASKED, KEPT), failed=(), missing=())
    assert whole == good
    assert (bad.resolved, bad.passed, bad.failed, bad.missing) == (False, (KEPT,), (ASKED,), ())
    assert bad.detail.startswith(f"1 of 2 failed: {ASKED}: AssertionError")
    assert bad.share == 0.5


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_test_that_is_not_seen_has_failed(sandbox, runner: str) -> None:
    task = size_task(runner, pass_to_pass=(KEPT, f"{TESTS}::test_never", "tests/test_no.py::test"))
    found = grade(task, task.gold, sandbox=sandbox)
    assert not found.resolved
    assert found.missing == (f"{TESTS}::test_never", "tests/test_no.py::test")
    assert found.detail == f"2 of 4 were never seen: {TESTS}::test_never"


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_task_without_expected_tests_is_never_resolved(sandbox, runner: str) -> None:
    task = size_task(runner, fail_to_pass=(), pass_to_pass=())
    assert not grade(task, task.gold, sandbox=sandbox).resolved


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_syntax_error_fails_every_test(sandbox, runner: str) -> None:
    found = grade(size_task(runner), patch(size__core="def larger(:\n"), sandbox=sandbox)
    assert not found.resolved
    assert found.passed == ()


@pytest.mark.parametrize("runner", RUNNERS)
def test_tests_that_do_not_end_are_the_agents_doing(sandbox, runner: str) -> None:
    task = size_task(runner, seconds=2.0)
    began = time.monotonic()
    found = grade(task, patch(size__core="while True: pass\n"), sandbox=sandbox)
    assert time.monotonic() - began < 15
    assert not found.resolved
    assert found.detail == "tests did not end within 2 s"


def test_a_test_that_hangs_is_one_failure(sandbox, fast) -> None:
    slow = RIGHT + "\n\ndef larger(a, b):\n    while a < b: pass\n    return a\n"
    task = size_task(extra={"test_seconds": 0.5})
    for found in (
        grade(task, patch(size__core=slow), sandbox=sandbox),
        fast.grade(task, patch(size__core=slow)),
    ):
        assert (found.passed, found.failed) == ((KEPT,), (ASKED,))
        assert found.detail == f"1 of 2 failed: {ASKED}: did not end within 0.5 s"


def test_each_function_has_a_process_of_its_own(sandbox) -> None:
    counting = FAULTY + "\n\ncalls = []\n\n\ndef larger(a, b):\n    calls.append(a)\n"
    counting += "    return b if len(calls) == 1 else None\n"
    assert grade(size_task(), patch(size__core=counting), sandbox=sandbox).resolved


LEFT = """import os
import time


def larger(a, b):
    if a == 3:
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                time.sleep(0.3)
                open("left", "w").close()
            os._exit(0)
        return 3
    time.sleep(1)
    return 0 if os.path.exists("left") else b
"""


def test_what_a_test_leaves_running_is_gone_before_the_next(sandbox, fast) -> None:
    text = size_task().tests[TESTS].data.decode()
    parts = text.split("\n\n\n")
    backwards = "\n\n\n".join([parts[0], parts[2], parts[1]])
    task = size_task(tests={TESTS: file(backwards)})
    assert grade(task, patch(size__core=LEFT), sandbox=sandbox).resolved
    assert fast.grade(task, patch(size__core=LEFT)).resolved


WEAKEN = """import os

here = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "tests")
with open(os.path.join(here, "helper.py"), "w") as file:
    file.write("def same(a, b): pass\\n")


def larger(a, b):
    return min(a, b)
"""


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_helper_of_the_tests_that_is_changed_on_the_disk_is_seen(sandbox, runner: str) -> None:
    text = (
        "from size.core import larger\nfrom helper import same\n\n\n"
        "def test_equal():\n    same(larger(3, 3), 3)\n\n\n"
        "def test_larger():\n    same(larger(1, 2), 2)\n"
    )
    helper = "def same(a, b):\n    assert a == b\n"
    task = size_task(runner, tests={TESTS: file(text), "tests/helper.py": file(helper)})
    assert grade(task, task.gold, sandbox=sandbox).resolved
    found = grade(task, patch(size__core=WEAKEN), sandbox=sandbox)
    assert not found.resolved
    assert found.detail == "a test file was changed while the tests ran" or runner == "pytest"


@pytest.mark.parametrize(
    "body",
    ["async def test_larger():\n    assert False\n", "def test_larger():\n    yield\n"],
)
def test_functions_that_would_not_run_do_not_pass(sandbox, body: str) -> None:
    task = size_task(tests={TESTS: file(body)}, pass_to_pass=())
    found = grade(task, EMPTY, sandbox=sandbox)
    assert found.failed == (ASKED,)
    assert "only plain functions" in found.detail


ODD = """import pytest
from size.core import larger


@pytest.mark.parametrize("x", ["a b", "http://h/p?q=[1]::x", "[", "ü", "a\\nb", ""], ids=str)
def test_odd(x):
    assert larger(1, 2) == 2


class TestClass:
    def test_method(self):
        assert larger(1, 2) == 2

    @pytest.fixture
    def two(self):
        return 2

    def test_fixture(self, two):
        assert larger(1, two) == 2


@pytest.mark.skip
def test_skipped(): pass


@pytest.mark.xfail
def test_expected(): assert False


@pytest.fixture
def broken():
    yield
    raise ValueError


def test_teardown(broken): pass
"""


def test_pytest_names_may_hold_anything(sandbox) -> None:
    odd = ["a b", "http://h/p?q=[1]::x", "[", "\\xfc", "a\\nb", ""]
    names = (
        *(f"{TESTS}::test_odd[{x}]" for x in odd),
        f"{TESTS}::TestClass::test_method",
        f"{TESTS}::TestClass::test_fixture",
    )
    task = size_task("pytest", tests={TESTS: file(ODD)}, fail_to_pass=names, pass_to_pass=())
    assert grade(task, task.gold, sandbox=sandbox).passed == names
    assert grade(task, EMPTY, sandbox=sandbox).failed == names


@pytest.mark.parametrize("name", ["test_skipped", "test_expected", "test_teardown"])
def test_only_what_ran_to_its_end_has_passed(sandbox, name: str) -> None:
    task = size_task("pytest", tests={TESTS: file(ODD)}, fail_to_pass=(f"{TESTS}::{name}",))
    assert grade(task, task.gold, sandbox=sandbox).failed[0] == f"{TESTS}::{name}"


def test_the_tasks_own_conftest_and_ini_count(sandbox) -> None:
    conftest = "import pytest\n\n\n@pytest.fixture\ndef two():\n    return 2\n"
    text = (
        "import pytest\nfrom size.core import larger\n\n\n@pytest.mark.mine\n"
        "def test_larger(two):\n    assert larger(1, two) == 2\n"
    )
    task = size_task(
        "pytest",
        tests={TESTS: file(text), "tests/conftest.py": file(conftest)},
        pass_to_pass=(),
        extra={"pytest_ini": "[pytest]\naddopts = --strict-markers\nmarkers = mine\n"},
    )
    assert grade(task, task.gold, sandbox=sandbox).resolved
    plain = replace(task, extra={"pytest_ini": "[pytest]\naddopts = --strict-markers\n"})
    assert grade(plain, task.gold, sandbox=sandbox).missing == (ASKED,)


def test_a_source_folder_is_importable(sandbox) -> None:
    for runner in RUNNERS:
        task = size_task(
            runner, tree={"src/size/__init__.py": file(""), "src/size/core.py": file(FAULTY)}
        )
        assert grade(task, Patch({"src/size/core.py": file(RIGHT)}, ()), sandbox=sandbox).resolved


def test_what_tests_say_becomes_one_line(sandbox) -> None:
    loud = "def larger(a, b):\n    raise ValueError('a\\n\\x1b[31mb' + 'x' * 10000)\n"
    for runner in RUNNERS:
        found = grade(size_task(runner), patch(size__core=loud), sandbox=sandbox)
        assert found.detail.isprintable()
        assert len(found.detail) <= 300


def test_a_missing_image_is_machinery(sandbox) -> None:
    with pytest.raises(MachineryError, match="no-such-image") as caught:
        grade(size_task(image="no-such-image"), EMPTY, sandbox=sandbox)
    assert caught.value.kind == "image"


class Dead:
    """A box in which no program starts."""

    name = isolation = "dead"

    def start(self, spec):
        box = ProcessSandbox().start(spec)
        run = box.run
        box.run = lambda command, **named: run(["no-such-program"], **named)
        return box

    def close(self): ...


@pytest.mark.parametrize("runner", RUNNERS)
def test_an_image_without_python_is_machinery(runner: str) -> None:
    with pytest.raises(MachineryError, match="it needs python3") as caught:
        grade(size_task(runner), EMPTY, sandbox=Dead())
    assert caught.value.kind == "image"


class Unlucky:
    """Boxes of which the first ones die while a command runs."""

    def __init__(self, sandbox, deaths: int) -> None:
        self.sandbox, self.deaths, self.started = sandbox, deaths, 0
        self.name, self.isolation = "unlucky", ""

    def start(self, spec):
        self.started += 1
        box = self.sandbox.start(spec)
        if self.started <= self.deaths:
            run = box.run

            def killed(command, **how):
                box.close()
                return run(command, **how)

            box.run = killed
        return box


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_box_that_is_lost_once_is_not_the_fixs_doing(sandbox, runner: str) -> None:
    task = size_task(runner)
    once, twice = Unlucky(sandbox, 1), Unlucky(sandbox, 2)
    assert grade(task, task.gold, sandbox=once).resolved
    found = grade(task, task.gold, sandbox=twice)
    assert (found.resolved, once.started, twice.started) == (False, 2, 3)
    assert found.detail.startswith("the fix or its tests broke the box:")
    with pytest.raises(MachineryError):
        grade(task, task.gold, sandbox=Unlucky(sandbox, 3))


class Small(Dead):
    """Boxes whose disk is full at 1 MB."""

    def start(self, spec):
        box = ProcessSandbox().start(spec)
        put = box.put

        def checked(tree, at="/"):
            if sum(len(entry.data) for entry in tree.values()) > 1 << 20:
                raise MachineryError("disk", "no space left")
            put(tree)

        box.put = checked
        return box


def test_a_fix_that_fills_the_disk_is_the_agents_doing() -> None:
    full = Patch({"big": file(b"0" * (2 << 20)), **size_task().gold.written}, ())
    found = grade(size_task(), full, sandbox=Small())
    assert not found.resolved
    assert found.detail == "the fix or its tests broke the box: no space left"
    large = size_task(tree={"big": file(b"0" * (2 << 20))})
    assert not grade(large, EMPTY, sandbox=Small()).resolved


def test_output_without_end_hurts_nobody(sandbox) -> None:
    loud = "import os\nfor _ in range(1000):\n    os.write(1, b'x' * 65536)\n" + RIGHT
    for runner in RUNNERS:
        assert grade(size_task(runner), patch(size__core=loud), sandbox=sandbox).resolved
