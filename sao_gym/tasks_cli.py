"""The commands about repository tasks.

    tasks build NAME --out DIR        a registered set of tasks -> task folders
    tasks import FILE|DIR --out DIR   SWE-bench JSONL or Harbor directories -> task folders
    tasks check DIR                   gold k times, empty patch k times: admitted or quarantined
    regrade RUN                       verdicts again, from the patches in a run's event log

Exit codes: 2 if a line or a task could not be imported or was quarantined (the others are done all
the same), 6 if a regraded verdict differs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sao_gym.errors import DifferenceError, InputError

if TYPE_CHECKING:
    from sao_gym.repo.task import RepoTask
    from sao_gym.sandbox import Sandbox

KINDS = click.Choice(["auto", "docker", "bubblewrap", "process"])


def _sandbox_option(command: Callable[..., None]) -> Callable[..., None]:
    return click.option(
        "--sandbox", "kind", type=KINDS, default="auto", help="Where tests run. Default: auto."
    )(command)


@click.group()
def tasks() -> None:
    """Build, import and check repository tasks."""


@tasks.command("build")
@click.argument("name")
@click.option("--out", metavar="DIR", required=True, type=click.Path(path_type=Path))
def build_tasks(name: str, out: Path) -> None:
    """Make task folders of a registered set, such as `real`: fixes of published packages.

    What it needs is downloaded into DIR/.cache, by hash.
    """
    from sao_gym import registry
    from sao_gym.repo.store import save_task

    build: Callable[[Path], list[RepoTask]] = registry.load("tasks", name)
    for task in build(out / ".cache"):
        click.echo(str(save_task(task, out)))
    click.echo(f"next: tasks check {out}")


@tasks.command("import")
@click.argument("source", metavar="FILE|DIR", type=click.Path(exists=True, path_type=Path))
@click.option("--out", metavar="DIR", required=True, type=click.Path(path_type=Path))
@_sandbox_option
def import_tasks(source: Path, out: Path, kind: str) -> None:
    """Make task folders of a SWE-bench JSONL file or a Harbor task directory."""
    from sao_gym.repo.importers import import_harbor, import_swebench
    from sao_gym.repo.store import save_task

    good = bad = 0
    with opened(kind) as sandbox:
        reader = import_harbor if source.is_dir() else import_swebench
        for found in reader(source, sandbox):
            if found.task is None:
                bad += 1
                click.echo(f"{found.where}: {found.why}", err=True)
                continue
            good += 1
            click.echo(str(save_task(found.task, out)))
    click.echo(f"{good} imported into {out}, {bad} not; next: tasks check {out}")
    if bad or not good:
        raise InputError(f"{bad} of {good + bad} could not be imported")


@tasks.command("check")
@click.argument("directory", metavar="DIR", type=click.Path(exists=True, path_type=Path))
@click.option("--times", type=click.IntRange(min=1), default=3, help="Runs of each. Default: 3.")
@click.option("--json", "as_json", is_flag=True)
@_sandbox_option
def check_tasks(directory: Path, times: int, as_json: bool, kind: str) -> None:
    """Run gold and the empty patch on each task; admit it or quarantine it."""
    from sao_gym.repo.admission import Admission, check_task
    from sao_gym.repo.store import TASK, load_task, save_admission, task_folders

    folders = [directory] if (directory / TASK).is_file() else task_folders(directory)
    if not folders:
        raise InputError(f"{directory}: no tasks here; make some with `tasks import`")
    found: list[Admission] = []
    with opened(kind) as sandbox:
        for folder in folders:
            try:
                task = load_task(folder)
            except InputError as error:
                found.append(Admission(task=folder.name, admitted=False, why=str(error)))
                continue
            found.append(check_task(task, sandbox, times))
            save_admission(found[-1], folder)
    _show(found, as_json=as_json)
    bad = sum(not one.admitted for one in found)
    if bad:
        raise InputError(f"{bad} of {len(found)} quarantined")


@click.command()
@click.argument("run", metavar="RUN", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--tasks",
    "directory",
    metavar="DIR",
    type=click.Path(exists=True, path_type=Path),
    help="Where the tasks lie. Default: the environment of the run knows them.",
)
@click.option("--json", "as_json", is_flag=True)
@_sandbox_option
def regrade(run: Path, directory: Path | None, as_json: bool, kind: str) -> None:
    """Judge the fixes in a run's event log again, in fresh boxes."""
    from sao_gym.log import read_events
    from sao_gym.repo.regrade import Regraded, regrade
    from sao_gym.repo.store import load_tasks

    given = load_tasks(directory) if directory else []
    known = {task.id: task for task in given}.get if directory else _of_environment(run)
    with opened(kind) as sandbox:
        found: list[Regraded] = list(regrade(read_events(run), known, sandbox))
    if not found:
        raise InputError(f"{run}: no fix is stored in its event log")
    differ = [one for one in found if one.differs]
    lost = [one for one in found if one.now is None]
    then = sum(one.then is not None and one.then.resolved for one in found)
    now = sum(one.now is not None and one.now.resolved for one in found)
    if as_json:
        counts = {"fixes": len(found), "resolved_then": then, "resolved_now": now}
        rows = [_row(one) for one in (*differ, *lost)]
        click.echo(
            json.dumps(counts | {"differ": len(differ), "unjudged": len(lost), "rows": rows})
        )
    else:
        for one in (*differ, *lost):
            row = _row(one)
            click.echo(
                f"rollout {one.rollout}: {one.task}: {row['then']} -> {row['now']} {row['why']}"
            )
        click.echo(
            f"{len(found)} fixes, {then} resolved then, {now} now; {len(differ)} differ, "
            f"{len(lost)} could not be judged"
        )
    if differ:
        raise DifferenceError(f"{run}: {len(differ)} of {len(found)} verdicts differ")
    if lost:
        raise InputError(f"{run}: {len(lost)} of {len(found)} could not be judged: {lost[0].why}")


