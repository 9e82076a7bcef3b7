"""Curves over the `started` clock: side evaluations by concept, prequential reward."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from sao_gym.metrics.facts import Facts
from sao_gym.metrics.undefined import Undefined


class Curve(NamedTuple):
    """Points of equal length `xs` (rollouts started, never decreasing) and `ys` (reward)."""

    xs: tuple[float, ...]
    ys: tuple[float, ...]

    def between(self, begin: float, end: float, *, closed: bool = False) -> Curve:
        """The points with begin <= x < end, or <= end if `closed`."""
        low = bisect_left(self.xs, begin)
        high = (bisect_right if closed else bisect_left)(self.xs, end)
        return Curve(self.xs[low:high], self.ys[low:high])

    def last_until(self, x: float) -> float | None:
        """The newest value at or before `x`."""
        index = bisect_right(self.xs, x)
        return self.ys[index - 1] if index else None

    def first_from(self, x: float) -> float | None:
        """The first value at or after `x`."""
        index = bisect_left(self.xs, x)
        return self.ys[index] if index < len(self.xs) else None


def concept_curves(facts: Facts) -> dict[str, Curve]:
    """The evaluations as one curve a concept, concepts in the order in which they first hold."""
    points: dict[str, list[tuple[int, float]]] = {change.concept: [] for change in facts.changes}
    for evaluation in facts.evaluations:
        series = points.setdefault(evaluation.concept, [])
        if evaluation.score is not None:
            series.append((evaluation.started, evaluation.score))
    curves = {}
    for concept, series in points.items():
        series.sort(key=lambda point: point[0])  # stable: a live evaluation may report late
        if series:
            curves[concept] = Curve(tuple(x for x, _ in series), tuple(y for _, y in series))
    return curves


class HeldPiece(NamedTuple):
    """What the policy scores on the concept that holds, from one change to the next."""

    concept: str
    begin: int
    end: int
    curve: Curve
    """Begins with the newest score at or before `begin`, if there is one, and is carried to `end`;
    empty if the concept was not evaluated while it held."""


def held_pieces(facts: Facts) -> tuple[HeldPiece, ...]:
    """The evaluation of the concept that holds, cut at the changes.

    A drift window counts to the concept it leads to, from its begin on.
    """
    begins: list[tuple[int, str]] = []
    for change in facts.changes:
        if change.phase == "window_ended":
            begins[-1] = (begins[-1][0], change.concept)
        else:
            begins.append((change.clocks.started, change.concept))
    if not begins:  # a run that broke before its first event
        return ()
    curves = concept_curves(facts)
    ends = [begin for begin, _ in begins[1:]] + [facts.started]
    pieces = []
    for (begin, concept), end in zip(begins, ends, strict=True):
        whole = curves.get(concept, Curve((), ()))
        xs, ys = whole.between(begin, end, closed=True)
        carried = whole.last_until(begin)
        if xs and xs[0] > begin and carried is not None:
            xs, ys = (begin, *xs), (carried, *ys)
        if xs and xs[-1] < end:
            xs, ys = (*xs, end), (*ys, ys[-1])
        pieces.append(HeldPiece(concept, begin, end, Curve(xs, ys)))
    return tuple(pieces)


def area_mean(pieces: Iterable[Curve]) -> float | Undefined:
    """Mean over the axis by the trapezoid rule on the real spacing, gaps between pieces left out.

    Unlike the mean of the points it does not depend on how often one looked.
    """
    area = length = 0.0
    for piece in pieces:
        for (x0, y0), (x1, y1) in pairwise(zip(piece.xs, piece.ys, strict=True)):
            area += (x1 - x0) * (y0 + y1) / 2
            length += x1 - x0
    return area / length if length else Undefined("fewer than two evaluations")


def window_mean(rewards: Sequence[float], window: int) -> list[float]:
    """Prequential reward: mean of the last `window` rewards (of all, while there are fewer).

    Rewards are in completion order; a rollout's reward comes before it is trained on.
    """
    means: list[float] = []
    total = 0.0
    for index, reward in enumerate(rewards):
        total += reward
        if index >= window:
            total -= rewards[index - window]
        means.append(total / min(index + 1, window))
    return means


def fading_mean(rewards: Sequence[float], alpha: float) -> list[float]:
    """Prequential reward with fading factor: S = r + alpha S, B = 1 + alpha B, value S / B."""
    means: list[float] = []
    s = b = 0.0
    for reward in rewards:
        s = reward + alpha * s
        b = 1.0 + alpha * b
        means.append(s / b)
    return means
