"""Faults that a scenario declares: which part fails, and when.

    faults:
      - {kind: environment_hangs, rate: 0.01}     # one call to an environment in a hundred
      - {kind: engine_dies, at: [200, 900]}       # at these ticks of the engine

Whether something fails is a pure function of the seed and of what could fail: the same in every
run, whatever happened before. Each kind has one outcome, and none of them loses a rollout:

    environment_raises    a call raises                      RolloutFailed(environment)
    environment_garbage   an answer breaks the contract      RolloutFailed(contract)
    environment_hangs     no answer                          RolloutFailed(timeout) after the limit
    environment_slow      `factor` times as long             late, or a timeout
    worker_lost           the environment is gone            RolloutFailed(worker)
    engine_dies           its sequences are gone             restarted; requests submitted again
    engine_stale          it ignores a publish               found by checksum, loaded again
    update_raises         an update fails before it began    tried again after a pause
    update_nan            gradients are not finite           the step is skipped; see `guards`
    publish_lost          weights do not arrive              sent again after a pause
    publish_late          `factor` times as long             late; versions keep their order
    disk_full             a checkpoint cannot be written     skipped; the one before it stays
    clock_jumps           time leaps by `seconds`            what was due meanwhile is late

What is tried again is tried `failures.retries` times; then the run stops with RunError.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from pydantic import Field, model_validator

from sao_gym import rng
from sao_gym.protocols import TextEnv
from sao_gym.validation import Section, misplaced

FaultKind: TypeAlias = Literal[
    "environment_raises",
    "environment_garbage",
    "environment_hangs",
    "environment_slow",
    "worker_lost",
    "engine_dies",
    "engine_stale",
    "update_raises",
    "update_nan",
    "publish_lost",
    "publish_late",
    "disk_full",
    "clock_jumps",
]
ENVIRONMENT: tuple[FaultKind, ...] = (
    "worker_lost",
    "environment_hangs",
    "environment_raises",
    "environment_garbage",
    "environment_slow",
)
"""Faults of one call to an environment; of two that strike the same call the first counts."""


class FaultRule(Section):
    """One way in which something fails."""

    kind: FaultKind
    rate: float = Field(default=0.0, ge=0, le=1)
    """Probability, each time that it could happen."""
    at: tuple[int, ...] = ()
    """Where it happens for certain: at these rollouts (their first action), engine ticks, updates
    or publishes."""
    factor: float | None = Field(default=None, gt=1)
    """Of `environment_slow` and `publish_late`: how many times as long. Default 10."""
    seconds: float | None = Field(default=None, gt=0)
    """Of `clock_jumps`: by how much. Default 60."""

    @model_validator(mode="after")
    def _does_something(self) -> FaultRule:
        if not self.rate and not self.at:
            raise misplaced(("kind",), "this fault never happens; give it a rate or `at`")
        if self.factor is not None and self.kind not in ("environment_slow", "publish_late"):
            raise misplaced(("factor",), f"{self.kind} has no factor; remove it")
        if self.seconds is not None and self.kind != "clock_jumps":
            raise misplaced(("seconds",), f"{self.kind} has no seconds; remove it")
        return self

    @property
    def times(self) -> float:
        return 10.0 if self.factor is None else self.factor

    @property
    def leap(self) -> float:
        return 60.0 if self.seconds is None else self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long the machinery is waited for, and how often what failed is tried again."""

    environment: float = 300.0
    """Seconds for one answer of an environment; then the rollout has failed (timeout)."""
    watchdog: float = 3600.0
    """Seconds without any event; then the run has stalled."""
    retries: int = 3
    backoff: float = 1.0
    """Seconds before the first retry; doubled for each further one."""

    def pause(self, attempt: int) -> float:
        """Seconds to wait after `attempt` (from 0) failed."""
        return self.backoff * 2.0**attempt


class Faults:
    """The declared faults under one seed."""

    def __init__(self, rules: Iterable[FaultRule] = (), *, seed: int = 0) -> None:
        self._seed = seed
        self._rules: dict[str, list[FaultRule]] = {}
        for rule in rules:
            self._rules.setdefault(rule.kind, []).append(rule)
        self._environment = [kind for kind in ENVIRONMENT if kind in self._rules]

    def environment(self, rollout: int, turn: int) -> FaultRule | None:
        """What strikes this call: `turn` 0 is `reset`, n the n-th `step`."""
        for kind in self._environment:
            if (rule := self._find(kind, rollout, turn, certain=turn == 1)) is not None:
                return rule
        return None

    def struck(self, kind: FaultKind, key: int, attempt: int = 0) -> FaultRule | None:
        """What strikes tick, update or publish `key` at this attempt (from 0)."""
        if kind not in self._rules:
            return None
        return self._find(kind, key, attempt, certain=attempt == 0)

    def _find(self, kind: str, key: int, turn: int, *, certain: bool) -> FaultRule | None:
        for number, rule in enumerate(self._rules[kind]):
            if certain and key in rule.at:
                return rule
            if (
                rule.rate
                and rng.uniform(self._seed, f"fault/{kind}/{number}", key, turn) < rule.rate
            ):
                return rule
        return None


class Sabotaged:
    """An environment whose next call fails as `kind` says. What it fails with is real."""

    def __init__(self, env: TextEnv, kind: str) -> None:
        self.unwrapped: Any = env.unwrapped
        self._kind = kind

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return self._fail((7, {}))

    def step(self, action: str) -> Any:
        return self._fail(("", float("nan"), False, False, {}))

    def _fail(self, garbage: Sequence[Any]) -> Any:
        if self._kind == "environment_raises":
            raise RuntimeError("a declared fault")
        return tuple(garbage)
