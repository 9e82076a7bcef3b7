"""Scenario files: what is wrong is one line with its place; what is right survives a round trip."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sao_gym import registry
from sao_gym.errors import InputError
from sao_gym.scenario import load_scenario
from sao_gym.timeline import Timeline
from sao_gym.yaml_source import dump, parse

FAKES = """
from typing import Literal
from pydantic import BaseModel, Field, model_validator

class Env:
    def __init__(self, *, kinds: int = 6, rate: float = 0.5): ...

class Agent:
    def __init__(self, tokenizer, *, max_new_tokens: int): ...

class Sao:
    class Config(BaseModel):
        batch_size: int = Field(default=32, ge=1)
        lam: float | Literal["adaptive"] = "adaptive"

class Grpo:
    class Config(BaseModel):
        batch_size: int = 32
        group_size: int = 8

        @model_validator(mode="after")
        def _fits(self):
            if self.batch_size % self.group_size:
                raise ValueError("batch_size is not a multiple of group_size")
            return self
"""

TEXT = """\
name: small
environment: {name: "sao_s_fakes:Env", params: {kinds: 4}}
agent:
  name: sao_s_fakes:Agent
  params:
    max_new_tokens: 1
model:
  init: {model_type: llama, hidden_size: 8}
learner:
  name: sao_s_fakes:Sao
  params: {batch_size: 16}
arms:
  sao_s_fakes:Grpo: {group_size: 4}
timeline:
  clock: started
  segments:
    - concept: {id: A, params: {x: 1}}
      length: 100
    - drift: {kind: gradual, length: 50}
    - concept: {id: B, params: {x: 2}}
      length: 100
time:
  environment: {kind: lognormal, mean: 2, sigma: 0.5}
"""
GRPO = "sao_s_fakes:Grpo"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A working directory whose scenario `s.yaml` speaks of fake plug-ins."""
    (tmp_path / "sao_s_fakes.py").write_text(FAKES)
    (tmp_path / "s.yaml").write_text(TEXT)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("sao_s_fakes", None)
    registry.params_model.cache_clear()


def load(folder, text=TEXT, **options):
    (folder / "s.yaml").write_text(text)
    return load_scenario("s.yaml", **options)


def refused(folder, text=TEXT, **options) -> str:
    with pytest.raises(InputError) as caught:
        load(folder, text, **options)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_defaults_are_written_out(folder):
    assert load(folder).resolved() == {
        "name": "small",
        "summary": "",
        "seed": 0,
        "environment": {"name": "sao_s_fakes:Env", "params": {"kinds": 4, "rate": 0.5}},
        "agent": {"name": "sao_s_fakes:Agent", "params": {"max_new_tokens": 1}},
        "model": {
            "init": {"model_type": "llama", "hidden_size": 8},
            "path": None,
            "symbols": "auto",
        },
        "warm_start": None,
        "learner": {"name": "sao_s_fakes:Sao", "params": {"batch_size": 16, "lam": "adaptive"}},
        "arms": {GRPO: {"group_size": 4}},
        "timeline": {
            "clock": "started",
            "observability": "hidden",
            "inflight": "pin",
            "segments": [
                {"concept": {"id": "A", "params": {"x": 1}}, "length": 100},
                {"drift": {"kind": "gradual", "length": 50, "ramp": "linear"}},
                {"concept": {"id": "B", "params": {"x": 2}}, "length": 100},
            ],
            "repeat": 1,
        },
        "cluster": {"slots": 256, "max_lag": 64, "kv": "rebuild"},
        "time": {
            "decode": {"kind": "constant", "value": 0.1},
            "environment": {"kind": "lognormal", "mean": 2.0, "sigma": 0.5},
            "update": {"kind": "constant", "value": 0.05},
            "publish": {"kind": "constant", "value": 0.0},
        },
        "evaluation": {"every": 5, "instances": 64},
        "budget": {"tasks": None, "rollouts": None, "updates": None, "seconds": None},
        "failures": {
            "stop_above": 0.2,
            "after": 50,
            "environment_timeout": 300.0,
            "watchdog": 3600.0,
            "retries": 3,
            "backoff": 1.0,
        },
        "checkpoint": {"every": 25, "keep": 2},
        "guards": {
            "window": 10,
            "entropy_below": 0.01,
            "masked_above": 0.5,
            "length_above": 4.0,
            "length_below": 0.25,
            "negative_batches": 3,
            "explained_variance_below": -1.0,
            "nonfinite_updates": 3,
        },
        "faults": [],
    }


def golden(first: str) -> list:
    """The cases of `golden/scenario_errors.txt` whose first line begins with `first`."""
    text = (Path(__file__).parent / "golden" / "scenario_errors.txt").read_text(encoding="utf-8")
    cases = []
    for block in text.split("\n\n")[1:]:
        lines = block.strip().split("\n")
        if lines[0].startswith(first):
            *question, answer = (line[2:].replace("\\n", "\n") for line in lines)
            cases.append(pytest.param(*question, answer, id=answer[:60]))
    assert cases
    return cases


