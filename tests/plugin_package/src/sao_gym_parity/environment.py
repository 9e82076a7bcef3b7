"""Is the number even or odd? Which word means which may change."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
from gymnasium.error import ResetNeeded
from gymnasium.spaces import Text


class Parity(gym.Env[str, str]):
    """One digit, one word. Concept parameter `words`: those for even and odd, default `EO`."""

    def __init__(self, *, largest: int = 9) -> None:
        self._largest = largest
        self.observation_space = Text(1, min_length=0, charset="0123456789")
        self.action_space = Text(1, charset="EO")
        self._answer: str | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self._concept = {"words": "EO"} | ((options or {}).get("concept") or {})
        if unknown := sorted(set(self._concept) - {"words"}):
            raise ValueError(f"parity has no concept parameter {unknown[0]!r}, only 'words'")
        number = int(self.np_random.integers(self._largest + 1))
        self._answer = self._concept["words"][number % 2]
        return str(number), {"concept": dict(self._concept)}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        reward = float(action == self.reference_action())
        self._answer = None
        return "", reward, True, False, {"concept": dict(self._concept)}

    def reference_action(self) -> str:
        if self._answer is None:
            raise ResetNeeded("call reset() first")
        return self._answer

    def valid_actions(self) -> tuple[str, str]:
        return "E", "O"
