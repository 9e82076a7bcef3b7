"""How well do arms adapt on the same worlds? Paired seeds, one table, one figure.

    python benchmarks/adaptation.py OUT [--arms sao grpo] [--seeds 0 1 2 3 4] [--scenario default]
                                        [--set KEY=VALUE ...] [--jobs 2] [--json] [--figure PNG]

Every run is the command that a user would type, in a process of its own; runs that OUT already
holds are not run again. Figures come from the runs' `summary.json`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from sao_gym.report.compare import compare


def one(out: Path, scenario: str, arm: str, seed: int, overrides: list[str]) -> dict[str, Any]:
    """The summary of one run, run now unless it is there."""
    directory = out / arm / str(seed)
    if not (directory / "summary.json").is_file():
        command = [sys.executable, "-m", "sao_gym.run", "scenario", scenario, "--learner", arm]
        command += ["--seed", str(seed), "--out", str(directory), "--inline", "--quiet"]
        command += ["--no-report", *(word for text in overrides for word in ("--set", text))]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    summary: dict[str, Any] = json.loads((directory / "summary.json").read_text())
    return summary


def row(summary: dict[str, Any]) -> list[dict[str, Any]]:
    """Per change point: before, right after, end, share of the loss won back, rollouts for it."""
    return [
        {
            "at": change["tau"],
            "kind": change["kind"],
            "before": change["before"],
            "after": change["after"],
            "end": change["at_end"],
            "regained": change["regained"],
            "recovery": (change["recovery"]["80"] or {}).get("started"),
        }
        for change in summary["changes"]
    ]


def mean(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{statistics.fmean(known):.2f}" if known else "-"


def show(arms: dict[str, list[dict[str, Any]]]) -> None:
    table = Table("arm", "change at", "kind", "before", "after", "end", "regained >= 80 %")
    for arm, summaries in arms.items():
        for changes in zip(*(row(summary) for summary in summaries), strict=True):
            regained = sum((c["regained"] or 0.0) >= 0.8 for c in changes)
            table.add_row(
                arm,
                f"{changes[0]['at']:,}",
                changes[0]["kind"],
                mean([c["before"] for c in changes]),
                mean([c["after"] for c in changes]),
                mean([c["end"] for c in changes]),
                f"{regained}/{len(changes)}",
            )
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--arms", nargs="+", default=["sao", "grpo"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--scenario", default="default")
    parser.add_argument("--set", dest="overrides", action="append", default=[])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    cells = [(arm, seed) for seed in chosen.seeds for arm in chosen.arms]
    with ThreadPoolExecutor(chosen.jobs) as pool:
        done = pool.map(
            lambda cell: one(chosen.out, chosen.scenario, *cell, chosen.overrides), cells
        )
        summaries = dict(zip(cells, done, strict=True))
    arms = {arm: [summaries[arm, seed] for seed in chosen.seeds] for arm in chosen.arms}
    if chosen.json:
        print(json.dumps({arm: [row(s) for s in kept] for arm, kept in arms.items()}, indent=2))
    else:
        show(arms)
    if chosen.figure:
        runs = {arm: [chosen.out / arm / str(s) for s in chosen.seeds] for arm in chosen.arms}
        compare(runs, chosen.figure)


if __name__ == "__main__":
    main()
