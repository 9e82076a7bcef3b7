"""The absent number: a metric that has no value says why."""

from __future__ import annotations

from typing import NamedTuple


class Undefined(NamedTuple):
    """Stands where a number would, and never becomes 0."""

    reason: str


def split(values: dict[str, float | Undefined]) -> tuple[dict[str, float | None], dict[str, str]]:
    """Numbers (None where undefined) and the reasons of those that are, both by name."""
    numbers = {k: None if isinstance(v, Undefined) else v for k, v in values.items()}
    reasons = {k: v.reason for k, v in values.items() if isinstance(v, Undefined)}
    return numbers, reasons
