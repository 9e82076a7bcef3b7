"""What the commands of `sao_gym.run` do."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from pydantic import ValidationError
from rich.console import Console
from rich.table import Table

from sao_gym import registry
from sao_gym.errors import DifferenceError, InputError
from sao_gym.executors.trainers import ProcessTrainer
from sao_gym.scenario import Budget, Scenario, load_scenario
from sao_gym.timeline import Realised, Timeline


def load(
    name: str | None, learner: str | None, seed: int | None, overrides: Sequence[str]
) -> Scenario:
    return load_scenario(name or "default", learner=learner, seed=seed, overrides=list(overrides))


@contextmanager
def learner_process(inline: bool) -> Iterator[ProcessTrainer | None]:
    """The learner's process, which imports what it needs while the scenario is read."""
    from sao_gym import assemble

    process = None if inline else assemble.learner_process()
    try:
        yield process
    finally:
        if process is not None:
            process.close()


def run_scenario(
    scenario: Scenario,
    *,
    out: str | None,
    resume: bool,
    live: bool,
    beside: ProcessTrainer | None,
    as_json: bool,
    quiet: bool,
    report: bool,
) -> int:
    """Run or go on with a run, record, summarise, report. Returns the exit code."""
    from sao_gym.outputs import finish_run
    from sao_gym.play import Played, play, run_directory

    began = time.monotonic()
    directory = Path(out) if out else run_directory(scenario, resume=resume)
    if resume and (done := _finished(directory)) is not None:
        played = Played(weights_sha256=done["weights_sha256"])
        summary = done
        click.echo(f"{directory}: already finished; nothing to resume", err=True)
    else:
        played = play(
            scenario, directory, resume=resume, live=live, beside=beside or False, quiet=quiet
        )
        wall = time.monotonic() - began
        summary = finish_run(
            directory,
            weights_sha256=played.weights_sha256,
            wall_seconds=wall,
            checkpoints=played.checkpoints,
        )
    paths = _write_report(directory) if report else {}
    if as_json:
        print(json.dumps(summary | {"directory": str(directory)} | paths, indent=2))
    else:
        _print_summary(summary, directory, paths, seconds=time.monotonic() - began)
    for line in played.lines:
        click.echo(line, err=True)
    return played.code


def _finished(directory: Path) -> dict[str, Any] | None:
    """The summary of a run that came to its own end."""
    from sao_gym.outputs import SUMMARY, read_summary

    if not (directory / SUMMARY).is_file():
        return None
    summary = read_summary(directory)
    reason = summary["ended"]["reason"]
    return summary if reason in Budget.model_fields else None


def _write_report(directory: Path) -> dict[str, str]:
    from sao_gym.report import write_report

    paths = write_report(directory, decode=_decoder(directory))
    return {"report": str(paths.html), "figure": str(paths.png)}


def _decoder(directory: Path) -> Any:
    """Token ids to text, if the run's tokenizer can be made again."""
    from sao_gym.tokenizer import decode
    from sao_gym.world import tokenizer_of

    tokenizer = tokenizer_of(load_scenario(str(directory / "scenario.yaml")))
    return lambda ids: decode(tokenizer, ids)


def _print_summary(
    summary: dict[str, Any], directory: Path, paths: dict[str, str], *, seconds: float
) -> None:
    from sao_gym.summary import table

    console = Console()
    console.print(table(summary))
    console.print(f"run      {directory}  ({seconds:.0f} s)", highlight=False, soft_wrap=True)
    for what, path in paths.items():
        console.print(f"{what:8} {path}", highlight=False, soft_wrap=True)


def dry_run(scenario: Scenario, *, as_json: bool) -> None:
    """Print the resolved scenario."""
    import yaml

    resolved = scenario.resolved()
    if as_json:
        print(json.dumps(resolved, indent=2))
    else:
        print(yaml.safe_dump(resolved, sort_keys=False, allow_unicode=True), end="")


