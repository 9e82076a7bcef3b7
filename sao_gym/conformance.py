"""`check sandbox` and `check grader`: named cases against the user's own machine and image."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

import click

from sao_gym.errors import InputError, MachineryError
from sao_gym.sandbox import Sandbox
from sao_gym.sandboxes import Kind, open_sandbox, suite

WHAT = ("sandbox", "grader")


class Outcome(Protocol):
    """How a case went."""

    @property
    def name(self) -> str: ...
    @property
    def ok(self) -> bool: ...
    @property
    def detail(self) -> str: ...


def check(what: str, *, kind: Kind, image: str) -> int:
    """Run the cases for one of `WHAT` and print them. Returns the exit code: 1 if one failed.

    Raises:
        InputError: there is no such sandbox or image here.
    """
    with _opened(kind) as sandbox:
        try:
            return {"sandbox": _sandbox, "grader": _grader}[what](sandbox, image)
        except MachineryError as error:
            raise InputError(str(error)) from None


def show(outcomes: Iterable[Outcome], says: Mapping[str, str]) -> int:
    """Print outcomes as they come, each with what its case says; the exit code."""
    began, passed, failed = time.monotonic(), 0, 0
    for outcome in outcomes:
        passed, failed = passed + outcome.ok, failed + (not outcome.ok)
        word = click.style("ok    ", fg="green") if outcome.ok else click.style("FAILED", fg="red")
        click.echo(f"{word}  {outcome.name:22}  {says.get(outcome.name, '')}")
        if not outcome.ok:
            click.echo(f"        {outcome.name:22}  {outcome.detail}")
    click.echo(f"{passed} passed, {failed} failed in {time.monotonic() - began:.1f} s")
    return 1 if failed else 0


def _sandbox(sandbox: Sandbox, image: str) -> int:
    code = show(suite.each(sandbox, image), suite.cases())
    without = suite.cases().keys() - set(suite.promised(sandbox))
    if without:
        click.echo(f"not promised by {sandbox.name}: {', '.join(sorted(without))}")
    return code


def _grader(sandbox: Sandbox, image: str) -> int:
    from sao_gym.repo.suite import results

    return show(results(sandbox, image=image), {})


@contextlib.contextmanager
def _opened(kind: Kind) -> Iterator[Sandbox]:
    sandbox = open_sandbox(kind, run="check")
    click.echo(sandbox.isolation)
    try:
        yield sandbox
    finally:
        sandbox.close()
