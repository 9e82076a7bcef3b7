"""Where does a run's time go? Shares of engine, learner, environment and the rest.

    python benchmarks/overhead.py [SCENARIO] [--set KEY=VALUE ...] [--json]

Updates are computed in this process, so that all shares are of one thread's time. Engine and
environment include those of the side evaluation. The rest is the loop, the executor, admission,
drift, the evaluation's bookkeeping and the recording of every event; the bar is 10 %.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from sao_gym import boundary
from sao_gym.assemble import assemble
from sao_gym.record import open_run
from sao_gym.scenario import load_scenario

spent: defaultdict[str, float] = defaultdict(float)


def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, its time added to `spent[name]`."""

    def call(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            spent[name] += time.perf_counter() - began

    return call


class Timed:
    """A stand-in that times some methods of what it stands for."""

    def __init__(self, inner: Any, name: str, methods: list[str]) -> None:
        self._inner = inner
        for method in methods:
            setattr(self, method, timed(name, getattr(inner, method)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def measure(scenario: str, overrides: list[str]) -> dict[str, float]:
    """Seconds by part, `total` included."""
    with (
        tempfile.TemporaryDirectory() as folder,
        assemble(load_scenario(scenario, overrides=overrides)) as run,
        open_run(Path(folder) / "run", run.scenario.resolved()) as recorder,
    ):
        executor: Any = run.executor
        methods = ["step", "submit", "load", "release"]
        executor._engine = Timed(executor._engine, "engine", methods)
        executor._trainer = Timed(executor._trainer, "learner", ["start", "finish"])
        if executor._evaluator is not None:
            evaluator: Any = executor._evaluator
            evaluator._engine = Timed(evaluator._engine, "engine", methods)
        reset, step = boundary.reset, boundary.step
        inside = {"reset": timed("environment", reset), "step": timed("environment", step)}
        for name, function in inside.items():
            setattr(boundary, name, function)
        began = time.perf_counter()
        for moment, event in run.events():
            recorder.write(moment, event)
        spent["total"] = time.perf_counter() - began
    return dict(spent)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenario", nargs="?", default="default")
    parser.add_argument("--set", dest="overrides", action="append", default=[])
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    seconds = measure(chosen.scenario, chosen.overrides)
    total = seconds.pop("total")
    seconds["everything else"] = total - sum(seconds.values())
    shares = {name: value / total for name, value in seconds.items()}
    if chosen.json:
        print(json.dumps({"seconds": seconds, "shares": shares, "total": total, "bar": 0.1}))
        return
    table = Table("part", "seconds", "share")
    for name, value in seconds.items():
        table.add_row(name, f"{value:.2f}", f"{shares[name]:.1%}")
    Console().print(table)


if __name__ == "__main__":
    main()
