"""A case: everything that makes one simulated run, as plain data."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from sao_gym.faults import FaultRule, Patience
from sao_gym.latency import Constant, Latency, LogNormal
from sao_gym.scenario import Count, Natural, Share
from sao_gym.timeline import Timeline
from sao_gym.timeline_config import Clock, Inflight, Observability, TimelineConfig
from sao_gym.validation import Section

SCRIPTED: tuple[dict[str, Any], ...] = ({"good": "a"}, {"good": "b"})
"""The two concepts of scripted environments."""
NUMBERS: tuple[dict[str, Any], ...] = ({"good": 0.0}, {"good": 1.0})
"""The same for a drift that is incremental: a number moves from one to the other."""
REAL: tuple[dict[str, Any], ...] = (
    {"mapping": "ABC", "lengths": [1, 3]},
    {"mapping": "BAC", "lengths": [1, 3]},
)
"""Those of the tool environment with three kinds and three tools."""


class Bound(Section):
    """Where the run ends, whichever comes first; names as in `sao_gym.limits.Limits`."""

    rollouts: Natural = 40
    tasks: Natural | None = None
    updates: Natural | None = None
    completed: Natural | None = None
    consumed: Natural | None = None
    tokens: Natural | None = None
    seconds: float | None = Field(default=None, ge=0)

    @property
    def declared(self) -> dict[str, Any]:
        """Those that are set."""
        return {name: limit for name, limit in self if limit is not None}


class World(Section):
    """Two concepts, and what becomes of the first."""

    drift: Literal["none", "abrupt", "gradual", "incremental"] = "none"
    length: Count = 20
    """Of each concept segment and of a drift's window, on the clock."""
    clock: Clock = "started"
    observability: Observability = "hidden"
    inflight: Inflight = "pin"

    def timeline(self, concepts: tuple[dict[str, Any], ...]) -> TimelineConfig:
        """As a scenario would declare it; a return to the first concept follows a change."""
        first, second = concepts
        segments: list[dict[str, Any]] = [{"concept": {"id": "A", "params": first}}]
        if self.drift == "incremental":
            (name,) = first
            drift = {
                "kind": "incremental",
                "param": name,
                "from": first[name],
                "to": second[name],
                "length": self.length,
            }
            segments = [{**segments[0], "length": self.length}, {"drift": drift}]
        elif self.drift != "none":
            window = {"length": self.length} if self.drift == "gradual" else {}
            change = {"drift": {"kind": self.drift, **window}}
            segments = [
                {**segments[0], "length": self.length},
                change,
                {"concept": {"id": "B", "params": second}, "length": self.length},
                change,
                {"concept": {"ref": "A"}},
            ]
        return TimelineConfig.model_validate(
            {
                "clock": self.clock,
                "observability": self.observability,
                "inflight": self.inflight,
                "segments": segments,
            }
        )


class Case(Section):
    """One simulated run, and where it is cut and continued."""

    seed: Natural = 0
    parts: Literal["scripted", "real"] = "scripted"
    """`real`: a tiny model, its engine and a learner."""
    learner: str = "sao"
    """Of real parts."""
    slots: Count = 4
    max_lag: Natural = 1
    batch_size: Count = 1
    group_size: Count = 1
    world: World = World()
    decode: Latency = Constant(value=0.1)
    environment: Latency = LogNormal(mean=1.0, sigma=1.0)
    update: Latency = Constant(value=1.0)
    publish: Latency = Constant(value=0.0)
    turns: Count = 1
    """Of an episode (scripted parts)."""
    vary: bool = False
    """Episodes are up to `turns` long."""
    fails: Share = 0.0
    """Share of the episodes that raise (scripted parts)."""
    tokens: Count = 1
    """An action is up to so many tokens long (scripted parts)."""
    context: Count | None = None
    """Tokens the policy can attend over (scripted parts); null: without end."""
    reopens: bool = False
    """The agent goes on in a new segment when the context is full (scripted parts)."""
    evaluate_every: Count | None = None
    checkpoint_every: Count | None = 1
    budget: Bound = Bound()
    stop_above: Share = 1.0
    failures_after: Count = 50
    environment_timeout: float = Field(default=300.0, gt=0)
    watchdog: float = Field(default=1e6, gt=0)
    retries: Natural = 3
    backoff: float = Field(default=1.0, ge=0)
    faults: tuple[FaultRule, ...] = ()
    resume_at: Share = 0.5
    """Which of the scheduled checkpoints the run goes on from, as a share of all."""
    interrupt_at: Share = 0.5
    """After which event it is interrupted, as a share of all."""
    recorded: bool = False
    """Also through a run directory ..."""
    torn: Share = 1.0
    """... of whose log this share is left when the run goes on."""

    @property
    def concepts(self) -> tuple[dict[str, Any], ...]:
        if self.parts == "real":
            return REAL
        return NUMBERS if self.world.drift == "incremental" else SCRIPTED

    def timeline(self) -> Timeline:
        """The world of a run of scripted parts."""
        return Timeline(self.world.timeline(self.concepts))

    def patience(self) -> Patience:
        return Patience(
            environment=self.environment_timeout,
            watchdog=self.watchdog,
            retries=self.retries,
            backoff=self.backoff,
        )
