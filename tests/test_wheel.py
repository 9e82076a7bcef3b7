"""What a user installs: the wheel, made from the source archive, and a third party's plug-in.

Nothing here imports from the checkout. Both wheels are installed into folders of their own, which
stand before everything else on the path of a fresh interpreter in an empty directory.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
TOPS = PROJECT["tool"]["setuptools"]["package-dir"].values()
PLUGIN = ROOT / "tests" / "plugin_package"

SCENARIO = """
name: small
environment: {name: tool_use, params: {kinds: 2, tools: 2}}
agent: {name: tools, params: {max_new_tokens: 1}}
model:
  init:
    model_type: llama
    hidden_size: 16
    num_hidden_layers: 1
    num_attention_heads: 2
    intermediate_size: 32
    max_position_embeddings: 64
warm_start: {steps: 2, batch_size: 8}
learner: {name: reinforce, params: {batch_size: 8}}
timeline:
  segments:
    - concept: {id: A, params: {mapping: AB}}
      length: 32
    - drift: {kind: abrupt}
    - concept: {id: B, params: {mapping: BA}}
      length: 32
cluster: {slots: 8, max_lag: 4}
evaluation: {every: 4, instances: 4}
"""


def call(*command: str | Path, cwd: Path, trees: tuple[Path, ...] = ()) -> str:
    """Run it with `trees` in front of the path; its output, or a failure that shows all of it."""
    done = call_unchecked(*command, cwd=cwd, trees=trees)
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def call_unchecked(
    *command: str | Path, cwd: Path, trees: tuple[Path, ...] = ()
) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, trees)),
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "200",
        "XDG_CACHE_HOME": str(cwd / "cache"),
    }
    return subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        stdin=subprocess.DEVNULL,
    )


def run(*arguments: str | Path, cwd: Path, trees: tuple[Path, ...]) -> str:
    return call(sys.executable, "-m", "sao_gym.run", *arguments, cwd=cwd, trees=trees)


def wheel_of(source: Path, folder: Path) -> Path:
    """Build without isolation: offline, with the setuptools of this environment."""
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", folder)
    call(sys.executable, "-m", "pip", "wheel", *options, source, cwd=folder)
    (wheel,) = folder.glob("*.whl")
    return wheel


def installed(wheel: Path, tree: Path) -> Path:
    options = ("--quiet", "--no-deps", "--no-compile", "--target", tree)
    call(sys.executable, "-m", "pip", "install", *options, wheel, cwd=wheel.parent)
    return tree


def copied(source: Path, target: Path, names: list[str]) -> Path:
    """A build writes into its source folder, so it gets a copy."""
    target.mkdir()
    for name in names:
        if (source / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
            shutil.copytree(source / name, target / name, ignore=ignored)
        else:
            shutil.copy(source / name, target / name)
    return target


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Our wheel, by way of the source archive, which thus is shown to be complete."""
    folder = tmp_path_factory.mktemp("wheel")
    source = copied(ROOT, folder / "source", ["pyproject.toml", "README.md", "LICENSE", *TOPS])
    code = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    call(sys.executable, "-c", code, folder, cwd=source)
    (archive,) = folder.glob("*.tar.gz")
    return wheel_of(archive, folder)


