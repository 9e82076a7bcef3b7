"""Plug-ins are found by name or import path, one at a time, and loudly when they are not."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint, PathDistribution

import pytest
from pydantic import ValidationError

from sao_gym import registry
from sao_gym.errors import InputError


@pytest.fixture(autouse=True)
def _fresh():
    registry.available.cache_clear()
    yield
    registry.available.cache_clear()


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Writes modules that can be imported during the test."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(name: str, text: str) -> None:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")

    yield write
    for module in [m for m in sys.modules if m.startswith("sao_t_")]:
        del sys.modules[module]


def distribution(folder, name, entries):
    """Metadata of an installed distribution, as pip writes it."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entries)
    return PathDistribution(info)


def test_every_builtin_name_leads_to_its_folder():
    for kind in ("envs", "agents", "learners", "scenarios"):
        assert list(registry.available(kind)) == sorted(registry.available(kind))
        own = [e for e in registry.available(kind).values() if e.dist and e.dist.name == "sao-gym"]
        assert own
        assert all(entry.module.startswith(f"sao_gym.{kind}") for entry in own)


def test_asking_what_there_is_imports_no_plugin():
    code = (
        "import sys; from sao_gym import registry;"
        "[list(registry.available(k)) for k in ('envs', 'agents', 'learners', 'scenarios')];"
        "bad = [m for m in sys.modules if m.startswith(('sao_gym.envs', 'sao_gym.agents', "
        "'sao_gym.learners', 'sao_gym.scenarios', 'torch', 'transformers', 'scipy'))];"
        "assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_only_the_named_plugin_is_imported(package, tmp_path):
    package("sao_t_one.py", "class Maze: pass")
    package("sao_t_two.py", "raise RuntimeError('nobody asked for this')")
    distribution(tmp_path, "a", "[sao_gym.envs]\nmaze = sao_t_one:Maze\nbroken = sao_t_two:Other\n")
    assert registry.load("envs", "maze").__module__ == "sao_t_one"
    assert "sao_t_two" not in sys.modules
    with pytest.raises(RuntimeError, match="nobody asked"):
        registry.load("envs", "broken")


def test_an_unknown_name_gets_a_suggestion():
    with pytest.raises(InputError) as caught:
        registry.load("envs", "tool_us")
    assert str(caught.value) == "unknown environment 'tool_us'; did you mean 'tool_use'?"
    assert caught.value.exit_code == 2


def test_two_distributions_that_claim_a_name(package, tmp_path):
    distribution(tmp_path, "first", "[sao_gym.agents]\nclash = sao_t_x:A\n")
    distribution(tmp_path, "second", "[sao_gym.agents]\nclash = sao_t_y:A\n")
    with pytest.raises(InputError) as caught:
        registry.load("agents", "clash")
    assert str(caught.value) == (
        "two plug-ins claim the agent 'clash': sao_t_x:A (first 1.0) and sao_t_y:A (second 1.0); "
        "uninstall one of them"
    )
    assert "tool_use" in registry.available("envs")


def test_a_third_party_name_beside_a_builtin_one_is_a_clash_too(package, tmp_path):
    distribution(tmp_path, "rival", "[sao_gym.learners]\nsao = sao_t_x:Sao\n")
    with pytest.raises(InputError, match=r"rival 1\.0"):
        registry.available("learners")


def test_an_import_path_needs_no_installation(package):
    package("sao_t_free.py", "class Outer:\n    class Inner:\n        pass\n")
    assert registry.load("envs", "sao_t_free:Outer").__name__ == "Outer"
    assert registry.load("envs", "sao_t_free:Outer.Inner").__name__ == "Inner"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (
            "sao_t_nowhere.deep:Maze",
            (
                "environment 'sao_t_nowhere.deep:Maze': there is no module 'sao_t_nowhere'; "
                "an import path is package.module:Name"
            ),
        ),
        (
            "sao_t_here:Mase",
            "environment 'sao_t_here:Mase': sao_t_here has no 'Mase'; did you mean 'Maze'?",
        ),
    ],
)
def test_an_import_path_that_leads_nowhere(package, path, message):
    package("sao_t_here.py", "class Maze: pass")
    with pytest.raises(InputError) as caught:
        registry.load("envs", path)
    assert str(caught.value) == message


@pytest.mark.parametrize("by", ["path", "name"])
def test_what_a_plugin_itself_cannot_import_is_shown_unwrapped(package, tmp_path, by):
    package("sao_t_needs.py", "import sao_t_is_missing\nclass Maze: pass\n")
    distribution(tmp_path, "a", "[sao_gym.envs]\nneedy = sao_t_needs:Maze\n")
    with pytest.raises(ModuleNotFoundError, match="sao_t_is_missing"):
        registry.load("envs", "sao_t_needs:Maze" if by == "path" else "needy")


def test_scenarios_come_by_the_same_door(package, tmp_path):
    package("sao_t_pack/scenarios/__init__.py", "")
    package("sao_t_pack/__init__.py", "")
    package("sao_t_pack/scenarios/maze.yaml", "name: maze\n")
    entries = "[sao_gym.scenarios]\nmaze = sao_t_pack.scenarios\nlost = sao_t_pack.scenarios\n"
    distribution(tmp_path, "a", entries)
    assert registry.load("scenarios", "maze").read_text() == "name: maze\n"
    assert registry.load("scenarios", "sao_t_pack.scenarios:maze").is_file()
    with pytest.raises(InputError, match=r"sao_t_pack\.scenarios holds no file lost\.yaml"):
        registry.load("scenarios", "lost")


