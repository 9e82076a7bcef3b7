"""A scenario: one YAML file that says what is run. Each section is a small model of its own.

`load_scenario` reads it, applies the command line, checks everything, the plug-ins' parameters too,
and writes out every default. Whatever is wrong is one line:

    FILE:LINE: path.to.key: what is wrong; what to do

with the option (`--set ...`) in the place of FILE:LINE if that is where the value came from.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, PrivateAttr, model_validator

from sao_gym import registry
from sao_gym.errors import InputError, suggestion
from sao_gym.faults import FaultRule
from sao_gym.guards import Thresholds
from sao_gym.latency import Constant, Latency, LogNormal
from sao_gym.timeline_config import Name, TimelineConfig
from sao_gym.validation import Section, check, misplaced
from sao_gym.yaml_source import Source, dotted, dump, parse

Count: TypeAlias = Annotated[int, Field(ge=1)]
Natural: TypeAlias = Annotated[int, Field(ge=0)]
Share: TypeAlias = Annotated[float, Field(ge=0, le=1)]
Params: TypeAlias = dict[str, Any]


class Plugin(Section):
    """A plug-in by name or import path, and what its constructor or `Config` takes."""

    name: str = Field(min_length=1)
    params: Params = Field(default_factory=dict)


class ModelSpec(Section):
    """The policy's model: made anew (`init`) or read from a directory (`path`)."""

    init: Params | None = None
    """Fields of a `transformers` config class; `model_type` names it."""
    path: str | None = None
    """A directory written by `save_pretrained`, tokenizer included."""
    symbols: str = Field(default="auto", min_length=1)
    """With `init`: the tokenizer's characters. `auto`: those that the environment's spaces name."""

    @model_validator(mode="after")
    def _one_form(self) -> ModelSpec:
        if (self.init is None) == (self.path is None):
            raise misplaced((), "give exactly one of init and path")
        if self.init is not None and not isinstance(self.init.get("model_type"), str):
            raise misplaced(("init",), "model_type is missing; name an architecture, e.g. llama")
        if self.path is not None and self.symbols != "auto":
            raise misplaced(("symbols",), "a model read from path brings its tokenizer; remove it")
        return self


class WarmStart(Section):
    """Imitation of noisy demonstrations before the run."""

    steps: Count
    batch_size: Count = 128
    learning_rate: float = Field(default=1e-3, gt=0)
    noise: Share = 0.3
    """Share of the demonstrator's actions replaced by a uniform valid one."""
    noise_after_error: Share = 1.0
    """The same, for actions that follow an error."""


class Cluster(Section):
    """The machinery that is simulated or used."""

    slots: Count = 256
    """Rollouts acting at the same time."""
    max_lag: int = Field(default=64, ge=0)
    """Published versions that the oldest token of a trained rollout may be behind; 0: in step."""
    kv: Literal["rebuild", "keep"] = "rebuild"
    """After a publish: compute the KV caches of open sequences anew, or keep the old ones."""


class TimeSpec(Section):
    """How long things take, in virtual seconds."""

    decode: Latency = Constant(value=0.1)
    """One token for every active sequence."""
    environment: Latency = LogNormal(mean=1.0, sigma=1.0)
    """One `reset` or `step`."""
    update: Latency = Constant(value=0.05)
    """One policy forward-backward pass; scaled by the learner's `relative_cost`."""
    publish: Latency = Constant(value=0.0)
    """From the end of an update until the engine samples from its result."""


class EvaluationSpec(Section):
    """Side evaluation of the published policy."""

    every: Count | None = 5
    """Updates between two evaluations; null: none."""
    instances: Count = 64
    """Tasks per concept, the same each time."""


class Budget(Section):
    """Where a run ends, whichever comes first; if nothing is given, where the timeline ends.

    0 evaluates the policy as it begins.
    """

    tasks: Natural | None = None
    """Tasks drawn; each is issued to a whole group of rollouts."""
    rollouts: Natural | None = None
    """Rollouts started."""
    updates: Natural | None = None
    """Policy versions published."""
    seconds: float | None = Field(default=None, ge=0)
    """Seconds on the run's clock."""


class FailureSpec(Section):
    """How long the machinery is waited for, and when a run stops because it breaks."""

    stop_above: Share = 0.2
    """Stop when this share of rollouts has failed ..."""
    after: Count = 50
    """... once this many have ended."""
    environment_timeout: float = Field(default=300.0, gt=0)
    """Seconds for one answer of an environment; then its rollout has failed (timeout)."""
    watchdog: float = Field(default=3600.0, gt=0)
    """Seconds without any event after which the run ends as stalled."""
    retries: Natural = 3
    """How often an engine, an update or a publish that failed is tried again in a row."""
    backoff: float = Field(default=1.0, ge=0)
    """Seconds before the first retry; doubled for each further one."""

    @model_validator(mode="after")
    def _in_order(self) -> FailureSpec:
        if self.watchdog < self.environment_timeout:
            raise misplaced(
                ("watchdog",),
                f"shorter than environment_timeout ({self.environment_timeout:g} s): one slow "
                "environment would end the run",
            )
        return self


class CheckpointSpec(Section):
    """What a run can be continued from. Taking one changes nothing else."""

    every: Count | None = 25
    """Updates between two checkpoints; null: only when the run is interrupted."""
    keep: Count = 2
    """How many are kept, the last ones."""


@dataclass(frozen=True, slots=True)
class _Written:
    """Where a scenario was read from. Equal scenarios may come from different files."""

    source: Source | None = field(default=None, compare=False)


