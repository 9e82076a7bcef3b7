"""The world over time, as pure functions of the clock.

    concept_at      the concept that one entity meets
    dominant_at     the concept that holds, or most hold to
    boundaries      the change points

There is no counter in here: evaluation, resets, parallel actors, resume and replay ask what they
like, as often as they like, and change nothing. See `timeline_config` for how a world is declared.
"""

from __future__ import annotations

import hashlib
import json
import math
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from sao_gym import rng
from sao_gym.timeline_config import (
    Abrupt,
    Drift,
    Gradual,
    Incremental,
    PlannedSegment,
    TimelineConfig,
    moving,
    plan,
)
from sao_gym.types import Concept

_STEEPNESS = 10.0
"""Of the sigmoid ramp: at a tenth of the window the new concept's share is 1 %."""


class Held(NamedTuple):
    """Which concept holds, and the index of its concept segment (repetitions counted)."""

    segment: int
    concept: Concept


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """A change point. The fields are those of `events.ConceptChanged`, which happens there."""

    position: float
    """The first clock value at which it has happened."""
    segment: int
    concept: Concept
    kind: Literal["start", "abrupt", "gradual", "incremental"]
    phase: Literal["changed", "window_began", "window_ended"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Realised:
    """How often each concept was met in one stretch of the timeline."""

    segment: int
    """Of a drift window: the segment that is being left."""
    kind: Literal["concept", "gradual", "incremental"]
    start: float
    end: float
    """`math.inf` if it holds for ever; what comes after the timeline's end counts to the last."""
    counts: dict[str, int]
    """Concept id -> entities."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stretch:
    """From `start` to `end` either `leaving` holds (no drift), or it gives way to `entering`."""

    start: float
    end: float
    segment: int
    leaving: Concept
    entering: Concept
    drift: Gradual | Incremental | None


class Timeline:
    """A declared world. `TimelineConfig` has checked it, so nothing here can fail on it."""

    def __init__(self, config: TimelineConfig) -> None:
        segments = plan(config)
        self.clock = config.clock
        self.observability = config.observability
        self.inflight = config.inflight
        self.concepts = tuple({s.concept.id: s.concept for s in segments}.values())
        """Distinct concepts in the order of their first visit, without those on the move."""
        self._segments = segments
        self._stretches = _stretches(segments)
        self._starts = [stretch.start for stretch in self._stretches]
        self.boundaries = _boundaries(segments)
        """Change points in order; the first is the start, at 0."""
        end = self._stretches[-1].end
        self.length: float | None = None if end == math.inf else end
        """Sum of all segments and windows on the clock; None if the last concept holds for ever.
        A clock that runs past the end finds the last concept still holding."""

    def concept_at(self, clock_value: float, entity: int, seed: int) -> Concept:
        """The concept that `entity` meets at `clock_value` >= 0. A pure function; about 1 us.

        In a gradual window the entity is assigned by one keyed draw, `(seed, "drift", entity)`:
        the same for every arm, and for an entity that asks twice.
        """
        stretch = self._stretch(clock_value)
        if stretch.drift is None:
            return stretch.leaving
        progress = (clock_value - stretch.start) / (stretch.end - stretch.start)
        if isinstance(stretch.drift, Incremental):
            return _moved(stretch.leaving, stretch.drift, progress)
        entered = rng.uniform(seed, "drift", entity) < share(stretch.drift, progress)
        return stretch.entering if entered else stretch.leaving

    def dominant_at(self, clock_value: float) -> Held:
        """The concept that holds at `clock_value`; in a gradual window, the likelier one."""
        stretch = self._stretch(clock_value)
        if stretch.drift is None:
            return Held(stretch.segment, stretch.leaving)
        progress = (clock_value - stretch.start) / (stretch.end - stretch.start)
        if isinstance(stretch.drift, Incremental):
            return Held(stretch.segment, _moved(stretch.leaving, stretch.drift, progress))
        if share(stretch.drift, progress) < 0.5:
            return Held(stretch.segment, stretch.leaving)
        return Held(stretch.segment + 1, stretch.entering)

    def evaluation_concepts(self, clock_value: float) -> tuple[Concept, ...]:
        """All concepts, past and to come; within an incremental window also the moving one."""
        stretch = self._stretch(clock_value)
        if isinstance(stretch.drift, Incremental):
            return (*self.concepts, self.dominant_at(clock_value).concept)
        return self.concepts

    def realised(self, seed: int, n: int, step: float = 1.0) -> tuple[Realised, ...]:
        """What entities 0 to n-1 meet if entity i asks at clock value `i * step`.

        On the clock `started` with step 1 this is what a run of n rollouts draws, exactly. On other
        clocks nobody knows beforehand; a step of `length / n` spreads the entities evenly.
        """
        counts: list[Counter[str]] = [Counter() for _ in self._stretches]
        for entity in range(n):
            value = entity * step
            index = bisect_right(self._starts, value) - 1
            counts[index][self.concept_at(value, entity, seed).id] += 1
        return tuple(
            Realised(
                segment=stretch.segment,
                kind=stretch.drift.kind if stretch.drift else "concept",
                start=stretch.start,
                end=stretch.end,
                counts=dict(count),
            )
            for stretch, count in zip(self._stretches, counts, strict=True)
        )

    def digest(self) -> str:
        """SHA-256 of the declared world: equal for equal worlds, however they were written."""
        world = {
            "clock": self.clock,
            "observability": self.observability,
            "inflight": self.inflight,
            "segments": [_canonical(segment) for segment in self._segments],
        }
        return hashlib.sha256(json.dumps(world, sort_keys=True).encode()).hexdigest()

    def _stretch(self, clock_value: float) -> _Stretch:
        if clock_value < 0:
            raise ValueError(f"a clock shows at least 0, not {clock_value}")
        return self._stretches[bisect_right(self._starts, clock_value) - 1]


def share(drift: Gradual, progress: float) -> float:
    """The new concept's share in a gradual window, `progress` in [0, 1] of the way through.

    The sigmoid is the logistic curve cut at the window's edges and stretched to reach 0 and 1.
    """
    if drift.ramp == "linear":
        return progress
    edge = math.tanh(_STEEPNESS / 4)
    return (1 + math.tanh(_STEEPNESS / 2 * (progress - 0.5)) / edge) / 2


def _moved(concept: Concept, drift: Incremental, progress: float) -> Concept:
    return moving(concept, drift, drift.start + (drift.to - drift.start) * progress)


def _stretches(segments: tuple[PlannedSegment, ...]) -> tuple[_Stretch, ...]:
    found: list[_Stretch] = []
    clock: float = 0
    for index, segment in enumerate(segments):
        if isinstance(segment.arrival, Gradual | Incremental):
            end = clock + segment.arrival.length
            before = segments[index - 1].concept
            found.append(
                _Stretch(
                    start=clock,
                    end=end,
                    segment=index - 1,
                    leaving=before,
                    entering=segment.concept,
                    drift=segment.arrival,
                )
            )
            clock = end
        end = math.inf if segment.length is None else clock + segment.length
        found.append(
            _Stretch(
                start=clock,
                end=end,
                segment=index,
                leaving=segment.concept,
                entering=segment.concept,
                drift=None,
            )
        )
        clock = end
    return tuple(found)


def _boundaries(segments: tuple[PlannedSegment, ...]) -> tuple[Boundary, ...]:
    first = segments[0]
    found = [Boundary(position=0, segment=0, concept=first.concept, kind="start", phase="changed")]
    clock: float = first.length or 0
    for index, segment in enumerate(segments[1:], start=1):
        found.extend(_arrival(clock, index, segment.concept, segment.arrival))
        clock = found[-1].position + (segment.length or 0)
    return tuple(found)


def _arrival(
    clock: float, index: int, concept: Concept, drift: Drift | None
) -> tuple[Boundary, ...]:
    if drift is None or isinstance(drift, Abrupt):
        return (
            Boundary(
                position=clock, segment=index, concept=concept, kind="abrupt", phase="changed"
            ),
        )
    began = Boundary(
        position=clock,
        segment=index - 1,
        concept=concept,
        kind=drift.kind,
        phase="window_began",
    )
    ended = Boundary(
        position=clock + drift.length,
        segment=index,
        concept=concept,
        kind=drift.kind,
        phase="window_ended",
    )
    return began, ended


def _canonical(segment: PlannedSegment) -> dict[str, Any]:
    arrival = segment.arrival.model_dump(by_alias=True) if segment.arrival else {}
    numbers = {"length", "from", "to"}
    return {
        "concept": segment.concept.id,
        "params": segment.concept.params,
        "length": None if segment.length is None else float(segment.length),
        "arrival": {k: float(v) if k in numbers else v for k, v in arrival.items()},
    }
