"""What is derived from the events when a run is over: tables, TensorBoard files, summary.

Everything here is read from the run directory, so it can be made again at any time and from a run
that was cut off.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sao_gym.errors import InputError
from sao_gym.log import EventLog
from sao_gym.metrics import Collector
from sao_gym.record import TIMELINE, file_hash, read_scenario, read_timeline, world_hash
from sao_gym.summary import WINDOW, summarise_facts
from sao_gym.tables import TrajectoryTable, write_metrics
from sao_gym.tensorboard import write_scalars

SUMMARY = "summary.json"
TRAJECTORIES = "trajectories.parquet"
METRICS = "metrics.parquet"
TENSORBOARD = "tensorboard"


def finish_run(
    directory: Path | str,
    *,
    weights_sha256: str | None = None,
    wall_seconds: float | None = None,
    checkpoints: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """Write the derived files of a run directory and return its summary.

    Args:
        directory: A run directory whose recorder is closed.
        weights_sha256: Hash of the final policy, for the summary.
        wall_seconds: How long the run took on this machine; stands in the summary only.
        checkpoints: How many were written, and how many could not be.

    Raises:
        InputError: The directory holds no readable run.
    """
    directory = Path(directory)
    log = EventLog(directory)
    scenario, timeline = read_scenario(directory), read_timeline(directory)
    collector = Collector()
    table = TrajectoryTable(directory / TRAJECTORIES)
    for record in log:
        collector.add(record)
        table.add(record)
    table.close()
    facts = collector.facts()
    write_metrics(directory / METRICS, facts)
    board = write_scalars(directory / TENSORBOARD, facts, window=WINDOW)
    summary = summarise_facts(
        facts, header=log.header, scenario=scenario, weights_sha256=weights_sha256
    )
    summary["hashes"] = {
        "events_sha256": file_hash(log.path),
        "timeline_sha256": file_hash(directory / TIMELINE),
        "world_sha256": world_hash(scenario, timeline),
    }
    summary["notes"] = [
        *([log.torn] if log.torn else []),
        *([] if board else ["no TensorBoard files: pip install 'sao-gym[tensorboard]'"]),
    ]
    summary["checkpoints"] = dict(checkpoints or {})
    summary["wall_seconds"] = wall_seconds
    _write(directory / SUMMARY, summary)
    return summary


def read_summary(directory: Path | str) -> dict[str, Any]:
    """The summary of a run directory.

    Raises:
        InputError: There is none.
    """
    path = Path(directory) / SUMMARY
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise InputError(f"{path}: cannot be read; give the directory of a finished run") from None
    assert isinstance(summary, dict)
    return summary


def _write(path: Path, value: Mapping[str, Any]) -> None:
    """Never leaves half a file."""
    draft = path.with_suffix(".tmp")
    draft.write_text(json.dumps(value, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    os.replace(draft, path)
