"""Real time passes and nothing happens: say what everything is waiting for, and end.

An environment or a learner that never returns blocks the thread that called it, so this is told
from another one. What was recorded stays; the run can be resumed.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from types import TracebackType

from sao_gym.errors import StalledError
from sao_gym.protocols import Executor

_POLL_SECONDS = 0.2


class Watchdog:
    """Ends the process with the code of StalledError if it is not fed for `seconds`."""

    def __init__(self, seconds: float, executor: Executor) -> None:
        self._seconds, self._executor = seconds, executor
        self._fed = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def fed(self) -> None:
        """Something happened."""
        self._fed = time.monotonic()

    def __enter__(self) -> Watchdog:
        self._fed = time.monotonic()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()

    def _watch(self) -> None:
        # a live executor notices first, and ends the run in order; this is for what blocks it
        while not self._over.wait(_POLL_SECONDS):
            if time.monotonic() - self._fed > self._seconds + 10 * _POLL_SECONDS:
                line = (
                    f"error: no event for {self._seconds:g} s of real time; under way: "
                    f"{self._executor.waiting_for()}; resume goes on from the last checkpoint"
                )
                print(line, file=sys.stderr, flush=True)  # noqa: T201
                os._exit(StalledError.exit_code)
