"""Concept parameters inside an environment: filled with defaults, checked, handed out as copies.

    self._concept = filled((options or {}).get("concept", {}), defaults, owner="my_env")
    ...
    info = {"concept": copied(self._concept)}

So that what the timeline declares and what an environment applied can be compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sao_gym.errors import InputError, suggestion


def filled(params: Mapping[str, Any], defaults: Mapping[str, Any], *, owner: str) -> dict[str, Any]:
    """`defaults` overridden by `params`: all the parameters that hold.

    Args:
        params: the declared concept, e.g. `options["concept"]`.
        defaults: every parameter that `owner` knows, with its default.
        owner: the environment's name, for the error.

    Raises:
        InputError: a parameter that is not in `defaults`. One that silently did nothing would
            make a drift that never happens.
    """
    for name in params:
        if name not in defaults:
            raise InputError(
                f"{owner}: no concept parameter {name!r}: {suggestion(str(name), defaults)}"
            )
    return copied({**defaults, **params})


def copied(params: Mapping[str, Any]) -> dict[str, Any]:
    """A copy two levels deep: neither the caller nor a later step can change it in place."""
    return {
        name: value.copy() if isinstance(value, (dict, list)) else value
        for name, value in params.items()
    }


def whole(value: Any, name: str, *, owner: str, low: int, high: int) -> int:
    """`value` as a whole number in [low, high]; a float such as 2.0 (moved by a drift) counts.

    Raises:
        InputError: anything else.
    """
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if number and low <= value <= high and value == int(value):
        return int(value)
    raise InputError(f"{owner}: {name} must be a whole number in {low}..{high}, not {value!r}")


def whole_range(value: Any, name: str, *, owner: str, low: int, high: int) -> tuple[int, int]:
    """`value` as an inclusive range `[first, last]` inside [low, high].

    Raises:
        InputError: not a pair of whole numbers in ascending order and inside the bounds.
    """
    if isinstance(value, (list, tuple)) and len(value) == 2:
        first, last = (whole(v, name, owner=owner, low=low, high=high) for v in value)
        if first <= last:
            return first, last
    raise InputError(f"{owner}: {name} must be [low, high] with low <= high, not {value!r}")
