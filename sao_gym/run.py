"""The command line: `python -m sao_gym.run` or `sao-gym`.

    scenario [NAME|FILE]   run it (default: the default drift scenario)
    describe [NAME|FILE]   its timeline and realised counts; nothing is run
    check FILE             is it valid?
    check sandbox|grader   does what they promise hold on this machine, with this image?
    list                   scenarios, environments, agents, learners
    report DIR             make the report of a run again
    replay DIR|FILE        do it again and compare
    tasks import|check     repository tasks: make them from elsewhere, admit or quarantine them
    regrade RUN            judge the fixes of a run again, in fresh boxes
    soak                   simulate many random runs; each must keep every promise

Exit codes: 0 done, 1 a bug (or a case of `check sandbox|grader` failed), 2 wrong input (nothing was
written), 3 too many rollouts failed, 4 stalled, 5 the run broke, 6 a replay differs, 7 a simulated
run broke a promise, 130 interrupted (`scenario --resume` goes on). Errors are one line; `--debug`
shows the traceback. Heavy imports happen inside commands, so `--help` is instant.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from sao_gym import __version__, tasks_cli
from sao_gym.errors import SaoGymError

if TYPE_CHECKING:
    from sao_gym.sandboxes import Kind

SCENARIO = "scenario.yaml"


class _Commands(click.Group):
    """Shows a `SaoGymError` as one line with its exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except SaoGymError as error:
            if ctx.params.get("debug"):
                raise
            click.echo(f"error: {error}", err=True)
            ctx.exit(error.exit_code)
        except KeyboardInterrupt:
            click.echo("error: interrupted", err=True)
            ctx.exit(130)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="sao-gym")
@click.option("--debug", is_flag=True, help="Show tracebacks instead of one-line errors.")
def main(debug: bool) -> None:
    """A simulator and gym in which LLM agents learn online while the world drifts."""
    if "" not in sys.path and (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)  # import paths in scenario files name modules that lie here


def _scenario_options(command: Callable[..., None]) -> Callable[..., None]:
    options = [
        click.argument("name", required=False, metavar="[NAME|FILE]"),
        click.option("--learner", help="Use another learner: a name from `list`."),
        click.option("--seed", type=int, help="Use another seed."),
        click.option(
            "--set",
            "overrides",
            multiple=True,
            metavar="KEY=VALUE",
            help="Override one value, e.g. cluster.slots=32. May be repeated.",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@main.command()
@_scenario_options
@click.option("--out", metavar="DIR", help="Run directory. Default: runs/SCENARIO/LEARNER/SEED.")
@click.option("--resume", is_flag=True, help="Go on with the run in DIR; begin if there is none.")
@click.option("--live", is_flag=True, help="On the wall clock instead of in virtual time.")
@click.option("--inline", is_flag=True, help="Compute updates in this process (same events).")
@click.option("--dry-run", is_flag=True, help="Print the resolved scenario; run nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON; no progress.")
@click.option("--quiet", is_flag=True, help="No progress.")
@click.option("--no-report", is_flag=True, help="Skip report.html and the figure.")
def scenario(
    name: str | None,
    learner: str | None,
    seed: int | None,
    overrides: tuple[str, ...],
    out: str | None,
    resume: bool,
    live: bool,
    inline: bool,
    dry_run: bool,
    as_json: bool,
    quiet: bool,
    no_report: bool,
) -> None:
    """Run a scenario and report how the agent adapted.

    With --resume and --out the scenario is the one in DIR unless another is named.
    """
    from sao_gym import commands

    if name is None and resume and out and os.path.exists(kept := os.path.join(out, SCENARIO)):
        name = kept
    if dry_run:
        commands.dry_run(commands.load(name, learner, seed, overrides), as_json=as_json)
        return
    with commands.learner_process(inline) as beside:
        sys.exit(
            commands.run_scenario(
                commands.load(name, learner, seed, overrides),
                out=out,
                resume=resume,
                live=live,
                beside=beside,
                as_json=as_json,
                quiet=quiet or as_json,
                report=not no_report,
            )
        )


@main.command()
@_scenario_options
@click.option("--json", "as_json", is_flag=True)
def describe(
    name: str | None,
    learner: str | None,
    seed: int | None,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """Print a scenario's timeline with realised counts; nothing is run."""
    from sao_gym import commands

    commands.describe(commands.load(name, learner, seed, overrides), as_json=as_json)


@main.command()
@_scenario_options
@click.option(
    "--kind",
    type=click.Choice(["auto", "docker", "bubblewrap", "process"]),
    help="Of `check sandbox` and `check grader`. Default: auto.",
)
@click.option("--image", help="The container image they use. Default: base.")
def check(
    name: str | None,
    learner: str | None,
    seed: int | None,
    overrides: tuple[str, ...],
    kind: Kind | None,
    image: str | None,
) -> None:
    """Check a scenario file, its plug-ins and how they fit together.

    `check sandbox` and `check grader` run the public cases of those instead.
    """
    if name in ("sandbox", "grader"):
        from sao_gym import conformance

        if learner or seed is not None or overrides:
            raise click.UsageError(f"`check {name}` takes only --kind and --image")
        sys.exit(conformance.check(name, kind=kind or "auto", image=image or "base"))
    if kind or image:
        raise click.UsageError("--kind and --image belong to `check sandbox` and `check grader`")
    from sao_gym import commands

    commands.check(commands.load(name, learner, seed, overrides))


@main.command("list")
@click.option("--json", "as_json", is_flag=True)
def list_plugins(as_json: bool) -> None:
    """List installed scenarios, environments, agents and learners."""
    from sao_gym import commands

    commands.list_plugins(as_json=as_json)


@main.command()
@click.argument("directory", metavar="DIR")
def report(directory: str) -> None:
    """Make the report of a run directory again."""
    from sao_gym import commands

    commands.report(directory)


@main.command()
@click.argument("target", metavar="DIR|FILE")
@click.option("--update", type=int, metavar="N", help="Only this update, from its batch.")
def replay(target: str, update: int | None) -> None:
    """Run DIR, or a case that `soak` wrote to FILE, again and compare."""
    from sao_gym import commands

    commands.replay(target, update=update)


@main.command()
@click.option("--runs", type=click.IntRange(min=1), help="How many. Default: 200.")
@click.option("--minutes", type=click.FloatRange(min=0), help="Until so much time is over.")
@click.option("--seed", type=click.IntRange(min=0), default=0, help="Of the first 100 runs.")
@click.option("--out", metavar="DIR", help="Where a run that fails is written. Default: here.")
def soak(runs: int | None, minutes: float | None, seed: int, out: str | None) -> None:
    """Simulate random runs with faults, resumes and interrupts, and check what must hold."""
    from sao_gym.soak import driver

    driver.soak(runs=runs, minutes=minutes, seed=seed, out=out)


main.add_command(tasks_cli.tasks)
main.add_command(tasks_cli.regrade)


if __name__ == "__main__":
    main()
