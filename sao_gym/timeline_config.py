"""How drift is declared, and what a declaration must fulfil.

    segments:
      - concept: {id: A, params: {style: cute}}                       a concept segment ...
        length: 4000
      - drift: {kind: gradual, length: 500, ramp: sigmoid}            ... a drift ...
      - concept: {id: B, params: {style: plain}}                      ... and so on, in turn
        length: 4000
      - drift: {kind: abrupt}
      - concept: {ref: A}                                             a return: the same concept
        length: 4000
      - drift: {kind: incremental, param: flip, from: 0.0, to: 0.2, length: 1000}

All lengths are counted on the timeline's clock. A drift window lies *between* the two segments and
adds its own length, so windows cannot overlap and no window eats into a segment.

* abrupt: nothing lies between.
* gradual: each entity meets one of the two concepts; the share of the new one rises from 0 to 1.
* incremental: one numeric parameter of the concept before moves in a straight line. The concept
  after, if one is written, is what the drift arrives at; if none is, the moved concept holds.

Only the last concept may leave its length out: it holds for ever. `repeat: n` runs through the
segments n times; they then end with the drift that leads back to the first concept, which after the
last time is not entered.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    Discriminator,
    Field,
    Tag,
    model_serializer,
    model_validator,
)

from sao_gym.errors import suggestion
from sao_gym.types import Concept
from sao_gym.validation import Section, misplaced

Clock: TypeAlias = Literal["started", "completed", "consumed", "version", "tokens", "seconds"]
Observability: TypeAlias = Literal["hidden", "flag", "delta", "context"]
Inflight: TypeAlias = Literal["pin", "live", "abort", "reward_late"]


def _nameable(name: str) -> str:
    if not re.fullmatch(r"\w[\w.\-]*", name):
        raise ValueError(
            "must be of letters, digits, `_`, `-` and `.`, and not begin with `-` or `.`"
        )
    return name


Name: TypeAlias = Annotated[str, AfterValidator(_nameable)]
"""Fit for a file name and a plot."""
Length: TypeAlias = Annotated[int, Field(gt=0)] | Annotated[float, Field(gt=0)]


class ConceptSpec(Section):
    """A concept, defined (`id`, `params`) or named again (`ref`)."""

    id: Name | None = None
    params: dict[str, Any] | None = None
    """Given to the environment's `reset(options={"concept": ...})`."""
    ref: Name | None = None
    """The id of a concept defined further up."""

    @model_validator(mode="after")
    def _one_form(self) -> ConceptSpec:
        if (self.id is None) == (self.ref is None):
            raise misplaced((), "give either id (with params) or ref")
        if self.ref is not None and self.params is not None:
            raise misplaced(("params",), "a ref has the params of its definition; remove params")
        return self

    @model_serializer
    def _written(self) -> dict[str, Any]:
        if self.ref is not None:
            return {"ref": self.ref}
        return {"id": self.id, "params": self.params or {}}


class Abrupt(Section):
    """The world changes between one clock value and the next."""

    kind: Literal["abrupt"]


class Gradual(Section):
    """A window in which each entity meets one of the two concepts."""

    kind: Literal["gradual"]
    length: Length
    ramp: Literal["linear", "sigmoid"] = "linear"
    """How the new concept's share rises from 0 to 1 over the window."""


class Incremental(Section):
    """A window in which one parameter moves in a straight line."""

    kind: Literal["incremental"]
    param: str
    start: int | float = Field(alias="from")
    to: int | float
    length: Length


Drift: TypeAlias = Abrupt | Gradual | Incremental


class ConceptSegment(Section):
    """A concept holds."""

    concept: ConceptSpec
    length: Length | None = None

    @model_serializer
    def _written(self) -> dict[str, Any]:
        length = {} if self.length is None else {"length": self.length}
        return {"concept": self.concept.model_dump(), **length}


class DriftSegment(Section):
    """The world changes."""

    drift: Annotated[Drift, Field(discriminator="kind")]


def _form(segment: Any) -> str | None:
    def has(key: str) -> bool:
        return key in segment if isinstance(segment, Mapping) else hasattr(segment, key)

    if has("concept") == has("drift") or any(map(has, ("at", "start", "end", "position"))):
        return None
    return "concept segment" if has("concept") else "drift segment"


Segment: TypeAlias = Annotated[
    Annotated[ConceptSegment, Tag("concept segment")]
    | Annotated[DriftSegment, Tag("drift segment")],
    Discriminator(
        _form,
        custom_error_type="segment_form",
        custom_error_message=(
            "a segment is either {concept: ..., length: ...} or {drift: {...}}; "
            "lengths say when it comes, no position is written"
        ),
    ),
]


class TimelineConfig(Section):
    """What drifts, when and how, and what is known of it."""

    clock: Clock = "started"
    """What lengths are counted in. `version` shows a slow learner less drift and `seconds` rewards
    throughput; `started` is the same world for every arm."""
    observability: Observability = "hidden"
    """What the agent is told of a change."""
    inflight: Inflight = "pin"
    """What becomes of rollouts that are open when the concept changes."""
    segments: tuple[Segment, ...] = Field(min_length=1)
    repeat: int = Field(default=1, ge=1)

    @model_validator(mode="after")
    def _consistent(self) -> TimelineConfig:
        plan(self)
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSegment:
    """A concept segment with its `ref` resolved, repetitions written out."""

    concept: Concept
    length: float | None
    """On the timeline's clock; None: for ever."""
    arrival: Drift | None
    """The drift that leads here; None for the first."""


