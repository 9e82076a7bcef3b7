"""Planted bugs: each patch in `tests/mutations/` is caught by the tests that it names."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import shutil
import subprocess
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from mutant import PRELOADED, run_tests

ROOT = Path(__file__).resolve().parents[1]
PATCHES = sorted((ROOT / "tests" / "mutations").glob("*.patch"))
PACKAGES: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"][
    "setuptools"
]["package-dir"]
SECONDS = 120.0
"""Patience with one copy of the library."""


@dataclass(frozen=True)
class Answer:
    """How the tests ended that were run with a copy of the library."""

    code: int
    outcomes: dict[str, str]
    printed: str

    def of(self, test: str) -> set[str]:
        """Outcomes of the test, or of all its cases."""
        return {
            outcome
            for name, outcome in self.outcomes.items()
            if name == test or name.startswith(f"{test}[")
        }


def header(patch: Path, key: str) -> list[str]:
    return re.findall(rf"^# {key}: (.+)$", patch.read_text(), re.MULTILINE)


def copy_library(tree: Path) -> None:
    """A copy with the layout of the checkout, joined into one package as the wheel does it."""
    for folder in PACKAGES.values():
        shutil.copytree(ROOT / folder, tree / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for package, folder in PACKAGES.items():
        if "." in package:
            tree.joinpath(*package.split(".")).symlink_to(tree / folder)


def plant(patch: Path, tree: Path) -> None:
    # outside any repository, git takes the paths in the patch as they are
    surroundings = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    done = subprocess.run(
        ["git", "apply", "--whitespace=nowarn", str(patch)],
        cwd=tree,
        env=surroundings | {"GIT_CEILING_DIRECTORIES": str(tree.parent)},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        pytest.fail(
            f"{patch.name} does not apply any more: the lines around it have changed. Plant its "
            f"bug anew, as tests/mutations/README.md says: {header(patch, 'bug')[0]}\n{done.stderr}"
        )


def ask(tree: Path, tests: list[str], answer: Path) -> Answer:
    """Run `tests` with the library in `tree`."""
    processes: Any = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(list(PRELOADED))
    process = processes.Process(target=run_tests, args=(ROOT, tree, tests, answer))
    process.start()
    process.join(SECONDS)
    if process.is_alive():
        process.kill()
        pytest.fail(f"{tests} did not end within {SECONDS:g} s")
    printed = answer.with_suffix(".txt").read_text()
    assert process.exitcode == 0, printed
    found = json.loads(answer.read_text())
    elsewhere = [file for file in found["files"] if not Path(file).is_relative_to(tree)]
    assert found["files"], printed
    assert elsewhere == [], "modules that are not those of the copy"
    return Answer(found["code"], found["outcomes"], printed)


def test_the_named_tests_pass_without_a_bug(tmp_path):
    copy_library(tmp_path / "tree")
    names = sorted({name for patch in PATCHES for name in header(patch, "catches")})
    answer = ask(tmp_path / "tree", names, tmp_path / "answer.json")
    assert answer.code == pytest.ExitCode.OK, answer.printed
    assert [name for name in names if answer.of(name) != {"passed"}] == []


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.stem)
def test_a_planted_bug_is_caught(patch, tmp_path):
    assert len(header(patch, "bug")) == 1, "say in one line `# bug: ...` what it is"
    names = header(patch, "catches")
    assert names, "name the tests that catch it in lines `# catches: ...`"
    copy_library(tmp_path / "tree")
    plant(patch, tmp_path / "tree")
    answer = ask(tmp_path / "tree", names, tmp_path / "answer.json")
    blind = [name for name in names if "failed" not in answer.of(name)]
    assert blind == [], f"these tests do not see: {header(patch, 'bug')[0]}\n{answer.printed}"
    assert answer.code == pytest.ExitCode.TESTS_FAILED, answer.printed
