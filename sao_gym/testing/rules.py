"""What the contract suites share: named rules, run in order, each with one line if it is broken."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NoReturn, TypeVar

Subject = TypeVar("Subject")
Rule = Callable[[Subject], None]


class ContractError(AssertionError):
    """A plug-in broke a rule: its name, what was seen, what is right."""


def broken(what: str) -> NoReturn:
    """Say that the present rule is broken."""
    raise ContractError(what)


def require(condition: object, what: str) -> None:
    """`broken(what)` unless `condition` holds."""
    if not condition:
        broken(what)


def run(contract: str, rules: Iterable[Rule[Subject]], subject: Subject) -> tuple[str, ...]:
    """Run `rules` on `subject` and give their names.

    Raises:
        ContractError: the first rule that does not hold, or in which the plug-in itself raised.
    """
    passed = []
    for rule in rules:
        name = rule.__name__.strip("_").replace("_", " ")
        try:
            rule(subject)
        except ContractError as error:
            raise ContractError(f"{contract} contract, {name}: {error}") from error.__cause__
        except Exception as error:
            raise ContractError(
                f"{contract} contract, {name}: raised {type(error).__name__}: {error}"
            ) from error
        passed.append(name)
    return tuple(passed)


def random_states() -> dict[str, Any]:
    """The state of every process-wide generator, in a form that `==` compares."""
    import random
    import sys

    import numpy as np

    numpy_state: Any = np.random.get_state(legacy=False)  # noqa: NPY002  it is what we guard
    states: dict[str, Any] = {
        "random": random.getstate(),
        "numpy.random": (numpy_state["state"]["key"].tobytes(), numpy_state["state"]["pos"]),
    }
    if "torch" in sys.modules:
        states["torch"] = bytes(sys.modules["torch"].get_rng_state().numpy())
    return states
