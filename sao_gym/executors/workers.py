"""Daemon threads that work off a queue of jobs; one that takes too long is left to itself.

A `ThreadPoolExecutor` waits for its threads when the interpreter ends, so a single call that hangs
would keep the process alive for ever, and its thread would be missing from the pool meanwhile.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

from sao_gym.errors import RunError, SaoGymError


@dataclass(frozen=True, slots=True)
class Done:
    """A job has ended."""

    task: Any
    """What the job was for, as it was given to `submit`."""
    result: Any
    """What it returned, or the exception that it raised."""
    seconds: float
    """Since a thread took it up."""


def broken(error: BaseException) -> SaoGymError:
    """What the loop is told of a job that raised `error`."""
    if isinstance(error, SaoGymError):
        return error
    line = RunError(f"a worker thread failed: {type(error).__name__}: {error}")
    line.__cause__ = error
    return line


@dataclass(frozen=True, slots=True, eq=False)
class _Job:
    task: Any
    work: Callable[[], Any]


class Workers:
    """`count` threads; each job that is not abandoned leads to one `Done` in `inbox`."""

    def __init__(self, name: str, count: int, inbox: SimpleQueue[Any]) -> None:
        self._name, self._count, self._inbox = name, count, inbox
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._running: dict[_Job, float] = {}
        """When each began; the one that began first comes first."""
        self._threads: list[threading.Thread] = []
        self._closed = False
        for _ in range(count):
            self._add_thread()

    def submit(self, task: Any, work: Callable[[], Any]) -> None:
        """Have `work` done by the next thread that is free. `task` comes back in its `Done`."""
        self._jobs.put(_Job(task, work))

    def overdue(self, limit: float) -> list[Any]:
        """Abandon the jobs that have run for `limit` seconds, and give their tasks.

        Nobody hears of them any more; each thread is replaced, and ends with its job.
        """
        abandoned = []
        latest = time.monotonic() - limit
        with self._lock:
            while self._running:
                job, began = next(iter(self._running.items()))
                if began > latest:
                    break
                del self._running[job]
                abandoned.append(job.task)
        for _ in abandoned:
            self._add_thread()
        return abandoned

    def close(self) -> None:
        """Take up no further job; does not wait."""
        self._closed = True
        for _ in range(self._count):
            self._jobs.put(None)

    def join(self, until: float) -> None:
        """Wait for the threads, at most until this time of `time.monotonic`."""
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _add_thread(self) -> None:
        thread = threading.Thread(target=self._work, name=self._name, daemon=True)
        with self._lock:
            self._threads = [old for old in self._threads if old.is_alive()]
            thread.start()
            self._threads.append(thread)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None and not self._closed:
            result = self._do(job)
            if result is None:
                return  # another thread has taken this one's place
            self._inbox.put(result)
            if isinstance(result.result, BaseException) and not self._survives(result.result):
                return

    def _do(self, job: _Job) -> Done | None:
        """Do it; None if it was abandoned meanwhile."""
        began = time.monotonic()
        with self._lock:
            self._running[job] = began
        result: Any
        try:
            result = job.work()
        except BaseException as error:
            result = error
        with self._lock:
            heard = self._running.pop(job, None) is not None
        return Done(job.task, result, time.monotonic() - began) if heard else None

    def _survives(self, error: BaseException) -> bool:
        """Whether the thread goes on; what is no `Exception` (SystemExit) ends it."""
        if isinstance(error, Exception):
            return True
        if not self._closed:
            self._add_thread()
        return False
