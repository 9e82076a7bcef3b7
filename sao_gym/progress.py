"""How far a run is: a bar in a terminal, a line now and then elsewhere.

with open_progress({"rollouts": 9600}) as progress:
    for time, event in run(...):
        progress.update(time, event)
"""

from __future__ import annotations

import time as clock
from collections import deque
from collections.abc import Mapping
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from sao_gym.events import (
    ConceptChanged,
    Event,
    PolicyPublished,
    RolloutFinished,
    RolloutStarted,
    UpdateFinished,
)

WINDOW = 200
BAR_SECONDS = 0.1
LINE_SECONDS = 10.0


class RunProgress:
    """Follows the events of one run; costs under a microsecond an event."""

    def __init__(
        self, budget: Mapping[str, float], *, quiet: bool = False, console: Console | None = None
    ) -> None:
        """`budget` has any of `rollouts`, `updates`, `seconds`; what is used up first counts."""
        self._budget = dict(budget)
        self._console = console or Console(stderr=True)
        self._quiet = quiet
        self._interval = BAR_SECONDS if self._console.is_terminal else LINE_SECONDS
        self._shown = clock.monotonic()
        self._rewards: deque[float] = deque(maxlen=WINDOW)
        self._started = self._updates = self._version = 0
        self._lag = self._seconds = 0.0
        self._concept = ""
        self._bar: Progress | None = None

    def update(self, time: float, event: Event) -> None:
        """Take in the next event and show the state if it is time to."""
        if self._quiet:
            return
        self._seconds = time
        match event:
            case RolloutStarted():
                self._started += 1
            case RolloutFinished(trajectory=trajectory):
                self._rewards.append(trajectory.reward)
            case UpdateFinished(lag_mean=lag):
                self._updates += 1
                self._lag = lag
            case PolicyPublished(version=version):
                self._version = version
            case ConceptChanged(concept=concept):
                self._concept = concept.id
            case _:
                return
        if clock.monotonic() - self._shown >= self._interval:
            self._show()

    def describe(self) -> str:
        """The state in words."""
        rollouts = self._budget.get("rollouts")
        of = "" if rollouts is None else f" of {rollouts:,.0f}"
        parts = [f"{self._started:,}{of} rollouts", f"version {self._version}"]
        if self._rewards:
            parts.append(f"reward {sum(self._rewards) / len(self._rewards):.2f}")
        parts += [f"lag {self._lag:.1f}", f"concept {self._concept}"]
        return ", ".join(parts)

    @property
    def fraction(self) -> float:
        """Used share of the budget, 0 to 1."""
        used = {"rollouts": self._started, "updates": self._updates, "seconds": self._seconds}
        shares = [used[name] / limit for name, limit in self._budget.items() if limit]
        return min(1.0, max(shares, default=0.0))

    def _show(self) -> None:
        self._shown = clock.monotonic()
        if self._bar is not None:
            self._bar.update(
                self._bar.task_ids[0], completed=self.fraction, description=self.describe()
            )
        elif not self._console.is_terminal:
            self._console.print(f"{self.fraction:4.0%}  {self.describe()}", highlight=False)

    def __enter__(self) -> RunProgress:
        if not self._quiet and self._console.is_terminal:
            columns = (BarColumn(bar_width=24), TaskProgressColumn(), TimeRemainingColumn())
            description = TextColumn("{task.description}", markup=False)
            self._bar = Progress(
                *columns, description, console=self._console, transient=True, refresh_per_second=8
            )
            self._bar.add_task("starting", total=1.0)
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._show()
            self._bar.stop()
            self._bar = None


def open_progress(
    budget: Mapping[str, float], *, quiet: bool = False, console: Console | None = None
) -> RunProgress:
    """A progress display to be used in a `with` block; `quiet` shows nothing at all."""
    return RunProgress(budget, quiet=quiet, console=console)
