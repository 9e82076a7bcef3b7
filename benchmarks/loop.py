"""How fast is the loop itself? Events per second with an engine and a learner that do nothing.

    python benchmarks/loop.py [--rollouts N] [--repeat N] [--json]

The loop, the virtual executor, admission and the timeline are real; environment, agent, engine
and learner return at once. With --record every event is also encoded to JSON as a run does.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
from rich.console import Console
from rich.table import Table

from sao_gym.events import Event
from sao_gym.executors.trainers import InlineTrainer
from sao_gym.executors.virtual import TimeModel, VirtualExecutor
from sao_gym.latency import Constant, LogNormal
from sao_gym.limits import Limits
from sao_gym.log import encode
from sao_gym.loop import run
from sao_gym.timeline import Timeline
from sao_gym.timeline_config import TimelineConfig
from sao_gym.types import Completion, Request, Trajectory, Update, VersionSpan, Weights

TURNS = 4


class NullEnvironment(gym.Env[str, str]):
    """Ends after `TURNS` turns, whatever is done."""

    observation_space = gym.spaces.Text(1)
    action_space = gym.spaces.Text(1)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        self._left = TURNS
        return "o", {"concept": {}}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self._left -= 1
        return "o", 0.0, self._left == 0, False, {"concept": {}}


class NullAgent:
    max_new_tokens = 1
    stop_ids: frozenset[int] = frozenset()

    def begin(self, observation: str) -> tuple[int, ...]:
        return (1,)

    def observe(self, observation: str) -> tuple[int, ...]:
        return (1,)

    def act(self, action_ids: Sequence[int]) -> str:
        return "a"

    def spell(self, action: str) -> tuple[int, ...]:
        return (2,)


class NullEngine:
    def __init__(self) -> None:
        self._requests: list[Request] = []
        self._version = 0

    @property
    def active(self) -> int:
        return len(self._requests)

    def submit(self, request: Request) -> None:
        self._requests.append(request)

    def step(self) -> list[Completion]:
        done, self._requests = self._requests, []
        spans = (VersionSpan(self._version, 1),)
        return [
            Completion(
                rollout=r.rollout,
                turn=r.turn,
                action_ids=(2,),
                logprobs=(0.0,),
                versions=spans,
                stopped=False,
            )
            for r in done
        ]

    def load(self, weights: Weights | None, version: int) -> None:
        self._version = version

    def release(self, rollout: int) -> None:
        """Holds nothing."""


class NullLearner:
    group_size = 1
    batch_size = 32
    relative_cost = 1.0

    def select(self, waiting: Sequence[Trajectory]) -> list[int]:
        if len(waiting) < self.batch_size:
            return []
        return [t.rollout for t in waiting[: self.batch_size]]

    def update(self, batch: Sequence[Trajectory]) -> Update:
        return Update(weights=None, metrics={})

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Holds nothing."""


def simulate(rollouts: int, *, record: bool) -> tuple[int, float]:
    """(events, seconds) of one run of `rollouts` rollouts on 256 slots."""
    learner = NullLearner()
    executor = VirtualExecutor(
        engine=NullEngine(),
        trainer=InlineTrainer(learner),
        evaluator=None,
        time=TimeModel(
            decode_seconds=0.1,
            environment=LogNormal(mean=1.0, sigma=1.0),
            update=Constant(value=0.1),
            publish=Constant(value=0.0),
        ),
        seed=0,
        weights={},
    )
    timeline = TimelineConfig.model_validate({"segments": [{"concept": {"id": "A", "params": {}}}]})
    events = run(
        seed=0,
        timeline=Timeline(timeline),
        make_environment=NullEnvironment,
        agent=NullAgent(),
        learner=learner,
        executor=executor,
        limits=Limits(slots=256, max_lag=64, rollouts=rollouts),
    )
    return _drain(events, record)


def _drain(events: Any, record: bool) -> tuple[int, float]:
    count, began = 0, time.perf_counter()
    moment: float
    event: Event
    for moment, event in events:
        count += 1
        if record:
            encode(moment, event)
    return count, time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, default=5000)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    rates: dict[str, float] = {}
    for name, record in (("loop", False), ("loop + record", True)):
        runs = [simulate(chosen.rollouts, record=record) for _ in range(chosen.repeat)]
        rates[name] = statistics.median(events / seconds for events, seconds in runs)
    if chosen.json:
        print(json.dumps({"events_per_second": rates, "bar": 20000}))
        return
    table = Table("what", "events/s", "bar")
    for name, rate in rates.items():
        table.add_row(name, f"{rate:,.0f}", "20,000" if name == "loop" else "")
    Console().print(table)


if __name__ == "__main__":
    main()
