"""What the loop is to be told at a time that is known already, in order of that time."""

from __future__ import annotations

import heapq
from typing import Any, TypeAlias

from sao_gym.errors import RunError
from sao_gym.events import Event, FaultHandled, PolicyPublished
from sao_gym.executors.supervision import attempts
from sao_gym.faults import FaultKind, Faults, Patience

Item: TypeAlias = Event | RunError
"""An error: the run is to end then."""


class Agenda:
    """A heap of (time, serial, item); of the same time, what was added first comes first."""

    def __init__(self, faults: Faults, patience: Patience) -> None:
        self._faults, self._patience = faults, patience
        self._heap: list[tuple[float, int, Item]] = []
        self._serial = 0

    def __bool__(self) -> bool:
        return bool(self._heap)

    def add(self, at: float, item: Item) -> None:
        heapq.heappush(self._heap, (at, self._serial, item))
        self._serial += 1

    def take(self, now: float) -> Item | None:
        """The first item, if it is due."""
        if self._heap and self._heap[0][0] <= now:
            return heapq.heappop(self._heap)[2]
        return None

    def seconds_left(self, now: float) -> float:
        """Until the first item is due; infinite if there is none."""
        return max(0.0, self._heap[0][0] - now) if self._heap else float("inf")

    @property
    def publishes(self) -> list[int]:
        """Versions that are under way."""
        return [item.version for *_, item in self._heap if isinstance(item, PolicyPublished)]

    def tell(
        self, at: float, fault: FaultKind, key: int, outcome: str, detail: str, attempt: int = 0
    ) -> None:
        """What was done about a declared fault."""
        event = FaultHandled(fault=fault, key=key, attempt=attempt, outcome=outcome, detail=detail)
        self.add(at, event)

    def attempts(self, fault: FaultKind, key: int, begin: float, lost: float) -> float | None:
        """When the first attempt that `fault` spares begins; None if the run breaks before it.

        The first begins at `begin`. One that fails takes `lost` seconds, and a pause follows it.
        """
        found = attempts(self._faults, self._patience, fault, key, begin=begin, lost=lost)
        for at, event in found.told:
            self.add(at, event)
        if found.begin is None:
            at, line = found.broken
            self.add(at, RunError(line))
        return found.begin

    def state_dict(self) -> dict[str, Any]:
        heap = [(at, n, _plain(item)) for at, n, item in sorted(self._heap, key=_order)]
        return {"heap": heap, "serial": self._serial}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._heap = [(at, n, _item(plain)) for at, n, plain in state["heap"]]
        self._serial = state["serial"]


def _order(entry: tuple[float, int, Item]) -> tuple[float, int]:
    return entry[:2]


def _plain(item: Item) -> Any:
    return {"broken": str(item)} if isinstance(item, RunError) else item


def _item(plain: Any) -> Item:
    if isinstance(plain, dict):
        return RunError(plain["broken"])
    event: Event = plain
    return event
