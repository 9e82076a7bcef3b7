"""Environments for use again: making one may cost more than an episode in it."""

from __future__ import annotations

from collections.abc import Callable

from sao_gym.protocols import TextEnv


class EnvironmentPool:
    """Hands out environments, idle ones first. `reset` makes them as new, by contract."""

    def __init__(self, make: Callable[[], TextEnv]) -> None:
        self._make = make
        self._idle: list[TextEnv] = []

    def take(self) -> TextEnv:
        return self._idle.pop() if self._idle else self._make()

    def give_back(self, env: TextEnv) -> None:
        self._idle.append(env)

    def drain(self) -> list[TextEnv]:
        """All idle ones, for whoever closes them."""
        idle, self._idle = self._idle, []
        return idle
