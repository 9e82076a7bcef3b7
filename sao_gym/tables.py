"""`trajectories.parquet` and `metrics.parquet`: folds over the events of a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sao_gym.log import Record
from sao_gym.metrics import Facts

ROWS = 4096
"""Rollouts in one row group: bounds the memory of a long run."""


class TrajectoryTable:
    """Writes one row a rollout, in the order in which their fates were sealed.

    A row is complete when the rollout was trained on, dropped or failed; `close` adds those that
    the log leaves open. `observation_ids` of a turn is null where the rollout never finished:
    the log then holds the observation's text only.
    """

    def __init__(self, path: Path) -> None:
        import pyarrow.parquet as pq

        self._writer = pq.ParquetWriter(path, trajectory_schema(), compression="zstd")
        self._open: dict[int, dict[str, Any]] = {}
        self._rows: list[dict[str, Any]] = []

    def add(self, record: Record) -> None:
        """Take in the next event."""
        match record["event"]:
            case "RolloutStarted":
                self._open[record["rollout"]] = _begin(record)
            case "TurnSampled":
                if row := self._open.get(record["rollout"]):
                    row["turns"].append(_turn(record))
            case "EnvironmentStepped":
                row = self._open.get(record["rollout"])
                if row and record["turn"] and len(row["turns"]) >= record["turn"]:
                    row["turns"][record["turn"] - 1]["reward"] = record["reward"]
            case "RolloutFinished":
                _finish(self._open[record["rollout"]], record)
            case "RolloutDropped":
                self._seal(record["rollout"], "dropped", reason=record["reason"])
            case "RolloutFailed":
                reason = f"{record['kind']}: {record['detail']}"
                self._seal(record["rollout"], "failed", reason=reason)
            case "UpdateFinished":
                for rollout in record["rollouts"]:
                    self._seal(rollout, "trained", version=record["version"])

    def close(self) -> None:
        """Write what is left and the file's footer."""
        for rollout in list(self._open):
            self._seal(rollout, "open")
        self._flush()
        self._writer.close()

    def _seal(
        self, rollout: int, fate: str, *, reason: str | None = None, version: int | None = None
    ) -> None:
        row = self._open.pop(rollout, None)
        if row is None:
            return
        self._rows.append(row | {"fate": fate, "reason": reason, "trained_in": version})
        if len(self._rows) >= ROWS:
            self._flush()

    def _flush(self) -> None:
        import pyarrow as pa

        if self._rows:
            self._writer.write_table(pa.Table.from_pylist(self._rows, schema=trajectory_schema()))
            self._rows = []


def trajectory_schema() -> Any:
    """Columns of `trajectories.parquet` (a `pyarrow.Schema`)."""
    import pyarrow as pa

    ints = pa.list_(pa.int32())
    span = pa.struct([("version", pa.int32()), ("count", pa.int32())])
    turn = pa.struct(
        [
            ("observation_ids", ints),
            ("action_ids", ints),
            ("logprobs", pa.list_(pa.float64())),
            ("versions", pa.list_(span)),
            ("reward", pa.float64()),
            ("restart", pa.bool_()),
        ]
    )
    return pa.schema(
        [
            ("rollout", pa.int64()),
            ("task", pa.int64()),
            ("concept_start", pa.string()),
            ("concept_scored", pa.string()),
            ("reward", pa.float64()),
            ("outcome", pa.string()),
            ("limit", pa.string()),
            ("turns", pa.list_(turn)),
            ("action_tokens", pa.int64()),
            ("oldest_version", pa.int32()),
            ("newest_version", pa.int32()),
            ("started_at", pa.float64()),
            ("finished_at", pa.float64()),
            ("fate", pa.string()),
            ("reason", pa.string()),
            ("trained_in", pa.int32()),
        ]
    )


def _begin(record: Record) -> dict[str, Any]:
    return {
        "rollout": record["rollout"],
        "task": record["task"],
        "concept_start": record["concept"],
        "started_at": record["t"],
        "turns": [],
    }


def _turn(record: Record) -> dict[str, Any]:
    return {
        "action_ids": record["action_ids"],
        "logprobs": record["logprobs"],
        "versions": [{"version": v, "count": n} for v, n in record["versions"]],
    }


def _finish(row: dict[str, Any], record: Record) -> None:
    names = ("concept_scored", "reward", "outcome", "limit", "action_tokens")
    row |= {name: record[name] for name in (*names, "oldest_version", "newest_version")}
    row["finished_at"] = record["t"]
    restarts = record.get("restarts", ())
    sides = zip(row["turns"], record["observation_ids"], record["rewards"], strict=True)
    for index, (turn, observation_ids, reward) in enumerate(sides):
        turn |= {
            "observation_ids": observation_ids,
            "reward": reward,
            "restart": index in restarts,
        }


def write_metrics(path: Path, facts: Facts) -> None:
    """One row an update: version, time, clocks, lag and every metric the learner gave."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = sorted({name for update in facts.updates for name in update.metrics})
    columns: dict[str, tuple[Any, list[Any]]] = {
        "version": (pa.int32(), [u.version for u in facts.updates]),
        "t": (pa.float64(), [u.t for u in facts.updates]),
        "started": (pa.int64(), [u.started for u in facts.updates]),
        "rollouts": (pa.int32(), [u.rollouts for u in facts.updates]),
        "tokens": (pa.int64(), [u.tokens for u in facts.updates]),
        "lag_mean": (pa.float64(), [u.lag_mean for u in facts.updates]),
        "lag_max": (pa.int32(), [u.lag_max for u in facts.updates]),
        "concept_lag": (pa.float64(), [u.concept_lag for u in facts.updates]),
    }
    for name in names:
        columns[f"metrics/{name}"] = (pa.float64(), [_get(u.metrics, name) for u in facts.updates])
    arrays = {name: pa.array(values, type=kind) for name, (kind, values) in columns.items()}
    pq.write_table(pa.table(arrays), path, compression="zstd")


def _get(metrics: Mapping[str, float | None], name: str) -> float | None:
    value = metrics.get(name)
    return None if value is None else float(value)
