"""What each change of the world cost, and how fast it was made good.

With tau = the change (of a drift window: its begin), y = the side evaluation of the published
policy, and all lengths in rollouts started:

    before        mean y of the old concept on [tau - w, tau), w = a quarter of the segment
    P0            newest y of the new concept at or before tau: the unchanged policy, new world
    right after   first y of the new concept at or after tau
    drop          before - P0: what the world did
    self-inflicted  P0 - lowest y after tau: what learning did on top
    recovered     first d from which y stays >= P0 + x (before - P0) for the sustain window
    regained      (y at the end - P0) / (before - P0)
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from sao_gym.metrics.curves import Curve, concept_curves
from sao_gym.metrics.facts import Facts
from sao_gym.metrics.undefined import Undefined, split

TAIL = 0.25
"""Share of a segment over which its level is averaged."""
SHARES = (0.5, 0.8, 0.9)
"""Shares of the loss whose recovery is timed."""
SUSTAIN = 0.1
"""Length of the sustain window as a share of the time from one change to the next."""
SUSTAIN_POINTS = 3
"""Fewest evaluations in a sustain window: one alone would be a first crossing."""
SUSTAIN_SHARE = 0.9
"""Share of the evaluations in the sustain window that must hold the level."""
LEAST_LOSS = 0.05
"""A drop smaller than this is noise: nothing was lost that could be recovered."""
FLUSHED = 0.05
"""Share of old-concept tokens in an update below which the old concept is flushed."""
LEAST_RISE = 0.02
"""A rise over the pre-drift window smaller than this counts as converged."""


class Transition(NamedTuple):
    """From one concept to the next, on the `started` clock."""

    old: str
    new: str
    kind: str
    previous: int
    """Where the old concept began to hold alone."""
    tau: int
    """The change; the begin of a drift window."""
    settled: int | None
    """The end of the drift window (`tau` if abrupt); None if the run ended inside it."""
    end: int
    """The next change, or where the run ended."""
    last: bool
    updates: slice
    """The updates from this change to the next, in `Facts.updates`."""
    settled_updates: int
    """Updates that had finished at `settled`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeReport:
    """One change. A number is None if undefined; `undefined` then gives the reason by name."""

    number: int
    """Counts from 1."""
    old: str
    new: str
    kind: str
    tau: int
    """Rollouts started at the change; of a drift window: at its begin."""
    settled: int | None
    """Rollouts started at the end of the drift window; equal to `tau` if abrupt."""
    end: int
    before: float | None
    before_slope: float | None
    """Reward per 1000 rollouts started."""
    converged: bool | None
    """False if the old concept was still being learned at `tau`; None if undefined."""
    unchanged: float | None
    """P0."""
    after: float | None
    lowest: float | None
    at_end: float | None
    drop: float | None
    self_inflicted: float | None
    recovery: Mapping[str, Mapping[str, float] | None]
    """By share of the loss ("50", "80", "90"): time from tau on every clock, or None."""
    censored: Mapping[str, bool]
    """By share: True if that level was not reached and held before the next change."""
    regained: float | None
    savings: float | None
    """1 - T80 of this visit / T80 of the concept's first visit through a change."""
    served: float | None
    """Mean reward of the rollouts started from `tau` to `end`."""
    lag_mean: float | None
    """Token-weighted, over the updates from `tau` to `end`."""
    lag_max: float | None
    masked_fraction: float | None
    flush: float | None
    """Rollouts started from `settled` until an update has at most 5 % old-concept tokens."""
    undefined: Mapping[str, str]

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


def transitions(facts: Facts) -> tuple[Transition, ...]:
    """The changes of the concept, drift windows as one each."""
    found: list[Transition] = []
    holding, since = "", 0
    for change in facts.changes:
        x = change.clocks.started
        if change.phase == "window_ended" and found:
            found[-1] = found[-1]._replace(
                new=change.concept, settled=x, settled_updates=change.updates
            )
        elif change.kind != "start":
            found.append(
                Transition(
                    old=holding,
                    new=change.concept,
                    kind=change.kind,
                    previous=since,
                    tau=x,
                    settled=x if change.phase == "changed" else None,
                    end=facts.started,
                    last=True,
                    updates=slice(change.updates, None),
                    settled_updates=change.updates,
                )
            )
        if change.phase != "window_began":
            holding, since = change.concept, x
    for number, later in enumerate(found[1:]):
        until = slice(found[number].updates.start, later.updates.start)
        found[number] = found[number]._replace(end=later.tau, last=False, updates=until)
    return tuple(found)


