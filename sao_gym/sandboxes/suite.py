"""What a sandbox promises, as named cases that anybody can run against their own machine and image.

    for outcome in run_suite(open_sandbox("docker"), "my-image"): print(outcome)

A case is a function of a `Trial` that returns what is wrong, or nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from sao_gym.errors import InputError, MachineryError, suggestion
from sao_gym.sandbox import Sandbox
from sao_gym.sandboxes.suite_commands import COMMAND_CASES
from sao_gym.sandboxes.suite_isolation import ISOLATION_CASES
from sao_gym.sandboxes.suite_trees import TREE_CASES
from sao_gym.sandboxes.suite_trial import Trial, Wrong


class Outcome(NamedTuple):
    name: str
    ok: bool
    detail: str


CASES: dict[str, Callable[[Trial], Wrong]] = {**ISOLATION_CASES, **COMMAND_CASES, **TREE_CASES}


def cases() -> dict[str, str]:
    """Every case: its name and what it holds the sandbox to, in one line."""
    return {name: (case.__doc__ or "").strip() for name, case in CASES.items()}


def promised(sandbox: Sandbox) -> list[str]:
    """Names of the cases that this kind of sandbox promises to pass."""
    return [name for name in CASES if sandbox.name != "process" or name not in ISOLATION_CASES]


def run_suite(
    sandbox: Sandbox, image: str = "base", names: Collection[str] | None = None
) -> list[Outcome]:
    """Run what the sandbox promises, or the cases of these names.

    Raises:
        InputError: an unknown name, or one that needs isolation where there is none: such a case
            would harm the machine.
        MachineryError: no box can be started at all.
    """
    return list(each(sandbox, image, names))


def each(
    sandbox: Sandbox, image: str = "base", names: Collection[str] | None = None
) -> Iterator[Outcome]:
    """`run_suite`, one by one."""
    may = promised(sandbox)
    for name in names or ():
        if name not in CASES:
            raise InputError(f"no case {name!r}; {suggestion(name, CASES)}")
        if name not in may:
            raise InputError(f"case {name!r} needs isolation, which {sandbox.name} does not have")
    trial = Trial(sandbox, image)
    trial.box()
    try:
        for name in may if names is None else names:
            try:
                wrong = CASES[name](trial)
            except MachineryError as error:
                wrong = f"{error.kind}: {error}"
            if wrong:
                trial.renew()
            yield Outcome(name, not wrong, wrong or "")
    finally:
        trial.renew()
