"""Small repository tasks, and sandboxes for them."""

from __future__ import annotations

from typing import Any

import pytest

from sao_gym.errors import MachineryError
from sao_gym.repo.task import RepoTask
from sao_gym.sandbox import BoxSpec
from sao_gym.tree import Entry, Patch

KINDS = ("bubblewrap", "docker")
TESTS = "tests/test_size.py"


def file(text: str | bytes, executable: bool = False) -> Entry:
    return Entry("file", text if isinstance(text, bytes) else text.encode(), executable)


def link(target: str) -> Entry:
    return Entry("link", target.encode())


def patch(*removed: str, **files: str) -> Patch:
    """`a__b` stands for a/b.py."""
    return Patch({f"{n.replace('__', '/')}.py": file(text) for n, text in files.items()}, removed)


FAULTY = "def larger(a, b):\n    return a if a < b else b\n"
RIGHT = "def larger(a, b):\n    return a if a > b else b\n"
ASKED = f"{TESTS}::test_larger"
KEPT = f"{TESTS}::test_equal"


def size_task(runner: str = "functions", **changes: Any) -> RepoTask:
    """`larger` is the smaller one."""
    fields: dict[str, Any] = {
        "id": "size",
        "instruction": "larger returns the smaller number.",
        "tree": {"size/__init__.py": file(""), "size/core.py": file(FAULTY)},
        "tests": {
            TESTS: file(
                "from size.core import larger\n\n\n"
                "def test_larger():\n    assert larger(1, 2) == 2\n\n\n"
                "def test_equal():\n    assert larger(3, 3) == 3\n"
            )
        },
        "fail_to_pass": (ASKED,),
        "pass_to_pass": (KEPT,),
        "gold": patch(size__core=RIGHT),
        "runner": runner,
        "seconds": 20.0,
    }
    return RepoTask(**(fields | changes))


def opened(kind: str) -> Any:
    """A sandbox of this kind, or a skip that says why there is none here."""
    from sao_gym.sandboxes import bubblewrap, docker
    from sao_gym.sandboxes.process import ProcessSandbox

    if kind == "process":
        return ProcessSandbox()
    module = {"bubblewrap": bubblewrap, "docker": docker}[kind]
    if (why := module.unusable()) is not None:
        pytest.skip(f"{kind}: {why}")
    if kind == "bubblewrap":
        return bubblewrap.BubblewrapSandbox()
    sandbox = docker.DockerSandbox(run="tests")
    try:
        sandbox.start(BoxSpec()).close()  # makes the base image
    except MachineryError as error:
        sandbox.close()
        pytest.skip(f"docker: {error}")
    return sandbox
