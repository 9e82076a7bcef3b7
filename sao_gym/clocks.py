"""The clocks of one run, counted by the loop and read by all its parts."""

from __future__ import annotations

from dataclasses import dataclass

from sao_gym.events import Clocks
from sao_gym.protocols import Executor


@dataclass(slots=True)
class RunClocks:
    """Counters; `seconds` is the executor's."""

    executor: Executor
    started: int = 0
    completed: int = 0
    consumed: int = 0
    version: int = 0
    tokens: int = 0

    @property
    def seconds(self) -> float:
        return self.executor.now

    def read(self) -> Clocks:
        """All of them, as they are now."""
        return Clocks(
            started=self.started,
            completed=self.completed,
            consumed=self.consumed,
            version=self.version,
            tokens=self.tokens,
            seconds=self.executor.now,
        )

    def state_dict(self) -> dict[str, int]:
        names = ("started", "completed", "consumed", "version", "tokens")
        return {name: getattr(self, name) for name in names}

    def load_state_dict(self, state: dict[str, int]) -> None:
        for name, value in state.items():
            setattr(self, name, value)

    def value(self, name: str) -> float:
        """One of them, by name."""
        return float(getattr(self, name))
