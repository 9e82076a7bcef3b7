"""What bounds a run."""

from __future__ import annotations

from dataclasses import dataclass

from sao_gym.clocks import RunClocks


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Slots, staleness, budgets and the failure threshold. A budget of None does not bind."""

    slots: int
    """Rollouts acting at the same time."""
    max_lag: int
    """Trajectories whose oldest token is more versions behind the learner are dropped."""
    tasks: int | None = None
    """Tasks drawn from the stream; each is issued to a whole group."""
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


class Bounds:
    """The budgets that are set, but for `rollouts` and `tasks`: the loop counts those when they
    start, and lets what they started finish."""

    def __init__(self, limits: Limits) -> None:
        clocks = {
            "updates": "version",
            "completed": "completed",
            "consumed": "consumed",
            "tokens": "tokens",
            "seconds": "seconds",
        }
        values = [(name, clock, getattr(limits, name)) for name, clock in clocks.items()]
        self._set = [bound for bound in values if bound[2] is not None]

    def reached(self, clocks: RunClocks) -> str | None:
        """The first budget that is used up, by name."""
        for name, clock, bound in self._set:
            if clocks.value(clock) >= bound:
                return name
        return None
