"""What the figures draw, thinned to what an eye can see. Pure functions of `Facts`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from sao_gym.metrics import Curve, Facts, Transition, concept_curves, transitions, window_mean
from sao_gym.summary import WINDOW

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#B3478C", "#8C6D1F", "#5B4DB1", "#2B9BB8", "#A3423B")
"""Colours of concepts: after Okabe and Ito (2008), darkened where white text stands on them.
They are told apart by direct labels too, never by colour alone."""

POINTS = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Where a concept holds alone."""

    concept: str
    begin: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """Time from a change to 80 % of the loss, or None if it did not come before `end`."""

    tau: int
    end: int
    rollouts: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Everything in a picture of one run; all x are rollouts started."""

    end: int
    segments: tuple[Segment, ...]
    changes: tuple[Transition, ...]
    colours: dict[str, str]
    evaluations: dict[str, Curve]
    prequential: Curve
    lag_mean: Curve
    lag_max: Curve
    masked: Curve
    recoveries: tuple[Recovery, ...]

    def held(self, concept: str) -> list[Curve]:
        """The stretches of a concept's evaluations in which it holds or is approached."""
        spans = [(s.begin, s.end) for s in self.segments if s.concept == concept]
        for change in self.changes:
            until = change.end if change.settled is None else change.settled
            if change.new == concept and until > change.tau:
                spans.append((change.tau, until))
        spans.sort()
        joined: list[tuple[int, int]] = []
        for begin, end in spans:
            if joined and begin <= joined[-1][1]:
                joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
            else:
                joined.append((begin, end))
        whole = self.evaluations.get(concept, Curve((), ()))
        return [whole.between(begin, end, closed=True) for begin, end in joined]


def build_series(facts: Facts, recoveries: Sequence[int | None], lost: Sequence[bool]) -> Series:
    """Collect what is drawn.

    Args:
        facts: The run.
        recoveries: For each change the rollouts to recover 80 %, None if that did not happen.
        lost: For each change whether there was a loss to recover from.
    """
    moves = transitions(facts)
    first = facts.changes[0].concept if facts.changes else ""
    begins = [(first, 0)] + [(m.new, m.settled) for m in moves if m.settled is not None]
    ends = [m.tau for m in moves] + [facts.started]
    segments = tuple(
        Segment(concept=concept, begin=begin, end=end)
        for (concept, begin), end in zip(begins, ends, strict=False)
    )
    names = list(dict.fromkeys(change.concept for change in facts.changes))
    updates = facts.updates
    xs = tuple(update.started for update in updates)
    curves = concept_curves(facts)
    shares = [(u.started, u.metrics.get("masked_fraction")) for u in updates]
    masked = [(x, share) for x, share in shares if share is not None]
    return Series(
        end=facts.started,
        segments=segments,
        changes=moves,
        colours={name: PALETTE[i % len(PALETTE)] for i, name in enumerate(names)},
        evaluations={name: thin(curves[name], _last) for name in names if name in curves},
        prequential=thin(_prequential(facts), _last),
        lag_mean=thin(Curve(xs, tuple(u.lag_mean for u in updates)), _mean),
        lag_max=thin(Curve(xs, tuple(float(u.lag_max) for u in updates)), max),
        masked=thin(Curve(tuple(x for x, _ in masked), tuple(m for _, m in masked)), _mean),
        recoveries=tuple(
            Recovery(tau=move.tau, end=move.end, rollouts=time)
            for move, time, costly in zip(moves, recoveries, lost, strict=True)
            if costly
        ),
    )


def _prequential(facts: Facts) -> Curve:
    """From the first full window on: before it, the mean is over the quickest rollouts only."""
    xs = tuple(done.started for done in facts.finished)
    ys = tuple(window_mean([done.reward for done in facts.finished], WINDOW))
    first = min(WINDOW, len(xs)) - 1
    return Curve(xs[max(0, first) :], ys[max(0, first) :])


def thin(curve: Curve, merge: Callable[[Sequence[float]], float], points: int = POINTS) -> Curve:
    """At most `points` points, one an x, each standing for a stretch of neighbours, merged.

    When the last rollout has started the clock stands still while the rest is trained on; those
    points share one x.
    """
    bounds = [len(curve.xs) * k // points for k in range(points + 1)]
    if len(curve.xs) <= points:
        bounds = list(range(len(curve.xs) + 1))
    same = {k for k in range(1, len(curve.xs)) if curve.xs[k - 1] == curve.xs[k]}
    bounds = [bound for bound in bounds if bound not in same]
    cuts = [(a, b) for a, b in pairwise(bounds) if b > a]
    return Curve(
        tuple(_last(curve.xs[a:b]) for a, b in cuts), tuple(merge(curve.ys[a:b]) for a, b in cuts)
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _last(values: Sequence[float]) -> float:
    return values[-1]
