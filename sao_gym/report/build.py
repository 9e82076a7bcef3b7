"""`write_report`: everything a reader is shown of one run, made from the files of its directory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sao_gym.log import EventLog
from sao_gym.metrics import Facts, collect
from sao_gym.outputs import SUMMARY, finish_run, read_summary
from sao_gym.record import read_scenario, read_timeline
from sao_gym.report.figures import draw_adaptation
from sao_gym.report.page import render_page
from sao_gym.report.series import Series, build_series
from sao_gym.report.trajectories import read_trajectories
from sao_gym.summary import finding, title

FIGURE = "adaptation.png"
PAGE = "report.html"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportPaths:
    """Where the report was written."""

    html: Path
    png: Path


def write_report(
    directory: Path | str, *, decode: Callable[[Sequence[int]], str] | None = None
) -> ReportPaths:
    """Write `report.html` and `adaptation.png` into a run directory.

    Args:
        directory: A run directory. If it has no summary (the run was cut off), the derived files
            are made first.
        decode: Token ids to text, for the trajectory viewer; without it the ids are shown.

    Raises:
        InputError: The directory holds no readable run.
    """
    directory = Path(directory)
    if not (directory / SUMMARY).exists():
        finish_run(directory)
    summary = read_summary(directory)
    log = EventLog(directory)
    facts = collect(log)
    series = series_of(facts, summary)
    clock = summary["clock"] or "unknown"
    png = draw_adaptation(
        series, directory / FIGURE, title=title(summary), finding=finding(summary), clock=clock
    )
    page = render_page(
        summary=summary,
        series=series,
        scenario=read_scenario(directory),
        timeline=read_timeline(directory),
        trajectories=read_trajectories(log, facts, decode),
    )
    html = directory / PAGE
    html.write_text(page, encoding="utf-8")
    return ReportPaths(html=html, png=png)


def series_of(facts: Facts, summary: Mapping[str, Any]) -> Series:
    """What to draw, with the recovery times of the summary."""
    times = [change["recovery"]["80"] for change in summary["changes"]]
    return build_series(
        facts,
        [None if time is None else round(time["started"]) for time in times],
        [
            time is not None or change["censored"]["80"]
            for time, change in zip(times, summary["changes"], strict=True)
        ],
    )