@contextmanager
def opened(kind: Any) -> Iterator[Sandbox]:
    """A sandbox, which is told of."""
    from sao_gym.sandboxes import open_sandbox

    sandbox = open_sandbox(kind)
    click.echo(sandbox.isolation, err=True)
    with closing(sandbox):
        yield sandbox


def _show(found: list[Any], *, as_json: bool) -> None:
    if as_json:
        fields = ("task", "admitted", "why", "flake_rate", "gold", "empty")
        click.echo(json.dumps([{n: getattr(one, n) for n in fields} for one in found], indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("task", "state", "flake rate", "why", box=None, pad_edge=False)
    for one in found:
        state = "admitted" if one.admitted else "quarantined"
        table.add_row(one.task, state, f"{one.flake_rate:.2f}", one.why)
    Console().print(table)


def _row(one: Any) -> dict[str, Any]:
    def said(verdict: Any) -> str:
        if verdict is None:
            return "not judged"
        return "resolved" if verdict.resolved else "not resolved"

    why = one.why or (one.now.detail if one.now else "")
    return {
        "rollout": one.rollout,
        "task": one.task,
        "then": said(one.then),
        "now": said(one.now),
        "why": why,
    }


def _of_environment(run: Path) -> Callable[[str], RepoTask | None]:
    """The environment of the run's scenario, if it has a method `task(id)`."""
    from sao_gym import registry
    from sao_gym.scenario import load_scenario

    environment = load_scenario(str(run / "scenario.yaml")).environment
    made = registry.construct(registry.load("envs", environment.name), params=environment.params)
    lookup = getattr(made.unwrapped, "task", None)
    if not callable(lookup):
        raise InputError(
            f"environment {environment.name} does not tell its tasks; give --tasks DIR"
        )
    found: Callable[[str], RepoTask | None] = lookup
    return found