class Scenario(Section):
    """A checked scenario with every default written out."""

    name: Name
    summary: str = ""
    seed: int = Field(default=0, ge=0)
    environment: Plugin
    agent: Plugin
    model: ModelSpec
    warm_start: WarmStart | None = None
    learner: Plugin
    arms: dict[str, Params] = Field(default_factory=dict)
    """Learner -> its params when it is picked in place of `learner`; only what was written."""
    timeline: TimelineConfig
    cluster: Cluster = Cluster()
    time: TimeSpec = TimeSpec()
    evaluation: EvaluationSpec = EvaluationSpec()
    budget: Budget = Budget()
    failures: FailureSpec = FailureSpec()
    checkpoint: CheckpointSpec = CheckpointSpec()
    guards: Thresholds = Thresholds()
    faults: tuple[FaultRule, ...] = ()
    _written: _Written = PrivateAttr(default_factory=lambda: _Written())

    @model_validator(mode="after")
    def _ends(self) -> Scenario:
        last = len(self.timeline.segments) - 1
        endless = getattr(self.timeline.segments[last], "length", 0) is None
        if endless and all(limit is None for _, limit in self.budget):
            raise misplaced(
                ("timeline", "segments", last),
                "the last concept holds for ever and no budget ends the run; give it a length or "
                "set budget.rollouts, budget.updates or budget.seconds",
            )
        return self

    def error(self, path: tuple[str | int, ...], message: str) -> InputError:
        """An error about the value at `path`, with file and line if this was read from a file."""
        if self._written.source is not None:
            return self._written.source.error(path, message)
        return InputError(f"{dotted(path)}: {message}")

    def resolved(self) -> dict[str, Any]:
        """Everything, defaults included, as plain data in a fixed order.

        `yaml_source.dump` writes it; loading that gives an equal scenario.
        """
        return self.model_dump(mode="json", by_alias=True, round_trip=True)

    def to_yaml(self) -> str:
        """`resolved` as a scenario file."""
        return dump(self.resolved())


def load_scenario(
    name_or_path: str | os.PathLike[str],
    *,
    learner: str | None = None,
    seed: int | None = None,
    overrides: Sequence[str] = (),
) -> Scenario:
    """Read, change and check a scenario; imports the three plug-ins that it names.

    Args:
        name_or_path: a name (`registry.available("scenarios")`), an import path
            `package:name`, or a file.
        learner: pick this learner, with the params of `arms` or else its defaults. The file's own
            learner stays, as an arm.
        seed: in place of the file's.
        overrides: assignments `path.to.key=value`, values in YAML, lists by index:
            `timeline.segments.0.length=10`. They hold for the picked learner.

    Raises:
        InputError: anything is wrong, in one line with its place.
    """
    source = _read(name_or_path)
    of_arms = [text for text in overrides if text.startswith("arms.")]
    for text in of_arms:
        source = source.overridden(text)
    if learner is not None:
        source = _picked(source, learner)
    for text in overrides:
        if text not in of_arms:
            source = source.overridden(text)
    if seed is not None:
        source = source.replaced(("seed",), seed, f"--seed {seed}")
    scenario = check(Scenario, source)
    _check_arms(scenario, source)
    checked = scenario.model_copy(
        update={
            "environment": _explicit("envs", "environment", scenario.environment, source),
            "agent": _explicit("agents", "agent", scenario.agent, source),
            "learner": _explicit("learners", "learner", scenario.learner, source),
        }
    )
    checked._written = _Written(source)
    return checked


def _read(name_or_path: str | os.PathLike[str]) -> Source:
    text = os.fspath(name_or_path)
    file: Path | Traversable = Path(text)
    looks_like_file = Path(text).suffix in {".yaml", ".yml"} or os.sep in text
    if not looks_like_file and (text in registry.available("scenarios") or ":" in text):
        file = registry.load("scenarios", text)
    if not file.is_file():
        hint = suggestion(Path(text).stem, registry.available("scenarios"))
        what = "no such file" if looks_like_file else "no scenario or file of that name"
        raise InputError(f"{text}: {what}; {hint}")
    try:
        content = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{file}: not UTF-8 text ({error.reason}); save it as UTF-8") from None
    source = parse(content, name=str(file))
    if source.data is None:
        raise source.error((), "the file is empty; `sao-gym describe default` shows a scenario")
    if not isinstance(source.data, dict):
        raise source.error((), "a scenario is a mapping of sections (name, environment, ...)")
    return source


def _picked(source: Source, learner: str) -> Source:
    """`learner` with its arm's params; what was the learner becomes an arm."""
    origin = f"--learner {learner}"
    own = source.get(("learner", "name"))
    if own == learner:
        return source
    if isinstance(own, str) and source.get(("arms", own)) is None:
        params = ("learner", "params")
        source = (
            source.replaced(("arms", own), {}, source.origin(("learner",)))
            if source.get(params) is None
            else source.copied(params, ("arms", own))
        )
    arm = source.get(("arms", learner))
    source = source.replaced(("learner",), {"name": learner}, origin)
    return source if arm is None else source.copied(("arms", learner), ("learner", "params"))


def _check_arms(scenario: Scenario, source: Source) -> None:
    known = registry.available("learners")
    for name in scenario.arms:
        if ":" not in name and name not in known:
            raise source.error(("arms", name), f"unknown learner; {suggestion(name, known)}")


def _explicit(kind: registry.Kind, section: str, named: Plugin, source: Source) -> Plugin:
    """With the plug-in's params checked and its defaults written out."""
    try:
        plugin = registry.load(kind, named.name)
    except InputError as error:
        raise source.error((section, "name"), str(error)) from None
    checked = check(registry.params_model(plugin), source, (section, "params"))
    params = checked.model_dump(mode="json", by_alias=True, round_trip=True)
    return Plugin(name=named.name, params=params)
