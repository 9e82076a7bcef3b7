"""Failed rollouts, counted by kind; too many of them stop a run."""

from __future__ import annotations

from collections import Counter
from typing import Any

from sao_gym.types import Failed


class FailureCount:
    """Raises no alarm before `after` rollouts have ended; then above a share of `stop_above`."""

    def __init__(self, *, stop_above: float, after: int) -> None:
        self._stop_above, self._after = stop_above, after
        self._kinds: Counter[str] = Counter()
        self._last = ""

    def add(self, failure: Failed) -> None:
        self._kinds[failure.kind] += 1
        self._last = f"{failure.kind}: {failure.detail}"

    def state_dict(self) -> dict[str, Any]:
        return {"kinds": dict(self._kinds), "last": self._last}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._kinds, self._last = Counter(state["kinds"]), state["last"]

    def exceeded(self, completed: int) -> bool:
        if not self._kinds:
            return False
        failed = self._kinds.total()
        ended = failed + completed
        return ended >= self._after and failed > self._stop_above * ended

    def line(self, completed: int) -> str:
        failed = self._kinds.total()
        kinds = ", ".join(f"{kind} {n}" for kind, n in sorted(self._kinds.items()))
        return (
            f"{failed} of {failed + completed} rollouts failed ({kinds}), more than "
            f"failures.stop_above = {self._stop_above}; the last one: {self._last}"
        )
