"""One pass over the events into a compact form that every metric reads.

The common axis is the `started` clock: how many rollouts had started when something happened. It
is neutral between arms, whatever clock the timeline itself runs on.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sao_gym.events import Clocks
from sao_gym.log import Record


class Change(NamedTuple):
    """A `ConceptChanged`, its clocks included."""

    segment: int
    concept: str
    params: Mapping[str, Any]
    kind: str
    phase: str
    clocks: Clocks
    updates: int
    """Updates that had finished by then: `Facts.updates[change.updates:]` came after it."""


class Evaluation(NamedTuple):
    version: int
    concept: str
    score: float | None
    started: int
    t: float


class Finished(NamedTuple):
    """A finished rollout; the list of them is in completion order."""

    rollout: int
    order: int
    """The `started` clock when it began: how many had begun before it."""
    started: int
    """The `started` clock when it was complete."""
    concept_start: str
    concept_scored: str
    reward: float
    t: float


class Trained(NamedTuple):
    """An update."""

    version: int
    t: float
    started: int
    rollouts: int
    tokens: int
    """Action tokens of the batch."""
    lag_mean: float
    lag_max: int
    concept_lag: float | None
    """Share of the batch's action tokens from rollouts begun under a concept that holds no more."""
    lags: Mapping[int, int]
    """Token-weighted: version lag -> action tokens of the batch."""
    metrics: Mapping[str, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything the metrics need of a run; lists are in the order of the log."""

    changes: tuple[Change, ...]
    evaluations: tuple[Evaluation, ...]
    finished: tuple[Finished, ...]
    updates: tuple[Trained, ...]
    dropped: tuple[tuple[int, str, int], ...]
    """(rollout, reason, `started` clock)."""
    failed: tuple[tuple[int, str, str, int], ...]
    """(rollout, kind, detail, `started` clock)."""
    faults: tuple[tuple[str, str, int], ...]
    """What failed outside rollouts and was dealt with: (fault, outcome, `started` clock)."""
    alarms: tuple[tuple[str, float, int], ...]
    """Signs of collapse: (alarm, value, `started` clock)."""
    started: int
    tokens: int
    """Action tokens sampled in finished turns."""
    published: tuple[int, ...]
    """Versions, in the order they were published."""
    events: Mapping[str, int]
    """How many events of each kind."""
    seconds: float
    """Time of the last event on the run's clock."""
    ended: tuple[str, Mapping[str, float]] | None
    """Reason and clocks of `RunEnded`; None if the run was cut off."""
    _clocks: tuple[array[float], ...] = field(repr=False)

    def clocks_at(self, started: int) -> Clocks:
        """All clocks as they stood when the `started` clock first showed this value."""
        if started <= 0 or not self.started:
            return Clocks()
        completed, consumed, version, tokens, seconds = (
            column[min(started, self.started) - 1] for column in self._clocks
        )
        return Clocks(
            started=started,
            completed=int(completed),
            consumed=int(consumed),
            version=int(version),
            tokens=int(tokens),
            seconds=seconds,
        )


def collect(records: Iterable[Record]) -> Facts:
    """Read the events of a run (without the header line) into `Facts`."""
    collector = Collector()
    for record in records:
        collector.add(record)
    return collector.facts()


class _Open(NamedTuple):
    """What is remembered of a rollout until its fate is known."""

    order: int
    concept: str
    spans: list[tuple[int, int]]


class Collector:
    """The fold behind `collect`, for readers that make one pass for several purposes."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._changes: list[Change] = []
        self._evaluations: list[Evaluation] = []
        self._finished: list[Finished] = []
        self._updates: list[Trained] = []
        self._dropped: list[tuple[int, str, int]] = []
        self._failed: list[tuple[int, str, str, int]] = []
        self._faults: list[tuple[str, str, int]] = []
        self._alarms: list[tuple[str, float, int]] = []
        self._published: list[int] = []
        self._open: dict[int, _Open] = {}
        self._columns = tuple(array("d") for _ in range(5))
        self._consumed = self._tokens = self._version = 0
        self._seconds = 0.0
        self._ended: tuple[str, Mapping[str, float]] | None = None
        self._holding: frozenset[str] = frozenset()

    def add(self, record: Record) -> None:
        """Take in the next event."""
        name = record["event"]
        self._counts[name] += 1
        self._seconds = record["t"]
        handler = _HANDLERS.get(name)
        if handler is not None:
            handler(self, record)

    @property
    def _started(self) -> int:
        return self._counts["RolloutStarted"]

    def _on_started(self, record: Record) -> None:
        self._open[record["rollout"]] = _Open(self._started - 1, record["concept"], [])
        row = (len(self._finished), self._consumed, self._version, self._tokens, record["t"])
        for column, value in zip(self._columns, row, strict=True):
            column.append(value)

    def _on_sampled(self, record: Record) -> None:
        self._tokens += len(record["action_ids"])
        rollout = self._open.get(record["rollout"])
        if rollout is not None:
            rollout.spans.extend((version, count) for version, count in record["versions"])

    def _on_finished(self, record: Record) -> None:
        rollout = self._open[record["rollout"]]
        done = Finished(
            record["rollout"],
            rollout.order,
            self._started,
            record["concept_start"],
            record["concept_scored"],
            record["reward"],
            record["t"],
        )
        self._finished.append(done)

    def _on_dropped(self, record: Record) -> None:
        self._open.pop(record["rollout"], None)
        self._dropped.append((record["rollout"], record["reason"], self._started))

    def _on_failed(self, record: Record) -> None:
        self._open.pop(record["rollout"], None)
        kind, detail = record["kind"], record["detail"]
        self._failed.append((record["rollout"], kind, detail, self._started))

    def _on_update(self, record: Record) -> None:
        learner = record["version"] - 1  # versions go one by one
        lags: Counter[int] = Counter()
        outdated = 0
        for rollout in record["rollouts"]:
            batch = self._open.pop(rollout)
            for version, count in batch.spans:
                lags[learner - version] += count
                outdated += count if batch.concept not in self._holding else 0
        tokens = lags.total()
        update = Trained(
            version=record["version"],
            t=record["t"],
            started=self._started,
            rollouts=len(record["rollouts"]),
            tokens=tokens,
            lag_mean=record["lag_mean"],
            lag_max=record["lag_max"],
            concept_lag=outdated / tokens if tokens else None,
            lags=lags,
            metrics=record["metrics"],
        )
        self._updates.append(update)
        self._consumed += len(record["rollouts"])

    def _on_published(self, record: Record) -> None:
        self._version = record["version"]
        self._published.append(record["version"])

    def _on_changed(self, record: Record) -> None:
        clocks = Clocks(**record["clocks"])
        change = Change(
            record["segment"],
            record["concept"],
            record["params"],
            record["kind"],
            record["phase"],
            clocks,
            len(self._updates),
        )
        self._changes.append(change)
        approaching = self._holding if change.phase == "window_began" else frozenset[str]()
        self._holding = approaching | {change.concept}

    def _on_evaluated(self, record: Record) -> None:
        evaluation = Evaluation(
            record["version"], record["concept"], record["score"], record["started"], record["t"]
        )
        self._evaluations.append(evaluation)

    def _on_fault(self, record: Record) -> None:
        self._faults.append((record["fault"], record["outcome"], self._started))

    def _on_alarm(self, record: Record) -> None:
        self._alarms.append((record["alarm"], record["value"], self._started))

    def _on_ended(self, record: Record) -> None:
        self._ended = (record["reason"], record["clocks"])

    def facts(self) -> Facts:
        """What was read so far."""
        return Facts(
            changes=tuple(self._changes),
            evaluations=tuple(self._evaluations),
            finished=tuple(self._finished),
            updates=tuple(self._updates),
            dropped=tuple(self._dropped),
            failed=tuple(self._failed),
            faults=tuple(self._faults),
            alarms=tuple(self._alarms),
            started=self._started,
            tokens=self._tokens,
            published=tuple(self._published),
            events=dict(sorted(self._counts.items())),
            seconds=self._seconds,
            ended=self._ended,
            _clocks=self._columns,
        )


_HANDLERS = {
    "RolloutStarted": Collector._on_started,
    "TurnSampled": Collector._on_sampled,
    "RolloutFinished": Collector._on_finished,
    "RolloutDropped": Collector._on_dropped,
    "RolloutFailed": Collector._on_failed,
    "UpdateFinished": Collector._on_update,
    "PolicyPublished": Collector._on_published,
    "ConceptChanged": Collector._on_changed,
    "Evaluated": Collector._on_evaluated,
    "FaultHandled": Collector._on_fault,
    "AlarmRaised": Collector._on_alarm,
    "RunEnded": Collector._on_ended,
}
