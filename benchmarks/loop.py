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
from typing import Any

from rich.console import Console
from rich.table import Table

from sao_gym.doubles import ScriptedLearner, scripted_run
from sao_gym.events import Event
from sao_gym.limits import Limits
from sao_gym.log import encode
from sao_gym.timeline import Timeline
from sao_gym.timeline_config import TimelineConfig


def simulate(rollouts: int, *, record: bool) -> tuple[int, float]:
    """(events, seconds) of one run of `rollouts` rollouts on 256 slots."""
    world = TimelineConfig.model_validate({"segments": [{"concept": {"id": "A", "params": {}}}]})
    events = scripted_run(
        timeline=Timeline(world),
        learner=ScriptedLearner(batch_size=32),
        update=0.1,
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