def plan(config: TimelineConfig) -> tuple[PlannedSegment, ...]:
    """The segments in the order in which they hold.

    Raises a validation error that says which segment is wrong.
    """
    _check_order(config)
    defined = _definitions(config)
    planned: list[PlannedSegment] = []
    arrival: Drift | None = None
    for turn in range(config.repeat):
        for index, segment in enumerate(config.segments):
            if isinstance(segment, DriftSegment):
                arrival = segment.drift
                continue
            concept = defined[_name(segment)]
            if arrival is not None:
                _check_arrival(config, index, planned[-1].concept, arrival, concept)
            last = turn == config.repeat - 1 and index == len(config.segments) - 1
            _check_length(config, index, segment.length, last=last)
            planned.append(PlannedSegment(concept=concept, length=segment.length, arrival=arrival))
    if config.repeat == 1 and isinstance(arrival, Incremental) and _ends_with_drift(config):
        moved = moving(planned[-1].concept, arrival, arrival.to)
        moved = Concept(id=f"{moved.id}={arrival.to}", params=moved.params)
        _check_arrival(config, len(config.segments), planned[-1].concept, arrival, moved)
        planned.append(PlannedSegment(concept=moved, length=0, arrival=arrival))
    return tuple(planned)


def moving(concept: Concept, drift: Incremental, value: float) -> Concept:
    """`concept` with the drifting parameter at `value`; its id is `<id>~<param>` all the way.

    Where it stops and no concept is written, it is `<id>~<param>=<to>`.
    """
    return Concept(id=f"{concept.id}~{drift.param}", params={**concept.params, drift.param: value})


def _ends_with_drift(config: TimelineConfig) -> bool:
    return isinstance(config.segments[-1], DriftSegment)


def _name(segment: ConceptSegment) -> str:
    return segment.concept.id or segment.concept.ref or ""


def _check_order(config: TimelineConfig) -> None:
    segments = config.segments
    if isinstance(segments[0], DriftSegment):
        raise misplaced(("segments", 0), "a timeline begins with a concept")
    for index in range(1, len(segments)):
        if type(segments[index]) is type(segments[index - 1]):
            between, these = (
                ("a concept", "drifts")
                if isinstance(segments[index], DriftSegment)
                else ("a drift", "concepts")
            )
            raise misplaced(
                ("segments", index), f"two {these} in a row; write {between} between them"
            )
    last = len(segments) - 1
    if config.repeat > 1 and not _ends_with_drift(config):
        raise misplaced(
            ("segments", last),
            "with repeat the segments end with the drift that leads back to the first concept; "
            "add one below",
        )
    end = segments[last]
    if (
        config.repeat == 1
        and isinstance(end, DriftSegment)
        and not isinstance(end.drift, Incremental)
    ):
        raise misplaced(
            ("segments", last),
            f"a drift of kind {end.drift.kind} leads to a concept; add one below or remove it",
        )


def _definitions(config: TimelineConfig) -> dict[str, Concept]:
    """Concepts by id, in the order of their first visit."""
    defined: dict[str, Concept] = {}
    for index, segment in enumerate(config.segments):
        if isinstance(segment, DriftSegment):
            continue
        spec = segment.concept
        if spec.ref is not None:
            if spec.ref not in defined:
                hint = suggestion(spec.ref, defined)
                raise misplaced(
                    ("segments", index, "concept", "ref"),
                    f"no concept {spec.ref!r} is defined further up; {hint}",
                )
            continue
        concept = Concept(id=spec.id or "", params=spec.params or {})
        if defined.setdefault(concept.id, concept) != concept:
            raise misplaced(
                ("segments", index, "concept", "id"),
                f"concept {concept.id!r} is defined further up with other params; "
                f"write {{ref: {concept.id}}} to return to it, or choose another id",
            )
    return defined


def _check_length(config: TimelineConfig, index: int, length: float | None, *, last: bool) -> None:
    if length is None and not last:
        raise misplaced(
            ("segments", index),
            "length is missing; only a concept with nothing after it may hold for ever",
        )
    _check_whole(config, ("segments", index, "length"), length)


def _check_arrival(
    config: TimelineConfig, index: int, before: Concept, drift: Drift, after: Concept
) -> None:
    """`index` is that of the concept the drift leads to; the drift stands before it."""
    place = ("segments", (index or len(config.segments)) - 1, "drift")
    if not isinstance(drift, Incremental):
        if isinstance(drift, Gradual):
            _check_whole(config, (*place, "length"), drift.length)
        if before.params == after.params:
            raise misplaced(
                place, f"nothing changes: {before.id} and {after.id} have the same params"
            )
        return
    _check_whole(config, (*place, "length"), drift.length)
    if drift.start == drift.to:
        raise misplaced((*place, "to"), "nothing changes: from and to are equal")
    if before.params.get(drift.param, drift.start) != drift.start:
        raise misplaced(
            (*place, "from"),
            f"{before.id} has {drift.param}: {before.params[drift.param]!r}; begin there",
        )
    if after.params != moving(before, drift, drift.to).params:
        raise misplaced(
            place,
            f"the drift takes {before.id} to {drift.param}: {drift.to!r}, but {after.id} differs "
            f"from that; give {after.id} the params of {before.id} with {drift.param}: "
            f"{drift.to!r}, or use another kind of drift",
        )


def _check_whole(
    config: TimelineConfig, place: tuple[str | int, ...], length: float | None
) -> None:
    if config.clock != "seconds" and length is not None and length != int(length):
        raise misplaced(place, f"the clock {config.clock!r} counts; must be a whole number")
