"""Small repository tasks, and sandboxes for them."""

from __future__ import annotations

from pathlib import Path
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


def harbor(folder: Path, **changes: str | None) -> Path:
    """A Harbor task; `a__b` stands for the file a/b."""
    files: dict[str, str | None] = {
        "task.toml": 'version = "1.0"\n\n[metadata]\ndifficulty = "easy"\n\n'
        "[verifier]\ntimeout_sec = 20.0\n",
        "instruction.md": "# Larger\n\nIt is the smaller one.\n",
        "environment/Dockerfile": "# where\nFROM python:3.12-slim\nWORKDIR /app\n\n"
        "RUN pip install --no-cache-dir \\\n    pytest==8.4.1\nCOPY size ./size\nCOPY note.txt .\n",
        "environment/size/__init__.py": "",
        "environment/size/core.py": FAULTY,
        "environment/note.txt": "a note\n",
        "tests/test.sh": "#!/bin/bash\npytest /tests\n",
        "tests/test_size.py": "from size.core import larger\n\n\n"
        "def test_larger():\n    assert larger(1, 2) == 2\n\n\n"
        "def test_equal():\n    assert larger(3, 3) == 3\n\n\n"
        "def test_never():\n    assert False\n",
        "solution/solve.sh": "sed -i 's/a < b/a > b/' size/core.py\n",
    }
    for name, text in (files | {k.replace("__", "/"): v for k, v in changes.items()}).items():
        if text is not None:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
    return folder


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