@pytest.mark.parametrize(("old", "new", "message"), golden("-"))
def test_errors_name_the_line(folder, old, new, message):
    if old == "(all)":
        old = TEXT
    assert TEXT.count(old) == 1
    assert refused(folder, TEXT.replace(old, new)) == message


def test_an_unknown_key_is_told_before_what_it_leaves_missing(folder):
    text = TEXT.replace("{kind: lognormal, mean: 2, sigma", "{kind: lognormal, maen: 2, sigma")
    assert refused(folder, text) == (
        "s.yaml:23: time.environment.maen: unknown key; did you mean 'mean'?"
    )


def test_a_merged_key_is_blamed_where_it_is_written(folder):
    text = TEXT.replace("name: small\n", "name: &n small\n").replace(
        "  params: {batch_size: 16}\narms:\n",
        "  params: &p {batch_size: 16, lamm: 1}\narms:\n  sao_s_fakes:Sao: {<<: *p}\n",
    )
    assert refused(folder, text) == (
        "s.yaml:11: learner.params.lamm: unknown key; did you mean 'lam'?"
    )


def test_not_utf8(folder):
    (folder / "s.yaml").write_bytes(b"name: \xff\n")
    with pytest.raises(InputError, match=r"^s\.yaml: not UTF-8 text"):
        load_scenario("s.yaml")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("defalt", "defalt: no scenario or file of that name; did you mean 'default'?"),
        ("here/defalt.yaml", "here/defalt.yaml: no such file; did you mean 'default'?"),
        (".", ".: no scenario or file of that name; known: "),
    ],
)
def test_no_such_scenario(name, message):
    with pytest.raises(InputError) as caught:
        load_scenario(name)
    assert str(caught.value).startswith(message)


def test_a_file_needs_no_suffix(folder):
    (folder / "plain").write_text(TEXT)
    assert load_scenario(folder / "plain").name == "small"
    assert load_scenario("plain").name == "small"


def test_a_plugin_that_cannot_be_imported_shows_why(folder):
    (folder / "sao_s_fakes.py").write_text("import sao_s_missing")
    with pytest.raises(ModuleNotFoundError, match="sao_s_missing"):
        load(folder)


# --- the command line ----------------------------------------------------------------------------


def test_overrides_and_seed(folder):
    scenario = load(
        folder,
        seed=7,
        overrides=[
            "timeline.segments.0.length=10",
            "cluster.slots=8",
            "learner.params.lam=1e-1",
            "warm_start={steps: 5}",
            "evaluation.every=null",
        ],
    )
    assert scenario.seed == 7
    assert Timeline(scenario.timeline).length == 160
    assert scenario.cluster.slots == 8
    assert scenario.learner.params == {"batch_size": 16, "lam": 0.1}
    assert scenario.warm_start is not None
    assert scenario.warm_start.noise == 0.3
    assert scenario.evaluation.every is None


@pytest.mark.parametrize(("override", "message"), golden("$"))
def test_a_wrong_override_is_named_in_place_of_a_line(folder, override, message):
    assert refused(folder, overrides=[override]) == message


def test_seed_0_is_a_seed(folder):
    assert load(folder, TEXT + "seed: 5\n").seed == 5
    assert load(folder, TEXT + "seed: 5\n", seed=0).seed == 0


def test_a_wrong_seed(folder):
    assert refused(folder, seed=-1) == (
        "--seed -1: seed: must be greater than or equal to 0, not -1"
    )


def test_another_learner_takes_its_arm(folder):
    scenario = load(folder, learner=GRPO)
    assert scenario.learner.name == GRPO
    assert scenario.learner.params == {"batch_size": 32, "group_size": 4}
    assert scenario.arms == {GRPO: {"group_size": 4}, "sao_s_fakes:Sao": {"batch_size": 16}}


def test_a_learner_without_an_arm_has_its_defaults(folder):
    text = TEXT.replace("arms:\n  sao_s_fakes:Grpo: {group_size: 4}\n", "")
    assert load(folder, text, learner=GRPO).learner.params == {"batch_size": 32, "group_size": 8}


def test_the_files_own_learner_keeps_its_params(folder):
    assert load(folder, learner="sao_s_fakes:Sao") == load(folder)


def test_overrides_hold_for_the_picked_learner(folder):
    scenario = load(folder, learner=GRPO, overrides=["learner.params.group_size=2"])
    assert scenario.learner.params["group_size"] == 2
    override = f"arms.{GRPO}.group_size=16"
    scenario = load(folder, learner=GRPO, overrides=[override, "learner.params.batch_size=16"])
    assert scenario.learner.params == {"group_size": 16, "batch_size": 16}


