"""What the commands of `sao_gym.run` do."""

from __future__ import annotations

import json
import signal
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
from sao_gym.errors import FailuresError, InputError, SaoGymError
from sao_gym.protocols import Executor
from sao_gym.scenario import Scenario, load_scenario
from sao_gym.timeline import Realised, Timeline

INTERRUPTED = 130


def load(name: str, learner: str | None, seed: int | None, overrides: Sequence[str]) -> Scenario:
    return load_scenario(name, learner=learner, seed=seed, overrides=list(overrides))


def run_scenario(
    scenario: Scenario,
    *,
    out: str | None,
    live: bool,
    beside: bool,
    as_json: bool,
    quiet: bool,
    report: bool,
) -> int:
    """Run, record, summarise, report. Returns the exit code."""
    from sao_gym.outputs import finish_run

    began = time.monotonic()
    directory = Path(out) if out else _free_directory(scenario)
    code, line, weights = _play(scenario, directory, live=live, beside=beside, quiet=quiet)
    summary = finish_run(directory, weights_sha256=weights, wall_seconds=time.monotonic() - began)
    paths = _write_report(directory) if report else {}
    if as_json:
        print(json.dumps(summary | {"directory": str(directory)} | paths, indent=2))
    else:
        _print_summary(summary, directory, paths, seconds=time.monotonic() - began)
    if line:
        click.echo(f"error: {line}", err=True)
    return code


def _free_directory(scenario: Scenario) -> Path:
    """runs/SCENARIO/LEARNER/SEED, with a number behind it if that run exists."""
    base = Path("runs") / scenario.name / scenario.learner.name / str(scenario.seed)
    found, number = base, 1
    while found.exists():
        number += 1
        found = base.with_name(f"{base.name}-{number}")
    return found


def _play(
    scenario: Scenario, directory: Path, *, live: bool, beside: bool, quiet: bool
) -> tuple[int, str, str | None]:
    """Run and record. Returns (exit code, error line, hash of the final policy)."""
    from sao_gym.assemble import assemble, budget
    from sao_gym.policy import weights_hash
    from sao_gym.progress import open_progress
    from sao_gym.record import check_new, open_run

    check_new(directory)  # before the minutes that a warm start may take
    code, line = 0, ""
    with (
        _preparation(quiet) as say,
        assemble(scenario, live=live, beside=beside, report=say) as run,
        open_run(directory, scenario.resolved()) as recorder,
        _interruptible(run.executor),
    ):
        say("", 1.0)
        with open_progress(budget(scenario), quiet=quiet) as progress:
            try:
                for seconds, event in run.events():
                    recorder.write(seconds, event)
                    progress.update(seconds, event)
            except SaoGymError as error:
                code, line = error.exit_code, str(error)
                if not isinstance(error, FailuresError):
                    line += f"; what was recorded is kept in {directory}"
        if run.executor.interrupted:
            code, line = INTERRUPTED, f"interrupted; what was recorded is kept in {directory}"
        return code, line, weights_hash(run.executor.weights())


@contextmanager
def _interruptible(executor: Executor) -> Iterator[None]:
    """Ctrl-C and SIGTERM end the run cleanly; a second one ends it at once."""

    def handle(number: int, frame: Any) -> None:
        if executor.interrupted:
            raise KeyboardInterrupt
        executor.interrupt()

    kept = {which: signal.signal(which, handle) for which in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for which, former in kept.items():
            signal.signal(which, former)


@contextmanager
def _preparation(quiet: bool) -> Iterator[Any]:
    """A status line for what happens before the first event."""
    console = Console(stderr=True, quiet=quiet)
    with console.status("starting") as status:

        def say(what: str, done: float) -> None:
            if not what:
                status.stop()
                return
            share = f" {done:.0%}" if 0 < done < 1 else ""
            status.update(f"{what}{share}")

        yield say


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
    kinds: tuple[registry.Kind, ...] = ("scenarios", "envs", "agents", "learners")
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