def change_reports(facts: Facts) -> tuple[ChangeReport, ...]:
    """One report a change, in order."""
    curves = concept_curves(facts)
    first_visits: dict[str, float | Undefined] = {}
    reports = []
    for number, change in enumerate(transitions(facts), start=1):
        reports.append(_report(number, change, curves, facts, first_visits))
    return tuple(reports)


def _report(
    number: int,
    change: Transition,
    curves: Mapping[str, Curve],
    facts: Facts,
    first_visits: dict[str, float | Undefined],
) -> ChangeReport:
    never = Curve((), ())
    old, new = curves.get(change.old, never), curves.get(change.new, never)
    before = level(old, change.previous, change.tau)
    slope, converged = trend(old, change.previous, change.tau)
    unchanged = _known(new.last_until(change.tau), "the new concept was not evaluated before tau")
    segment = new.between(change.tau, change.end, closed=change.last)
    times = {
        share: recovery_time(segment, change.tau, change.end, before, unchanged, share)
        for share in SHARES
    }
    at_end = _at_end(new, change)
    lowest = min(segment.ys) if segment.ys else _NO_EVALUATION
    values: dict[str, float | Undefined] = {
        "before": before,
        "before_slope": slope,
        "unchanged": unchanged,
        "after": segment.ys[0] if segment.ys else _NO_EVALUATION,
        "lowest": lowest,
        "at_end": at_end,
        "drop": _minus(before, unchanged),
        "self_inflicted": _minus(unchanged, lowest),
        "regained": regained_share(before, unchanged, at_end),
        "savings": _savings(change.new, times[0.8], first_visits),
        **_flow(facts, change),
    }
    numbers, reasons = split(values)
    for share, time in times.items():
        if isinstance(time, Undefined):
            reasons[f"recovery.{round(share * 100)}"] = time.reason
    return ChangeReport(
        number=number,
        old=change.old,
        new=change.new,
        kind=change.kind,
        tau=change.tau,
        settled=change.settled,
        end=change.end,
        converged=converged,
        recovery={
            f"{round(share * 100)}": None
            if isinstance(time, Undefined)
            else _on_every_clock(facts, change.tau, time)
            for share, time in times.items()
        },
        censored={f"{round(share * 100)}": time is CENSORED for share, time in times.items()},
        undefined=reasons,
        **numbers,
    )


CENSORED = Undefined("not reached and held before the next change (right-censored)")
_NO_EVALUATION = Undefined("the new concept was not evaluated between this change and the next")


def level(curve: Curve, begin: float, end: float, *, closed: bool = False) -> float | Undefined:
    """Mean of the curve over the last quarter of [begin, end)."""
    ys = curve.between(end - TAIL * (end - begin), end, closed=closed).ys
    return sum(ys) / len(ys) if ys else Undefined("no evaluation in the last quarter of a segment")


def trend(curve: Curve, begin: float, end: float) -> tuple[float | Undefined, bool | None]:
    """Least-squares slope over the last quarter (per 1000 rollouts), and whether it has converged.

    "Still rising" needs a rise of more than `LEAST_RISE` over the window and a slope of more than
    two standard errors.
    """
    width = TAIL * (end - begin)
    xs, ys = curve.between(end - width, end)
    n = len(xs)
    mean_x, mean_y = (sum(xs) / n, sum(ys) / n) if n else (0.0, 0.0)
    spread = sum((x - mean_x) ** 2 for x in xs)
    if n < 3 or not spread:
        return Undefined("fewer than three evaluations in the window before the change"), None
    slope = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / spread
    residual = sum((y - mean_y - slope * (x - mean_x)) ** 2 for x, y in zip(xs, ys, strict=True))
    error = math.sqrt(residual / (n - 2) / spread)
    rising = slope * width > LEAST_RISE and slope > 2 * error
    return 1000 * slope, not rising


