"""The `soak` command: many cases, batch by batch, each batch under a seed that is printed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click

from sao_gym.errors import InputError, InvariantError
from sao_gym.invariants import Hang, Violation
from sao_gym.soak.case import Case, Played, play
from sao_gym.yaml_source import dump

RUNS = 200
BATCH = 100
"""Cases under one seed."""


def soak(*, runs: int | None, minutes: float | None, seed: int, out: str | None) -> None:
    """Play cases until `runs` of them, or for so many minutes; the first batch has seed `seed`.

    Raises:
        InvariantError: one breaks a promise. The smallest such case is then in a file in `out`.
        InputError: hypothesis is not installed.
    """
    tried, total = 0, Played()
    used: list[int] = []
    for number, size in _batches(seed, runs, minutes):
        used.append(number)
        done, failed = batch(number, size)
        tried, total = tried + size, total + done
        if failed is not None:
            case, violation = failed
            _say_total(total, used, violation)
            raise InvariantError(_keep(case, violation, Path(out or "."), number))
        click.echo(f"seed {number}: {total.runs:,} runs, 0 violations", err=True)
    _say_total(total, used, None)


def _batches(seed: int, runs: int | None, minutes: float | None) -> Iterator[tuple[int, int]]:
    """Seed and how many cases, batch by batch."""
    if runs is None and minutes is None:
        runs = RUNS
    ends = None if minutes is None else time.monotonic() + 60 * minutes
    begun = 0
    while (runs is None or begun < runs) and (ends is None or time.monotonic() < ends):
        size = BATCH if runs is None else min(BATCH, runs - begun)
        yield seed, size
        begun += size
        seed += 1


def batch(
    seed: int, size: int, *, player: Callable[[Case], Played] = play
) -> tuple[Played, tuple[Case, Violation] | None]:
    """The cases of one seed: what they came to, and the smallest that fails, if one does.

    What is counted ends before the first that fails. The same seed gives the same cases.
    """
    try:
        import hypothesis
    except ModuleNotFoundError:
        raise InputError("soak draws with hypothesis: pip install 'sao-gym[soak]'") from None
    from sao_gym.soak.draw import cases

    totals = [Played()]
    failed: list[tuple[Case, Violation]] = []

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=size,
        database=None,
        deadline=None,
        phases=(hypothesis.Phase.generate, hypothesis.Phase.shrink),
        suppress_health_check=list(hypothesis.HealthCheck),
        verbosity=hypothesis.Verbosity.quiet,
        report_multiple_bugs=False,
        print_blob=False,
    )
    @hypothesis.given(cases())
    def each(case: Case) -> None:
        try:
            played = player(case)
        except Violation as violation:
            failed.append((case, violation))
            raise
        if not failed:
            totals.append(totals.pop() + played)

    try:
        each()
    except (Violation, hypothesis.errors.HypothesisException):
        if not failed:
            raise
    # the smallest is played once more at the end, so it is the last that failed
    return totals[0], failed[-1] if failed else None


def _keep(case: Case, violation: Violation, folder: Path, seed: int) -> str:
    """Write the case; the line that says what and where."""
    path = folder / f"soak-failure-{seed}.yaml"
    folder.mkdir(parents=True, exist_ok=True)
    text = dump(case.model_dump(mode="json", by_alias=True, round_trip=True))
    path.write_text(f"# {' '.join(str(violation).split())}\n{text}", encoding="utf-8")
    return f"{violation}; play it again with: python -m sao_gym.run replay {path}"


def _say_total(total: Played, used: list[int], violation: Violation | None) -> None:
    hangs = isinstance(violation, Hang)
    violations = violation is not None and not hangs
    seeds = f"seeds {used[0]}-{used[-1]}" if len(used) > 1 else f"seed {used[0]}"
    click.echo(
        f"soak: {total.runs:,} runs, {int(violations)} violations, {int(hangs)} hangs, "
        f"{total.events:,} events, {total.rollouts:,} rollouts, "
        f"{total.faults:,} faults handled, {total.resumes:,} resumes; {seeds}"
    )
