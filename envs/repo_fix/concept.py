"""The concept parameters of `repo_fix`, checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sao_gym.envs.repo_fix.family import STYLES, TESTS, Mix
from sao_gym.envs.repo_fix.functions import KINDS
from sao_gym.errors import InputError, suggestion

OWNER = "repo_fix"


def mix_of(concept: Mapping[str, Any]) -> Mix:
    """Which tasks a concept draws.

    Raises:
        InputError: a parameter is invalid.
    """
    return Mix(
        faults=_weights(concept["faults"]),
        style=_choice(concept["style"], "style", STYLES),
        tests=_choice(concept["tests"], "tests", TESTS),
    )


def _choice(value: Any, name: str, known: Sequence[str]) -> Any:
    if not isinstance(value, str) or value not in known:
        raise InputError(f"{OWNER}: {name}: no {value!r}; {suggestion(str(value), known)}")
    return value


def _weights(faults: Any) -> tuple[tuple[str, float], ...]:
    """Kind -> weight, from a list of kinds or a mapping."""
    given = dict.fromkeys(faults, 1.0) if isinstance(faults, (list, tuple)) else faults
    if not isinstance(given, Mapping):
        raise InputError(f"{OWNER}: faults must be a list of kinds or {{kind: weight}}")
    for kind, weight in given.items():
        _choice(kind, "faults", KINDS)
        number = isinstance(weight, (int, float)) and not isinstance(weight, bool)
        if not number or not 0 <= weight < float("inf"):
            raise InputError(f"{OWNER}: faults: weight of {kind} must be >= 0, not {weight!r}")
    if not sum(given.values()) > 0:
        raise InputError(f"{OWNER}: faults: at least one weight must be above 0")
    # in the family's order, so that what is drawn does not depend on how they were written
    return tuple((kind, float(given[kind])) for kind in KINDS if kind in given)