def recovery_time(
    segment: Curve,
    tau: float,
    end: float,
    target: float | Undefined,
    floor: float | Undefined,
    share: float,
) -> float | Undefined:
    """Rollouts from `tau` until `segment` is, and stays, at floor + share (target - floor).

    Stays: at least 90 % of the evaluations in the sustain window that begins there hold the
    level, the first one included. `CENSORED` if the next change (`end`) comes first; nothing is
    ever put in its place.
    """
    if isinstance(target, Undefined):
        return target
    if isinstance(floor, Undefined):
        return floor
    if target - floor < LEAST_LOSS:
        return Undefined(f"less than {LEAST_LOSS} was lost")
    threshold = floor + share * (target - floor) - 1e-12
    sustain = SUSTAIN * (end - tau)
    for index, x in enumerate(segment.xs):
        if segment.ys[index] < threshold:
            continue
        if x + sustain > end:
            return CENSORED
        stop = max(bisect_right(segment.xs, x + sustain), index + SUSTAIN_POINTS)
        held = sum(y >= threshold for y in segment.ys[index:stop])
        if held >= SUSTAIN_SHARE * (stop - index):
            return x - tau
    return CENSORED


def regained_share(
    before: float | Undefined, floor: float | Undefined, at_end: float | Undefined
) -> float | Undefined:
    """Share of the loss won back at the end of the segment; not clamped."""
    for value in (before, floor, at_end):
        if isinstance(value, Undefined):
            return value
    assert not isinstance(before, Undefined)
    assert not isinstance(floor, Undefined)
    assert not isinstance(at_end, Undefined)
    if before - floor < LEAST_LOSS:
        return Undefined(f"less than {LEAST_LOSS} was lost")
    return (at_end - floor) / (before - floor)


def _known(value: float | None, reason: str) -> float | Undefined:
    return Undefined(reason) if value is None else value


def _minus(a: float | Undefined, b: float | Undefined) -> float | Undefined:
    if isinstance(a, Undefined):
        return a
    return b if isinstance(b, Undefined) else a - b


def _at_end(new: Curve, change: Transition) -> float | Undefined:
    if change.settled is None:
        return Undefined("the run ended inside the drift window")
    return level(new, change.settled, change.end, closed=change.last)


def _savings(
    concept: str, time: float | Undefined, first_visits: dict[str, float | Undefined]
) -> float | Undefined:
    if concept not in first_visits:
        first_visits[concept] = time
        return Undefined("first visit of this concept through a change")
    first = first_visits[concept]
    if isinstance(first, Undefined):
        return Undefined(f"first visit: {first.reason}")
    if isinstance(time, Undefined):
        return time
    return 1 - time / first if first else Undefined("the first visit took no time")


def _on_every_clock(facts: Facts, tau: int, time: float) -> dict[str, float]:
    at_change, recovered = facts.clocks_at(tau), facts.clocks_at(tau + int(time))
    return {
        "started": time,
        "completed": recovered.completed - at_change.completed,
        "consumed": recovered.consumed - at_change.consumed,
        "version": recovered.version - at_change.version,
        "tokens": recovered.tokens - at_change.tokens,
        "seconds": recovered.seconds - at_change.seconds,
    }


def _flow(facts: Facts, change: Transition) -> dict[str, float | Undefined]:
    """What went through the learner and was served between this change and the next."""
    updates = facts.updates[change.updates]
    none = Undefined("no update between this change and the next")
    tokens = sum(update.tokens for update in updates)
    lags = sum(lag * count for update in updates for lag, count in update.lags.items())
    masked = [m for u in updates if (m := u.metrics.get("masked_fraction")) is not None]
    served = [f.reward for f in facts.finished if change.tau <= f.order < change.end]
    return {
        "served": _mean(served, "no rollout finished of those started before the next change"),
        "lag_mean": lags / tokens if tokens else none,
        "lag_max": float(max(u.lag_max for u in updates)) if updates else none,
        "masked_fraction": _mean(
            masked, "the learner reports no masked_fraction" if updates else none.reason
        ),
        "flush": _flush(facts, change),
    }


def _flush(facts: Facts, change: Transition) -> float | Undefined:
    if change.settled is None:
        return Undefined("the run ended inside the drift window")
    for update in facts.updates[change.settled_updates : change.updates.stop]:
        if update.concept_lag is not None and update.concept_lag <= FLUSHED:
            return update.started - change.settled
    return Undefined("tokens of an old concept were in every update until the next change")


def _mean(values: Sequence[float], reason: str) -> float | Undefined:
    return sum(values) / len(values) if values else Undefined(reason)
