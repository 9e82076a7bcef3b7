"""Run a scenario into a directory: prepare, record, stop when asked, go on where it was cut.

SIGINT or SIGTERM once     the update under way is finished, a checkpoint taken, all closed
                  twice    at once
kill -9                    nothing is left behind but the directory, which `resume` continues
"""

from __future__ import annotations

import json
import shlex
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from sao_gym import plain
from sao_gym.checkpoint import Checkpoints
from sao_gym.errors import FailuresError, RunError, SaoGymError
from sao_gym.executors.trainers import ProcessTrainer
from sao_gym.protocols import Executor, TextEnv
from sao_gym.record import Recorder, check_new, open_run, restart_run, resume_run
from sao_gym.resume import Continuation, find
from sao_gym.scenario import Scenario

INTERRUPTED = 130
FAILED_BATCH = "failed_batch.json"
"""The rollouts of an update that broke, as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """How a run went."""

    code: int = 0
    """The exit code."""
    weights_sha256: str | None = None
    """Of the final policy."""
    checkpoints: dict[str, int] = field(default_factory=dict)
    """How many were written, and how many could not be."""
    lines: list[str] = field(default_factory=list)
    """What the user should know."""


def run_directory(scenario: Scenario, *, resume: bool) -> Path:
    """runs/SCENARIO/LEARNER/SEED, with a number behind it if that run exists.

    With `resume` the last of them that exists.
    """
    base = Path("runs") / scenario.name / scenario.learner.name / str(scenario.seed)
    found = free = base
    number = 1
    while free.exists():
        found = free
        number += 1
        free = base.with_name(f"{base.name}-{number}")
    return found if resume else free


def play(
    scenario: Scenario,
    directory: Path,
    *,
    resume: bool,
    live: bool,
    beside: bool | ProcessTrainer,
    quiet: bool,
) -> Played:
    """Run and record. What ends the run early is told in the result, not raised.

    `beside`: as for `assemble`.
    """
    from sao_gym.assemble import assemble

    stop = _Stop()
    with stop.on_signals():
        going_on = _continuation(scenario, directory, resume=resume, live=live)
        with (
            _preparation(quiet) as say,
            assemble(
                scenario, live=live, beside=beside, warm=going_on.state is None, report=say
            ) as run,
            _recorder(scenario, directory, going_on, resume=resume, live=live) as recorder,
        ):
            say("", 1.0)
            if not quiet:
                _tell_isolation(run.world.make_environment())
            stop.executor = run.executor
            played = _follow(run, recorder, going_on, quiet=quiet)
    return played


def _continuation(scenario: Scenario, directory: Path, *, resume: bool, live: bool) -> Continuation:
    """Looked up before the minutes that a warm start may take."""
    if resume:
        return find(directory, scenario.resolved(), mode=_mode(live))
    check_new(directory)
    return Continuation(checkpoint=None)


def _recorder(
    scenario: Scenario, directory: Path, going_on: Continuation, *, resume: bool, live: bool
) -> Recorder:
    from sao_gym.assemble import make_faults

    resolved = scenario.resolved()
    checkpoints = Checkpoints(
        directory,
        scenario=resolved,
        mode=_mode(live),
        keep=scenario.checkpoint.keep,
        faults=make_faults(scenario),
    )
    if going_on.checkpoint is not None:
        return resume_run(directory, events=going_on.events, checkpoints=checkpoints)
    begin = restart_run if resume else open_run
    return begin(directory, resolved, checkpoints=checkpoints)


def _mode(live: bool) -> str:
    return "live" if live else "virtual"


def _follow(run: Any, recorder: Recorder, going_on: Continuation, *, quiet: bool) -> Played:
    """The `for` loop over the events, and what is told at its end."""
    from sao_gym.assemble import budget
    from sao_gym.policy import weights_hash
    from sao_gym.progress import open_progress
    from sao_gym.watchdog import Watchdog

    code, lines = 0, list(going_on.notes)
    directory = recorder.directory
    with (
        open_progress(budget(run.scenario), quiet=quiet) as progress,
        Watchdog(run.scenario.failures.watchdog, run.executor) as watchdog,
    ):
        try:
            for seconds, event in run.events(going_on.state):
                recorder.write(seconds, event)
                progress.update(seconds, event)
                watchdog.fed()
        except SaoGymError as error:
            code, line = error.exit_code, f"error: {error}"
            if isinstance(error, RunError) and error.batch:
                line += f"; its batch is in {_write_batch(directory, error.batch)}"
            if not isinstance(error, FailuresError):
                line += f"; what was recorded is kept in {directory}"
            lines.append(line)
    checkpoints = recorder.checkpoints
    assert checkpoints is not None
    if code == 0 and run.executor.interrupted:
        code = INTERRUPTED
        lines.append(f"interrupted; go on with: {resume_command(directory, checkpoints.mode)}")
    return Played(
        code=code,
        weights_sha256=weights_hash(run.executor.weights()),
        checkpoints={"written": checkpoints.written, "failed": len(checkpoints.failed)},
        lines=[*checkpoints.failed, *lines],
    )


def resume_command(directory: Path, mode: str) -> str:
    """What continues the run in `directory`."""
    live = " --live" if mode == "live" else ""
    return f"python -m sao_gym.run scenario --resume{live} --out {shlex.quote(str(directory))}"


def _write_batch(directory: Path, batch: Sequence[Any]) -> Path:
    path = directory / FAILED_BATCH
    path.write_text(json.dumps([plain.fields_of(t) for t in batch], indent=1), encoding="utf-8")
    return path


class _Stop:
    """Turns signals into an interrupt of the run; before there is one, into KeyboardInterrupt."""

    def __init__(self) -> None:
        self.executor: Executor | None = None

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        def handle(number: int, frame: Any) -> None:
            if self.executor is None or self.executor.interrupted:
                raise KeyboardInterrupt
            self.executor.interrupt()

        kept = {which: signal.signal(which, handle) for which in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for which, former in kept.items():
                signal.signal(which, former)


def _tell_isolation(env: TextEnv) -> None:
    """Where an environment runs what nobody trusts, if it tells."""
    told = getattr(env.unwrapped, "isolation", None)
    if told:
        Console(stderr=True).print(str(told), style="dim", markup=False, highlight=False)


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
