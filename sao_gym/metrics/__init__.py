"""What a run's events say: pure folds, so that a report or a replay computes the same numbers.

`collect` reads the events once into `Facts`; everything else is a function of those.
A number that cannot be had is `Undefined` with its reason, never 0.
"""

from __future__ import annotations

from sao_gym.metrics.changes import ChangeReport, Transition, change_reports, transitions
from sao_gym.metrics.curves import (
    Curve,
    HeldPiece,
    area_mean,
    concept_curves,
    fading_mean,
    held_pieces,
    window_mean,
)
from sao_gym.metrics.facts import Change, Collector, Evaluation, Facts, Finished, Trained, collect
from sao_gym.metrics.memory import MemoryReport, memory_report
from sao_gym.metrics.undefined import Undefined

__all__ = [
    "Change",
    "ChangeReport",
    "Collector",
    "Curve",
    "Evaluation",
    "Facts",
    "Finished",
    "HeldPiece",
    "MemoryReport",
    "Trained",
    "Transition",
    "Undefined",
    "area_mean",
    "change_reports",
    "collect",
    "concept_curves",
    "fading_mean",
    "held_pieces",
    "memory_report",
    "transitions",
    "window_mean",
]
