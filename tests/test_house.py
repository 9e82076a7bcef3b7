"""The rules of the house: layout, names, budgets, free imports. Types and layers: `make lint`."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SETUPTOOLS = PROJECT["tool"]["setuptools"]
PACKAGE_DIR: dict[str, str] = SETUPTOOLS["package-dir"]

LONGEST_FILE, LONGEST_FUNCTION = 400, 60
HEAVY = ("torch", "transformers", "gymnasium", "numpy", "scipy", "matplotlib", "pandas", "pyarrow")
TEXT = {".py", ".md", ".toml", ".txt", ".yaml", ".yml", ".json", ".html", ".css", ".js", ""}
NOT_OURS = {"build", "dist", "runs", "__pycache__"}


def files(root: Path = ROOT) -> Iterator[Path]:
    """The project's own files, whether or not git knows them (a source archive has no git)."""
    for path in sorted(root.iterdir()):
        hidden = path.name.startswith(".") and path.name not in (".ci", ".gitignore")
        if hidden or path.name in NOT_OURS or path.name.endswith(".egg-info") or path.is_symlink():
            continue
        if path.is_dir():
            yield from files(path)
        else:
            yield path


PYTHON = [path for path in files() if path.suffix == ".py"]
SHIPPED = [path for path in PYTHON if path.relative_to(ROOT).parts[0] in PACKAGE_DIR.values()]


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_the_package_list_is_what_the_folders_hold() -> None:
    folders = {path.parent for path in SHIPPED}
    found = set()
    for name, top in PACKAGE_DIR.items():
        for folder in folders:
            if folder.is_relative_to(ROOT / top):
                found.add(".".join((name, *folder.relative_to(ROOT / top).parts)))
    assert sorted(SETUPTOOLS["packages"]) == sorted(found)
    bare = [str(folder) for folder in folders if not (folder / "__init__.py").is_file()]
    assert bare == []


def test_every_top_level_folder_is_mapped_into_the_one_namespace() -> None:
    plugins = {f"sao_gym.{top}": top for top in ("envs", "agents", "learners", "scenarios")}
    assert {"sao_gym": "sao_gym", **plugins} == PACKAGE_DIR


def test_every_scenario_file_has_an_entry_point_and_the_reverse() -> None:
    written = {path.stem for path in (ROOT / "scenarios").glob("*.yaml")}
    assert set(PROJECT["project"]["entry-points"]["sao_gym.scenarios"]) == written


@pytest.mark.parametrize("kind", ["envs", "agents", "learners"])
def test_every_entry_point_leads_to_a_class(kind: str) -> None:
    group = f"sao_gym.{kind}"
    for name, value in PROJECT["project"]["entry-points"][group].items():
        assert isinstance(EntryPoint(name, value, group).load(), type), name


def test_short_names_of_the_plugin_folders_are_banned() -> None:
    tops = [top for top in PACKAGE_DIR.values() if top != "sao_gym"]
    bad = [f"import {top}" for top in tops] + [f"from {top}.part import Name" for top in tops]
    good = [f"import sao_gym.{top}" for top in tops]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "ruff", "check", "--select=TID251", "--no-cache"),
            *("--output-format=json", "--stdin-filename=sao_gym/planted.py", "-"),
        ],
        input="\n".join(bad + good) + "\n",
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    complaints = [(c["code"], c["location"]["row"]) for c in json.loads(done.stdout)]
    assert complaints == [("TID251", row) for row in range(1, len(bad) + 1)]


def test_no_file_is_longer_than_the_budget() -> None:
    lengths = {shown(path): len(path.read_text().splitlines()) for path in PYTHON}
    assert {name: n for name, n in lengths.items() if n > LONGEST_FILE} == {}


def test_no_function_is_longer_than_the_budget() -> None:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    lengths = {
        f"{shown(path)}:{node.name}": (node.end_lineno or 0) - node.lineno + 1
        for path in PYTHON
        if "tests" not in path.relative_to(ROOT).parts
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, functions)
    }
    assert {name: n for name, n in lengths.items() if n > LONGEST_FUNCTION} == {}


def test_every_module_says_what_it_is() -> None:
    silent = [shown(p) for p in SHIPPED if not ast.get_docstring(ast.parse(p.read_text()))]
    assert silent == []


def test_no_file_names_a_machine_or_a_package_index() -> None:
    # put together here, so that this file passes too
    banned = ["/" + "work/", "/" + "opt/", "/" + "root/", "index" + "-url", "find" + "-links"]
    found = [
        (shown(path), word)
        for path in files()
        if path.suffix in TEXT
        for word in banned
        if word in path.read_text(encoding="utf-8")
    ]
    assert found == []


def loaded_by(code: str) -> set[str]:
    """Which of `HEAVY` a fresh interpreter holds after `code`."""
    report = f"import sys\nprint('LOADED', *sorted(set({HEAVY!r}) & sys.modules.keys()))"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{report}"],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"COLUMNS": "100"},
    )
    return set(done.stdout.splitlines()[-1].split()[1:])


def test_importing_the_library_imports_nothing_heavy() -> None:
    assert loaded_by("import sao_gym, sao_gym.types, sao_gym.events, sao_gym.errors") == set()


def test_the_check_of_imports_can_see_one() -> None:
    assert loaded_by("import gymnasium") >= {"gymnasium", "numpy"}


@pytest.mark.parametrize("arguments", [["--help"], ["scenario", "--help"], ["list"]])
def test_help_is_shown_without_heavy_imports(arguments: list[str]) -> None:
    code = (
        "import runpy, sys\n"
        f"sys.argv = ['sao_gym.run', *{arguments!r}]\n"
        "try:\n    runpy.run_module('sao_gym.run', run_name='__main__')\n"
        "except SystemExit as end:\n    assert not end.code, end.code\n"
    )
    assert loaded_by(code) & {"torch", "transformers", "matplotlib", "pyarrow"} == set()


def test_make_installs_under_the_constraints() -> None:
    """An unpinned torch may bring several gigabytes of CUDA libraries."""
    done = subprocess.run(
        ["make", "--dry-run", "VENV=build/no-such-venv", "demo", "test"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    installs = [line for line in done.stdout.splitlines() if "pip install" in line]
    assert len(installs) == 2
    assert all("-c constraints.txt" in line for line in installs)
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    assert any(line.startswith("torch==") for line in pins)


def test_both_places_tell_the_same_version() -> None:
    import sao_gym

    assert sao_gym.__version__ == PROJECT["project"]["version"]
