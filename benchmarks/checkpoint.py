"""What checkpoints cost: share of the default run's time, size, and how soon a resumed run goes on.

    python benchmarks/checkpoint.py [--rollouts 9600]

Taking the state, turning it into bytes and writing the file are timed inside one run on this
machine, as a share of that run's time without preparation. Then a new process resumes the directory
and the time from its start to its first event is taken, imports included.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sao_gym import loop, plain
from sao_gym.play import play
from sao_gym.record import Recorder
from sao_gym.run import main as cli
from sao_gym.scenario import load_scenario


def main() -> None:
    """Print the three figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rollouts", type=int, default=9600)
    parser.add_argument("--resume", metavar="DIR", help="used by this program itself")
    given = parser.parse_args()
    if given.resume:
        first_event(Path(given.resume))
        return
    spent: list[float] = []
    began: list[float] = []
    clocked(loop._Loop, "state_dict", spent)
    clocked(plain, "dumps", spent)
    clocked(Recorder, "_keep", spent)
    clocked(Recorder, "_write", [], began)
    scenario = load_scenario("default", overrides=[f"budget.rollouts={given.rollouts}"])
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "run"
        play(scenario, directory, resume=False, live=False, beside=True, quiet=True)
        total = time.monotonic() - began[0]
        files = sorted((directory / "checkpoints").iterdir())
        share, every = 100 * sum(spent) / total, scenario.checkpoint.every
        print(f"checkpoints: {share:.2f} % of {total:.1f} s, one every {every} updates")
        print(f"size: {files[-1].stat().st_size / 1e6:.2f} MB each, {len(files)} kept")
        for _ in range(3):
            answer = subprocess.run(
                [sys.executable, __file__, "--resume", str(directory)],
                capture_output=True, text=True, check=True,
            )  # fmt: skip
            print(f"resume ready: {answer.stdout.strip()} s")


def clocked(owner: Any, name: str, spent: list[float], began: list[float] | None = None) -> None:
    """Replace a function by one that adds its time to `spent`; nested calls count once."""
    function: Callable[..., Any] = getattr(owner, name)

    def called(*args: Any, **more: Any) -> Any:
        start = time.monotonic()
        if began is not None and not began:
            began.append(start)
        inner = len(spent)
        try:
            return function(*args, **more)
        finally:
            del spent[inner:]
            spent.append(time.monotonic() - start)

    setattr(owner, name, called)


def first_event(directory: Path) -> None:
    """Resume and end at once; print the time since this process started."""

    def written(self: Recorder, *_: Any) -> None:
        started = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
        uptime = float(Path("/proc/uptime").read_text().split()[0])
        print(f"{uptime - float(started) / 100:.2f}", flush=True)
        os._exit(0)

    Recorder._write = written  # type: ignore[method-assign]
    (directory / "summary.json").unlink(missing_ok=True)
    sys.argv = ["sao-gym", "scenario", "--resume", "--out", str(directory), "--json"]
    cli()


if __name__ == "__main__":
    main()