@pytest.fixture(scope="module")
def tree(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed(wheel, tmp_path_factory.mktemp("tree"))


@pytest.fixture(scope="module")
def plugin_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plugin")
    source = copied(PLUGIN, folder / "source", ["pyproject.toml", "src"])
    return installed(wheel_of(source, folder), folder / "tree")


def test_the_wheel_holds_one_namespace_with_its_data(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.split("/")[0] for name in names} == {"sao_gym", "sao_gym-0.1.0.dist-info"}
    top = {"sao_gym": ""} | {top: "sao_gym/" for top in TOPS if top != "sao_gym"}
    shipped = {
        top[folder] + str(path.relative_to(ROOT))
        for folder in TOPS
        for pattern in ("*.py", "*.yaml")
        for path in (ROOT / folder).rglob(pattern)
    }
    assert any(name.endswith(".yaml") for name in shipped)
    assert shipped - set(names) == set()
    assert {"sao_gym/py.typed", "sao_gym-0.1.0.dist-info/licenses/LICENSE"} <= set(names)


def test_the_wheel_is_what_runs(tree: Path, tmp_path: Path) -> None:
    code = (
        "import sao_gym, sao_gym.envs, sao_gym.learners.ops as ops\n"
        "print(sao_gym.__file__, sao_gym.envs.__file__, ops.__file__, sep='\\n')"
    )
    origins = call(sys.executable, "-c", code, cwd=tmp_path, trees=(tree,)).split()
    assert [Path(origin).relative_to(tree).parts[0] for origin in origins] == ["sao_gym"] * 3


def test_the_wheel_lists_every_entry_point(tree: Path, tmp_path: Path) -> None:
    found = json.loads(run("list", "--json", cwd=tmp_path, trees=(tree,)))
    points = PROJECT["project"]["entry-points"]
    assert found == {kind: points[f"sao_gym.{kind}"] for kind in found}
    assert set(found) == {"scenarios", "envs", "agents", "learners", "tasks"}


def test_the_console_script_works(tree: Path, tmp_path: Path) -> None:
    said = call(tree / "bin" / "sao-gym", "--version", cwd=tmp_path, trees=(tree,))
    assert PROJECT["project"]["version"] in said


def test_every_shipped_scenario_resolves(tree: Path, tmp_path: Path) -> None:
    names = sorted(PROJECT["project"]["entry-points"]["sao_gym.scenarios"])
    code = (
        "import sys\n"
        "from sao_gym.scenario import load_scenario\n"
        "print(*(load_scenario(name).name for name in sys.argv[1:]), sep='\\n')"
    )
    said = call(sys.executable, "-c", code, *names, cwd=tmp_path, trees=(tree,))
    assert said.split() == names


def test_a_scenario_runs_end_to_end(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(SCENARIO)
    options = ("--learner", "sao", "--seed", "3", "--set", "learner.params.batch_size=4")
    said = run(
        *("scenario", "small.yaml", *options, "--out", "out", "--json"), cwd=tmp_path, trees=(tree,)
    )
    summary = json.loads(said)
    out = tmp_path / "out"
    assert json.loads((out / "summary.json").read_text()).items() <= summary.items()
    assert {"scenario.yaml", "timeline.jsonl", "events.jsonl", "report.html"} <= {
        path.name for path in out.iterdir()
    }
    _, *events = map(json.loads, (out / "events.jsonl").read_text().splitlines())
    assert [event["event"] for event in events].count("RolloutStarted") == 64
    updates = [event for event in events if event["event"] == "UpdateFinished"]
    assert updates
    assert {len(event["rollouts"]) for event in updates} == {4}
    assert events[-1]["event"] == "RunEnded"
    offline = (out / "report.html").read_text()
    assert "<html" in offline


def test_a_wrong_name_is_one_line_and_exit_code_2(tree: Path, tmp_path: Path) -> None:
    command = (sys.executable, "-m", "sao_gym.run", "scenario", "defualt")
    done = call_unchecked(*command, cwd=tmp_path, trees=(tree,))
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "'default'" in line
    assert list(tmp_path.iterdir()) == []


def test_a_plugin_of_somebody_else_is_found(tree: Path, plugin_tree: Path, tmp_path: Path) -> None:
    without = json.loads(run("list", "--json", cwd=tmp_path, trees=(tree,)))
    found = json.loads(run("list", "--json", cwd=tmp_path, trees=(plugin_tree, tree)))
    added = {kind: sorted(set(found[kind]) - set(without[kind])) for kind in found}
    assert added == {
        "scenarios": ["parity_swap"],
        "envs": ["parity"],
        "agents": [],
        "learners": ["best_of"],
        "tasks": [],
    }


def test_a_plugin_of_somebody_else_fits_the_seams(
    tree: Path, plugin_tree: Path, tmp_path: Path
) -> None:
    code = (
        "from sao_gym import registry, testing\n"
        "env, learner = registry.load('envs', 'parity'), registry.load('learners', 'best_of')\n"
        "concepts = [{'words': 'EO'}, {'words': 'OE'}]\n"
        "print(*testing.check_environment(env, concepts=concepts), sep=',')\n"
        "print(*testing.check_learner(lambda setup: learner(setup, learner.Config())), sep=',')\n"
    )
    said = call(sys.executable, "-c", code, cwd=tmp_path, trees=(plugin_tree, tree))
    environment_rules, learner_rules = said.splitlines()
    assert "reference scores one" in environment_rules.split(",")
    assert learner_rules


def test_the_contract_check_sees_a_broken_plugin(
    tree: Path, plugin_tree: Path, tmp_path: Path
) -> None:
    code = (
        "from sao_gym import registry, testing\n"
        "class Stuck(registry.load('envs', 'parity')):\n"
        "    def reset(self, *, seed=None, options=None):\n"
        "        return super().reset(seed=seed)\n"
        "try:\n"
        "    testing.check_environment(Stuck, concepts=[{'words': 'OE'}])\n"
        "except testing.ContractError as error:\n"
        "    print(error)\n"
    )
    said = call(sys.executable, "-c", code, cwd=tmp_path, trees=(plugin_tree, tree))
    assert "concept" in said


def test_a_scenario_of_somebody_else_runs(tree: Path, plugin_tree: Path, tmp_path: Path) -> None:
    options = ("--out", "out", "--json", "--no-report", "--inline")
    run("scenario", "parity_swap", *options, cwd=tmp_path, trees=(plugin_tree, tree))
    _, *events = map(json.loads, (tmp_path / "out" / "events.jsonl").read_text().splitlines())
    assert {event["event"] for event in events} >= {"ConceptChanged", "Evaluated", "RunEnded"}
    assert not [event for event in events if event["event"] == "RolloutFailed"]
    score = {"plain": [], "swapped": []}
    for event in events:
        if event["event"] == "Evaluated":
            score[event["concept"]].append(event["score"])
    # it learned the first concept, then the other, which is the first one's opposite
    assert max(score["plain"]) >= 0.75
    assert score["swapped"][-1] >= 0.75
    assert score["plain"][-1] <= 0.25
