"""Signs of collapse in what updates report: alarms, and when a run should stop.

    metrics of updates, rollouts of batches --> window means --> AlarmRaised, once per crossing

An alarm is raised when its figure leaves the range, and again only after it was back in range. The
run goes on; only updates in a row with gradients that are not finite are `fatal`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import Field

from sao_gym.events import AlarmRaised, UpdateFinished
from sao_gym.types import Trajectory
from sao_gym.validation import Section


class Thresholds(Section):
    """What counts as a sign of collapse; `null` turns a check off."""

    window: int = Field(default=10, ge=1)
    """Updates averaged. A figure is judged once so many updates have reported it; NaN does not
    count."""
    entropy_below: float | None = Field(default=0.01, ge=0)
    """Alarm `entropy`: nats per token; the policy has stopped exploring."""
    masked_above: float | None = Field(default=0.5, ge=0, le=1)
    """Alarm `masked`: share of action tokens that the trust region rejects."""
    length_above: float | None = Field(default=4.0, gt=1)
    """Alarm `long_responses`: action tokens per rollout, as a multiple of their mean over the first
    `window` updates."""
    length_below: float | None = Field(default=0.25, gt=0, lt=1)
    """Alarm `short_responses`: the same, below."""
    negative_batches: int | None = Field(default=3, ge=1)
    """Alarm `negative_batches`: so many batches in a row in which no rollout earned a positive
    reward."""
    explained_variance_below: float | None = -1.0
    """Alarm `explained_variance`: of the critic; 0 is a constant guess, negative is worse."""
    nonfinite_updates: int | None = Field(default=3, ge=1)
    """Updates in a row with skipped optimizer steps (gradients that are not finite) that stop the
    run; `null`: never. The first of them raises the alarm `nonfinite` in any case."""


class _Reading(NamedTuple):
    """One figure of one update, and whether it is out of its range."""

    alarm: str
    value: float
    bound: float
    out: bool


class Guards:
    """Watches a run's updates in order; each costs the same however long the run is."""

    def __init__(self, thresholds: Thresholds) -> None:
        self._thresholds = thresholds
        self._windows: dict[str, deque[float]] = {
            name: deque(maxlen=thresholds.window)
            for name in ("entropy", "masked_fraction", "explained_variance", "length")
        }
        self._first_length: float | None = None
        self._unrewarded = 0
        self._nonfinite = 0
        self._version = 0
        self._raised: set[str] = set()

    def observe(self, update: UpdateFinished, batch: Sequence[Trajectory]) -> list[AlarmRaised]:
        """The alarms that `update`, made from `batch`, raises."""
        skipped = float(update.metrics.get("skipped_steps", 0.0))
        self._version = update.version
        self._nonfinite = self._nonfinite + 1 if skipped > 0 else 0
        rewarded = any(trajectory.reward > 0 for trajectory in batch)
        self._unrewarded = 0 if rewarded else self._unrewarded + 1
        self._take_in(update.metrics, batch)
        alarms = []
        for alarm, value, bound, out in self._readings(skipped):
            if out and alarm not in self._raised:
                alarms.append(
                    AlarmRaised(alarm=alarm, version=update.version, value=value, bound=bound)
                )
            (self._raised.add if out else self._raised.discard)(alarm)
        return alarms

    @property
    def fatal(self) -> str | None:
        """Why the run should stop now, in one line; None if it should not."""
        limit = self._thresholds.nonfinite_updates
        if limit is None or self._nonfinite < limit:
            return None
        return (
            f"the last {self._nonfinite} updates, up to version {self._version}, had gradients "
            f"that are not finite (nonfinite_updates = {limit}); lower the learning rate, or look "
            "for rewards that are not finite"
        )

    def state_dict(self) -> dict[str, Any]:
        """Plain data, and a copy."""
        return {
            "windows": {name: list(window) for name, window in self._windows.items()},
            "first_length": self._first_length,
            "unrewarded": self._unrewarded,
            "nonfinite": self._nonfinite,
            "version": self._version,
            "raised": sorted(self._raised),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, window in self._windows.items():
            window.clear()
            window.extend(state["windows"][name])
        self._first_length = state["first_length"]
        self._unrewarded = state["unrewarded"]
        self._nonfinite = state["nonfinite"]
        self._version = state["version"]
        self._raised = set(state["raised"])

    def _take_in(self, metrics: Mapping[str, float], batch: Sequence[Trajectory]) -> None:
        tokens = sum(trajectory.action_tokens for trajectory in batch)
        figures = {**metrics, "length": tokens / len(batch) if batch else math.nan}
        for name, window in self._windows.items():
            value = float(figures.get(name, math.nan))
            if math.isfinite(value):
                window.append(value)
        if self._first_length is None:
            self._first_length = self._mean("length")

    def _mean(self, name: str) -> float | None:
        """Over the window once it is full, summed anew so that no rounding piles up."""
        window = self._windows[name]
        return math.fsum(window) / len(window) if len(window) == window.maxlen else None

    def _readings(self, skipped: float) -> Iterator[_Reading]:
        limits = self._thresholds
        yield _Reading("nonfinite", skipped, 0.0, self._nonfinite > 0)
        if limits.negative_batches is not None:
            out = self._unrewarded >= limits.negative_batches
            yield _Reading(
                "negative_batches", float(self._unrewarded), float(limits.negative_batches), out
            )
        length = self._first_length
        for alarm, name, bound, unit, sign in (
            ("entropy", "entropy", limits.entropy_below, 1.0, -1),
            ("masked", "masked_fraction", limits.masked_above, 1.0, 1),
            ("long_responses", "length", limits.length_above, length, 1),
            ("short_responses", "length", limits.length_below, length, -1),
            ("explained_variance", "explained_variance", limits.explained_variance_below, 1.0, -1),
        ):
            mean = self._mean(name)
            if mean is not None and bound is not None and unit is not None:
                yield _Reading(alarm, mean, bound * unit, sign * mean > sign * bound * unit)
