"""Boxes started ahead, so that taking one costs nothing."""

from __future__ import annotations

import os
import threading
from collections import deque

from sao_gym.errors import MachineryError
from sao_gym.sandbox import Box, BoxSpec, Sandbox
from sao_gym.sandboxes.lent import Lent


class WarmPool:
    """A `Sandbox` that keeps `size` boxes of one kind ready.

    A box is given once: after use it is closed, and another started, both in the background. Other
    specs are passed on to the sandbox below, which stays its owner's to close.
    """

    def __init__(self, sandbox: Sandbox, spec: BoxSpec, size: int) -> None:
        self.name, self.isolation = sandbox.name, sandbox.isolation
        self._sandbox, self._spec, self._size = sandbox, spec, size
        self._ready: deque[Box | MachineryError] = deque()
        self._used: deque[Box] = deque()
        self._lent: set[Lent] = set()
        self._starting = 0
        self._over = False
        self._changed = threading.Condition()
        self._threads = [
            threading.Thread(target=self._work, name=f"warm-pool-{i}", daemon=True)
            for i in range(max(1, min(size, os.cpu_count() or 1)))
        ]
        for thread in self._threads:
            thread.start()

    def start(self, spec: BoxSpec) -> Box:
        """One that is ready, or the next to be. Raises what starting it raised."""
        return self.take() if spec == self._spec else self._sandbox.start(spec)

    def take(self) -> Box:
        with self._changed:
            while not self._ready:
                if self._over:
                    raise MachineryError("box", "the pool of sandboxes is closed")
                self._changed.wait()
            box = self._ready.popleft()
            self._changed.notify_all()
            if isinstance(box, MachineryError):
                raise box
            lent = Lent(box, self.back)
            self._lent.add(lent)
            return lent

    def wait(self) -> None:
        """Until all are ready."""
        with self._changed:
            while len(self._ready) < self._size and not self._over:
                self._changed.wait()

    def back(self, lent: Lent) -> None:
        """Close a box that was taken, soon."""
        with self._changed:
            if lent in self._lent:
                self._lent.discard(lent)
                self._used.append(lent.box)
                self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._over = True
            self._used += [lent.box for lent in self._lent]
            self._used += [box for box in self._ready if not isinstance(box, MachineryError)]
            self._lent.clear()
            self._ready.clear()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while True:
            with self._changed:
                while not (self._used or self._over or self._wanted()):
                    self._changed.wait()
                # under load neither side may starve: used boxes hold memory, fresh ones are awaited
                many = len(self._used) >= self._size
                used = self._used.popleft() if self._used and (many or not self._wanted()) else None
                if used is None:
                    if self._over:
                        return
                    self._starting += 1
            if used is not None:
                used.close()
                continue
            box = self._started()
            with self._changed:
                self._starting -= 1
                if not self._over:
                    self._ready.append(box)
                elif not isinstance(box, MachineryError):
                    self._used.append(box)
                self._changed.notify_all()

    def _wanted(self) -> bool:
        return not self._over and len(self._ready) + self._starting < self._size

    def _started(self) -> Box | MachineryError:
        try:
            return self._sandbox.start(self._spec)
        except MachineryError as error:
            return error
