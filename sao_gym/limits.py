"""What bounds a run."""

from __future__ import annotations

from dataclasses import dataclass

from sao_gym.events import Clocks


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Slots, staleness, budgets and the failure threshold. A budget of None does not bind."""

    slots: int
    """Rollouts acting at the same time."""
    max_lag: int
    """Trajectories whose oldest token is more versions behind the learner are dropped."""
    rollouts: int | None = None
    """Rollouts started."""
    updates: int | None = None
    """Policy versions published."""
    completed: int | None = None
    """Rollouts finished."""
    consumed: int | None = None
    """Rollouts trained on."""
    tokens: int | None = None
    """Action tokens sampled in finished turns."""
    seconds: float | None = None
    """Seconds on the run's clock."""
    context: int = 1 << 30
    """Tokens the policy can attend over."""
    stop_above: float = 1.0
    """Share of failed rollouts above which the run stops ..."""
    failures_after: int = 50
    """... once this many have ended."""

    def reached(self, clocks: Clocks) -> str | None:
        """The budget that is used up, but for `rollouts`: those are counted when they start."""
        for name, bound, value in (
            ("updates", self.updates, clocks.version),
            ("completed", self.completed, clocks.completed),
            ("consumed", self.consumed, clocks.consumed),
            ("tokens", self.tokens, clocks.tokens),
            ("seconds", self.seconds, clocks.seconds),
        ):
            if bound is not None and value >= bound:
                return name
        return None
