"""What the agent is told about drift: a bracketed word before the first observation.

hidden   nothing
flag     [2]               how many changes there have been; not what they are
delta    [mapping=BACDEF]  what differs from the concept before; [] if nothing does
context  [B]               which concept the task is drawn from
"""

from __future__ import annotations

from collections.abc import Iterator

from sao_gym.timeline import Timeline
from sao_gym.types import Concept


def notice(timeline: Timeline, clock: float, concept: Concept) -> str:
    """The notice given to a rollout that starts under `concept` when the clock shows `clock`."""
    match timeline.observability:
        case "hidden":
            return ""
        case "context":
            return f"[{concept.id}]"
        case "flag":
            return f"[{timeline.dominant_at(clock).segment}]"
        case "delta":
            return f"[{_delta(_before(timeline, clock), concept)}]"


def notices(timeline: Timeline) -> Iterator[str]:
    """A notice of every segment: what a tokenizer must be able to say."""
    for change in timeline.boundaries:
        yield notice(timeline, change.position, change.concept)


def _before(timeline: Timeline, clock: float) -> Concept:
    """The concept of the segment before the present one (of the first: itself)."""
    segment = timeline.dominant_at(clock).segment
    entered = [c for c in timeline.boundaries if c.phase != "window_began"]
    return entered[max(0, segment - 1)].concept


def _delta(before: Concept, concept: Concept) -> str:
    changed = {
        name: value
        for name, value in concept.params.items()
        if name not in before.params or before.params[name] != value
    }
    return ",".join(f"{name}={value}" for name, value in changed.items())