def test_an_arms_error_names_its_own_line(folder):
    text = TEXT.replace("{group_size: 4}", "{group_sise: 4}")
    assert refused(folder, text, learner=GRPO) == (
        "s.yaml:13: learner.params.group_sise: unknown key; did you mean 'group_size'?"
    )
    text = TEXT.replace("{group_size: 4}", "{group_size: 5}")
    assert refused(folder, text, learner=GRPO) == (
        "s.yaml:13: learner.params: batch_size is not a multiple of group_size"
    )


def test_an_unknown_learner_on_the_command_line(folder):
    assert refused(folder, learner="saoo") == (
        "--learner saoo: learner.name: unknown learner 'saoo'; did you mean 'sao'?"
    )


# --- round trips ---------------------------------------------------------------------------------


def reloaded(folder, scenario, **options):
    (folder / "again.yaml").write_text(scenario.to_yaml(), encoding="utf-8")
    return load_scenario("again.yaml", **options)


def test_there_and_back_between_learners(folder):
    first = load(folder)
    picked = load(folder, learner=GRPO)
    assert reloaded(folder, picked) == picked
    assert reloaded(folder, picked, learner="sao_s_fakes:Sao").learner == first.learner
    assert reloaded(folder, first, learner=GRPO).learner == picked.learner


assignments = st.one_of(
    st.builds("cluster.slots={}".format, st.integers(1, 9999)),
    st.builds("cluster.max_lag={}".format, st.integers(0, 9)),
    st.builds("time.decode={{kind: constant, value: {!r}}}".format, st.floats(0, 1e6)),
    st.builds("environment.params.rate={!r}".format, st.floats(-1e9, 1e-9)),
    st.builds("time.update={{kind: gamma, mean: {!r}, shape: 2}}".format, st.floats(1e-9, 9)),
    st.builds("time.publish={{kind: empirical, values: {}}}".format, st.just([0.25, 3.0])),
    st.builds("timeline.segments.0.length={}".format, st.integers(1, 9999)),
    st.builds(
        "timeline.segments.1.drift={}".format,
        st.sampled_from(
            ["{kind: abrupt}", "{kind: incremental, param: x, from: 1, to: 2, length: 5}"]
        ),
    ),
    st.builds("timeline.clock={}".format, st.sampled_from(["version", "seconds", "tokens"])),
    st.builds("budget.rollouts={}".format, st.integers(1, 9999)),
    st.builds("summary={}".format, st.sampled_from(["'1e-3'", "'yes: #'", "'~'", "a: b"[:1]])),
    st.builds("model={}".format, st.just("{path: 'some dir'}")),
)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(overrides=st.lists(assignments, max_size=4), learner=st.sampled_from([None, GRPO]))
def test_what_is_resolved_reads_back_equal(folder, overrides, learner):
    scenario = load(folder, overrides=overrides, learner=learner)
    again = reloaded(folder, scenario)
    assert again == scenario
    assert again.to_yaml() == scenario.to_yaml()


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(slots=st.integers(1, 9999), length=st.integers(1, 9999))
def test_an_override_is_what_the_file_would_have_said(folder, slots, length):
    written = TEXT.replace("length: 50", f"length: {length}") + f"cluster: {{slots: {slots}}}\n"
    overrides = [f"timeline.segments.1.drift.length={length}", f"cluster.slots={slots}"]
    assert load(folder, overrides=overrides) == load(folder, written)


def test_builtin_scenarios_load_with_every_arm(folder):
    for name, entry in registry.available("scenarios").items():
        if entry.dist is None or entry.dist.name != "sao-gym":
            continue
        scenario = load_scenario(name)
        assert scenario.name == name
        assert scenario.summary
        assert reloaded(folder, scenario) == scenario
        for arm in scenario.arms:
            assert load_scenario(name, learner=arm).learner.name == arm
        length = Timeline(scenario.timeline).length
        if length is None:
            assert scenario.budget.rollouts
            continue
        if scenario.timeline.clock == "started":
            assert scenario.budget.rollouts == length


def test_a_packaged_scenario_is_blamed_by_its_path():
    with pytest.raises(InputError, match=r"scenarios/default\.yaml:\d+ \(with --set"):
        load_scenario("default", overrides=["model.path=x"])


def test_reading_a_scenario_brings_no_torch_along(folder):
    code = (
        "import sys; from sao_gym.scenario import load_scenario; load_scenario('s.yaml');"
        "bad = [m for m in ('torch', 'transformers', 'scipy') if m in sys.modules];"
        "assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=folder)


def test_yaml_of_resolved_is_what_parse_reads(folder):
    scenario = load(folder)
    assert parse(dump(scenario.resolved()), name="x").data == scenario.resolved()