def test_every_builtin_scenario_has_its_file_and_every_file_its_name():
    entries = registry.available("scenarios")
    own = {name for name, e in entries.items() if e.dist and e.dist.name == "sao-gym"}
    for name in own:
        assert registry.load("scenarios", name).is_file()
    folder = registry.load("scenarios", "default").parent
    assert {file.stem for file in folder.glob("*.yaml")} == own


FAKES = """
from __future__ import annotations
from typing import TYPE_CHECKING, Literal
from pydantic import BaseModel
from sao_gym.task import task
if TYPE_CHECKING:
    from nowhere import Tokenizer

Side = Literal["0", "1"]

def tick(): ...

class Env:
    def __init__(self, *, kinds: int = 6, rate: float, mode: Literal["a", "b"] = "a",
                 sizes: tuple[int, ...] = (1, 2), limit: int = None, copy: bool = False,
                 _depth: int = 0, clock=tick, free=None):
        self.got = (kinds, rate, mode, sizes, limit, copy, _depth, clock is tick, free)

class Agent:
    def __init__(self, tokenizer: Tokenizer, *, max_new_tokens: int = 1):
        self.got = (tokenizer, max_new_tokens)

class Learner:
    class Config(BaseModel):
        rate: float = 0.5
    def __init__(self, setup, config):
        self.got = (setup, config.rate)

def plain(*, size: int = 2):
    return size

@task(charset="01")
def coin(rng, concept, *, side: Side = "0"):
    return side, side
"""


@pytest.fixture
def fakes(package):
    package("sao_t_fakes.py", FAKES)
    return lambda name: registry.load("envs", f"sao_t_fakes:{name}")


def test_params_are_the_keyword_only_parameters(fakes):
    env = registry.construct(fakes("Env"), params={"rate": 1, "sizes": [3, 4], "mode": "b"})
    assert env.got == (6, 1.0, "b", (3, 4), None, False, 0, True, None)
    assert isinstance(env.got[1], float)
    params = {"rate": 1, "limit": 3, "copy": True, "_depth": 2, "free": "x"}
    env = registry.construct(fakes("Env"), params=params)
    assert env.got == (6, 1.0, "a", (1, 2), 3, True, 2, True, "x")
    env = registry.construct(fakes("Env"), params={"rate": 1, "limit": None})
    assert env.got[4] is None


def test_annotations_are_read_where_they_were_written(fakes, package):
    package("sao_t_child.py", "from sao_t_fakes import Env\nclass Child(Env): pass\n")
    child = registry.load("envs", "sao_t_child:Child")
    assert registry.construct(child, params={"rate": 1, "mode": "b"}).got[2] == "b"
    coin = fakes("coin")
    assert registry.construct(coin, params={"side": "1"}).reset(seed=0)[0] == "1"
    with pytest.raises(ValidationError, match="side"):
        registry.construct(coin, params={"side": "2"})


def test_a_factory_checks_once_and_makes_many(fakes):
    factory = registry.bind(fakes("Env"), params={"rate": 1})
    assert factory() is not factory()
    with pytest.raises(ValidationError):
        registry.bind(fakes("Env"), params={"rate": "1"})


def test_positional_parameters_are_the_callers(fakes):
    agent = registry.construct(fakes("Agent"), "tokens", params={"max_new_tokens": 2})
    assert agent.got == ("tokens", 2)
    with pytest.raises(ValidationError, match="tokenizer"):
        registry.construct(fakes("Agent"), "tokens", params={"tokenizer": "x"})


def test_a_nested_config_is_taken_and_never_ignores_a_key(fakes):
    learner = fakes("Learner")
    assert registry.params_model(learner) is learner.Config
    assert registry.construct(learner, "setup", params={"rate": 2}).got == ("setup", 2.0)
    with pytest.raises(ValidationError, match="rat"):
        registry.construct(learner, "setup", params={"rat": 2})


def test_a_function_is_a_plugin_too(fakes):
    assert registry.construct(fakes("plain"), params={"size": 5}) == 5


@pytest.mark.parametrize(
    ("params", "place"),
    [
        ({}, "rate"),
        ({"rate": "1"}, "rate"),
        ({"rate": 1, "kinds": "6"}, "kinds"),
        ({"rate": 1, "kinds": True}, "kinds"),
        ({"rate": 1, "kinds": 1.0}, "kinds"),
        ({"rate": 1, "mode": "c"}, "mode"),
        ({"rate": 1, "kindz": 6}, "kindz"),
        ({"rate": 1, "clock": 6}, "clock"),
    ],
)
def test_wrong_params_are_refused(fakes, params, place):
    with pytest.raises(ValidationError) as caught:
        registry.construct(fakes("Env"), params=params)
    assert [error["loc"][0] for error in caught.value.errors()] == [place]


def test_entries_without_a_distribution_are_described():
    entry = EntryPoint(name="x", value="m:X", group="sao_gym.envs")
    assert "m:X" in registry._described(entry)
