"""TensorBoard files, through the writer of the light `tensorboard` package if it is installed.

The step is the `started` clock and the wall time the run's own clock, so that the file too is the
same for the same run.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from sao_gym.metrics import Facts, window_mean

FILE = "events.out.tfevents.0.sao-gym"


def write_scalars(directory: Path, facts: Facts, *, window: int) -> Path | None:
    """Write the scalars of a run; None if `tensorboard` is not installed.

    Args:
        directory: Made if missing; an earlier file of ours in it is replaced.
        facts: The run.
        window: Rollouts in the window of the prequential reward.
    """
    if find_spec("tensorboard") is None:
        return None
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    directory.mkdir(parents=True, exist_ok=True)
    path = directory / FILE
    with path.open("wb") as file:
        writer = RecordWriter(file)
        writer.write(Event(wall_time=0.0, file_version="brain.Event:2").SerializeToString())
        for time, step, tag, value in sorted(_scalars(facts, window), key=lambda row: row[:2]):
            summary = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
            writer.write(Event(wall_time=time, step=step, summary=summary).SerializeToString())
    return path


def _scalars(facts: Facts, window: int) -> Iterator[tuple[float, int, str, float]]:
    """Rows of (seconds, step, tag, value)."""
    for update in facts.updates:
        at = (update.t, update.started)
        yield (*at, "lag/mean", update.lag_mean)
        yield (*at, "lag/max", update.lag_max)
        for name, value in update.metrics.items():
            if value is not None:
                yield (*at, f"learner/{name}", value)
    for evaluation in facts.evaluations:
        if evaluation.score is not None:
            tag = f"evaluation/{evaluation.concept}"
            yield (evaluation.t, evaluation.started, tag, evaluation.score)
    rewards = window_mean([done.reward for done in facts.finished], window)
    for done, mean in zip(facts.finished, rewards, strict=True):
        yield (done.t, done.started, "reward/prequential", mean)
