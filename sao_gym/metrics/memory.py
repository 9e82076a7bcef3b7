"""What is remembered: the matrix R and the numbers of continual learning made from it.

R[i][j] is the newest evaluation on concept j at or before the end of segment i. A segment ends
where the next change (or drift window) begins. Definitions: accuracy and backward/forward
transfer as in Lopez-Paz and Ranzato 2017 (GEM, eqs. 2-4), forgetting as in Chaudhry et al. 2018
(RWalk, eq. 3); a concept that recurs counts by its first visit.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from sao_gym.metrics.changes import transitions
from sao_gym.metrics.curves import concept_curves
from sao_gym.metrics.facts import Facts
from sao_gym.metrics.undefined import Undefined, split


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReport:
    """None where undefined; `undefined` then gives the reason by name."""

    concepts: tuple[str, ...]
    """Columns of `scores`, in the order in which they first held."""
    segments: tuple[str, ...]
    """Rows of `scores`: the concept that held."""
    scores: tuple[tuple[float | None, ...], ...]
    """R. None: the concept was not evaluated by then."""
    accuracy: float | None
    """Mean of the last row."""
    backward: float | None
    """Mean of (last row - row of the first visit), the concept that holds at the end left out."""
    forward: float | None
    """Mean of (row before the first visit - the untrained policy), the first concept left out."""
    forgetting: float | None
    """Mean of (best row from the first visit on - last row), the concept at the end left out."""
    undefined: dict[str, str]

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


def memory_report(facts: Facts) -> MemoryReport:
    """The memory matrix of a run and its summary numbers."""
    curves = concept_curves(facts)
    moves = transitions(facts)
    held = [facts.changes[0].concept] if facts.changes else []
    held += [move.new for move in moves]
    ends = [move.tau for move in moves] + [facts.started]
    concepts = tuple(dict.fromkeys(held))

    def score(concept: str, x: int) -> float | None:
        return curves[concept].last_until(x) if concept in curves else None

    rows = tuple(tuple(score(c, end) for c in concepts) for _, end in zip(held, ends, strict=False))
    untrained = [score(concept, 0) for concept in concepts]
    first = [held.index(concept) for concept in concepts]
    past = [j for j, concept in enumerate(concepts) if concept != held[-1]]
    one = Undefined("only one concept was visited")
    values: dict[str, float | Undefined] = {
        "accuracy": _mean([rows[-1][j] for j in range(len(concepts))] if rows else []),
        "backward": _mean([_minus(rows[-1][j], rows[first[j]][j]) for j in past]) if past else one,
        "forgetting": _mean([_forgotten(rows, j, first[j]) for j in past]) if past else one,
        "forward": _mean(
            [
                _minus(rows[first[j] - 1][j], untrained[j])
                for j in range(len(concepts))
                if first[j] > 0
            ]
        )
        if len(concepts) > 1
        else one,
    }
    numbers, undefined = split(values)
    return MemoryReport(
        concepts=concepts, segments=tuple(held), scores=rows, undefined=undefined, **numbers
    )


def _forgotten(rows: tuple[tuple[float | None, ...], ...], j: int, first: int) -> float | None:
    seen = [score for row in rows[first:-1] if (score := row[j]) is not None]
    return _minus(max(seen), rows[-1][j]) if seen else None


def _minus(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a - b


def _mean(values: list[float | None]) -> float | Undefined:
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return Undefined("a cell of the memory matrix was not evaluated")
    return sum(known) / len(known)