def describe(scenario: Scenario, *, as_json: bool) -> None:
    """Print the timeline and how many rollouts of each concept this seed gives."""
    timeline = Timeline(scenario.timeline)
    length = timeline.length
    rollouts = scenario.budget.rollouts or (
        int(length) if length is not None and timeline.clock == "started" else 10_000
    )
    step = 1.0 if timeline.clock == "started" or length is None else length / rollouts
    stretches = timeline.realised(scenario.seed, rollouts, step)
    if as_json:
        print(json.dumps(_described(scenario, timeline, stretches), indent=2))
        return
    console = Console()
    console.print(f"{scenario.name}: {scenario.summary}", highlight=False)
    console.print(
        f"clock {timeline.clock}, {timeline.observability} from the agent, rollouts open at a "
        f"change: {timeline.inflight}; world {timeline.digest()[:12]}",
        highlight=False,
    )
    table = Table("from", "to", "what", "rollouts of each concept", box=None, pad_edge=False)
    for s in stretches:
        counts = ", ".join(f"{concept} {n:,}" for concept, n in sorted(s.counts.items()))
        end = "" if s.end == float("inf") else f"{s.end:,.0f}"
        table.add_row(f"{s.start:,.0f}", end, s.kind, counts or "none")
    console.print(table)
    for concept in timeline.concepts:
        console.print(f"{concept.id}  {dict(concept.params)}", highlight=False, markup=False)


def _described(
    scenario: Scenario, timeline: Timeline, stretches: Sequence[Realised]
) -> dict[str, Any]:
    return {
        "scenario": scenario.name,
        "clock": timeline.clock,
        "observability": timeline.observability,
        "inflight": timeline.inflight,
        "world_sha256": timeline.digest(),
        "concepts": {concept.id: dict(concept.params) for concept in timeline.concepts},
        "stretches": [
            {
                "from": s.start,
                "to": None if s.end == float("inf") else s.end,
                "kind": s.kind,
                "counts": s.counts,
            }
            for s in stretches
        ],
    }


def check(scenario: Scenario) -> None:
    """Build the world: plug-ins, contract, symbols, window."""
    from sao_gym.world import make_world

    for arm, params in scenario.arms.items():
        plugin = registry.load("learners", arm)
        try:
            registry.bind(plugin, params=params)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, ("arms", arm, *first["loc"])))
            raise InputError(f"{scenario.name}: {where}: {first['msg']}") from None
    world = make_world(scenario)
    parameters = sum(p.numel() for p in world.policy.model.parameters())
    concepts = ", ".join(concept.id for concept in world.timeline.concepts)
    print(
        f"{scenario.name}: ok; {scenario.environment.name} with {scenario.agent.name}, "
        f"{parameters:,} parameters, learner {scenario.learner.name}, concepts {concepts}"
    )


def list_plugins(*, as_json: bool) -> None:
    """What is installed, by kind. Imports none of it."""
    kinds: tuple[registry.Kind, ...] = ("scenarios", "envs", "agents", "learners", "tasks")
    found = {kind: {n: e.value for n, e in registry.available(kind).items()} for kind in kinds}
    if as_json:
        print(json.dumps(found, indent=2))
        return
    table = Table("kind", "name", "from", box=None, pad_edge=False)
    for kind, names in found.items():
        for name, value in names.items():
            table.add_row(kind, name, value)
    Console().print(table)


def report(directory: str) -> None:
    """Make summary, figure and HTML of a run directory again."""
    from sao_gym.outputs import SUMMARY, finish_run, read_summary

    path = Path(directory)
    former = read_summary(path) if (path / SUMMARY).is_file() else {}
    summary = finish_run(
        path,
        weights_sha256=former.get("weights_sha256"),
        wall_seconds=former.get("wall_seconds"),
    )
    began = time.monotonic()
    paths = _write_report(path)
    _print_summary(summary, path, paths, seconds=time.monotonic() - began)


def replay(target: str, *, update: int | None) -> None:
    """Do a run, one of its updates or a failed soak case again, and compare."""
    path = Path(target)
    if path.suffix in {".yaml", ".yml"}:
        _replay_case(path)
        return
    from sao_gym.replay import replay_run, replay_update

    if update is None:
        found = replay_run(path)
        end = "to its end" if found.complete else "as far as it was recorded"
        print(f"{path}: identical, {found.events:,} events {end}; policy {found.weights_sha256}")
        return
    again = replay_update(path, update)
    table = Table("metric", "now", "recorded", box=None, pad_edge=False)
    for name, value in again.metrics.items():
        then = "-" if again.recorded is None else str(again.recorded.get(name))
        table.add_row(name, repr(value), then)
    Console().print(table)
    origin = f"checkpoint of update {again.began_from}" if again.began_from else "beginning"
    print(f"update {again.version} on {again.rollouts} rollouts, from the {origin}")
    if again.different:
        raise DifferenceError(f"{path}: other values now of {', '.join(again.different)}")


def _replay_case(path: Path) -> None:
    from sao_gym.soak import case

    case.play(case.load(path))
    print(f"{path}: no violation")
