"""What bounds a run."""

from __future__ import annotations

from dataclasses import dataclass


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

    def bounds(self) -> tuple[tuple[str, str, float], ...]:
        """(budget, clock it is counted on, value) of those set, but for `rollouts`: the loop
        counts them when they start, and lets them finish."""
        budgets = {
            "updates": "version",
            "completed": "completed",
            "consumed": "consumed",
            "tokens": "tokens",
            "seconds": "seconds",
        }
        values = [(name, clock, getattr(self, name)) for name, clock in budgets.items()]
        return tuple(bound for bound in values if bound[2] is not None)
