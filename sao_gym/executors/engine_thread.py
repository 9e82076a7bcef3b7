"""The thread that ticks the engine, and what is done when it dies.

    loop's thread --commands--> engine thread --completions--> inbox of the loop's thread
          |                          |
          +-- watch(): is it dead? --+   then another thread begins: pause, restart, go on

Only this thread touches the engine. What is needed to bring the engine up again, its open requests
and the weights that it should hold, is noted before the engine is told, so that a death in the
middle of anything loses nothing. A thread that dies for whatever reason is noticed by `watch`.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeAlias

from sao_gym.errors import RunError
from sao_gym.executors.supervision import load_verified, restart
from sao_gym.faults import Faults, Patience
from sao_gym.protocols import Engine
from sao_gym.types import Request, Weights

_Command: TypeAlias = Callable[[], None]


class EngineThread:
    """Ticks while requests are active; puts `Completion`, `FaultHandled` and `RunError` into
    `inbox`."""

    def __init__(
        self,
        engine: Engine,
        *,
        weights: Weights,
        faults: Faults,
        patience: Patience,
        inbox: SimpleQueue[Any],
    ) -> None:
        """`weights`: those of version 0, which the engine holds."""
        self._engine, self._faults, self._patience, self._inbox = engine, faults, patience, inbox
        self._commands: SimpleQueue[_Command | None] = SimpleQueue()
        self._requests: dict[int, Request] = {}
        self._held: tuple[Weights, int] = (weights, 0)
        self._closing = threading.Event()
        self._broken = False
        self._deaths = 0
        self._cause = ""
        self.ticks = 0
        """Of the engine, those that it died at included."""
        self._thread = self._begin(pause=None)

    # -- called by the loop's thread -----------------------------------------------------------

    def submit(self, request: Request) -> None:
        self._commands.put(lambda: self._submit(request))

    def release(self, rollout: int) -> None:
        self._commands.put(lambda: self._release(rollout))

    def load(
        self, new: Weights | None, weights: Weights, version: int, *, stale: bool = False
    ) -> None:
        """Have the engine take `new` (None: nothing new) and then compare it with `weights`.

        `stale`: the engine does not hear of it (the fault `engine_stale`).
        """
        self._commands.put(lambda: self._load(new, weights, version, stale))

    def watch(self) -> None:
        """Bring the engine up again if its thread is dead, unless it has died too often."""
        if self._thread.is_alive() or self._broken or self._closing.is_set():
            return
        if self._deaths >= self._patience.retries:
            self._broken = True
            times = self._deaths + 1
            line = f"the engine died {times} times in a row, last: {self._cause}"
            self._inbox.put(RunError(line))
            return
        pause = self._patience.pause(self._deaths)
        self._deaths += 1
        self._thread = self._begin(pause)

    def close(self) -> None:
        """Begin no further tick; does not wait."""
        self._closing.set()
        self._commands.put(None)

    def join(self, until: float) -> None:
        """Wait for the thread, at most until this time of `time.monotonic`."""
        self._thread.join(max(0.0, until - time.monotonic()))

    # -- the thread ----------------------------------------------------------------------------

    def _begin(self, pause: float | None) -> threading.Thread:
        thread = threading.Thread(target=self._run, args=(pause,), name="engine", daemon=True)
        thread.start()
        return thread

    def _run(self, pause: float | None) -> None:
        """`pause`: seconds to wait before the engine that died is restarted."""
        try:
            if pause is not None:
                if self._closing.wait(pause):
                    return
                self._restart()
            while self._obey():
                self.ticks += 1
                if self._faults.struck("engine_dies", self.ticks) is not None:
                    self._cause = "a declared fault"
                    return
                self._tick()
        except RunError as error:
            self._broken = True
            self._inbox.put(error)
        except BaseException as error:
            lines = f"{type(error).__name__}: {error}".encode("utf-8", "replace").decode()
            self._cause = lines.splitlines()[0]

    def _tick(self) -> None:
        for completion in self._engine.step():
            self._requests.pop(completion.rollout, None)
            self._inbox.put(completion)
        self._deaths = 0

    def _obey(self) -> bool:
        """Run the commands that wait; sleep while the engine is idle. False when closed."""
        while not self._closing.is_set():
            try:
                command = self._commands.get(block=not self._engine.active)
            except queue.Empty:
                return True
            if command is None:
                break
            command()
        return False

    def _restart(self) -> None:
        weights, version = self._held
        for event in restart(
            self._engine,
            weights,
            version,
            list(self._requests.values()),
            tick=self.ticks,
            attempt=self._deaths - 1,
            patience=self._patience,
            cause=self._cause,
        ):
            self._inbox.put(event)

    def _submit(self, request: Request) -> None:
        self._requests[request.rollout] = request
        self._engine.submit(request)

    def _release(self, rollout: int) -> None:
        self._requests.pop(rollout, None)
        self._engine.release(rollout)

    def _load(self, new: Weights | None, weights: Weights, version: int, stale: bool) -> None:
        self._held = weights, version
        if not stale:
            self._engine.load(new, version)
        for event in load_verified(self._engine, weights, version, self._patience):
            self._inbox.put(event)
