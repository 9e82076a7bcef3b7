"""Arms against each other on the same worlds: curves by arm, paired differences below."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sao_gym.errors import InputError
from sao_gym.log import EventLog
from sao_gym.metrics import HeldPiece, Undefined, area_mean, collect, held_pieces
from sao_gym.record import read_scenario, read_timeline, world_hash
from sao_gym.report.figures import INK, LEFT, QUIET, STYLE, installed_fonts

ARM_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#B3478C", "#8C6D1F", "#5B4DB1")
GRID_POINTS = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmRun:
    """One run as the comparison needs it."""

    seed: int
    world: str
    end: int
    clock: str
    changes: tuple[int, ...]
    """Begins of the pieces after the first, in rollouts started."""
    pieces: tuple[HeldPiece, ...]

    @property
    def score(self) -> float | Undefined:
        """Mean evaluation of the held concept since the first change (of all, if none came)."""
        return area_mean(piece.curve for piece in self.pieces[1:] or self.pieces)

    def on(self, grid: NDArray[np.float64]) -> NDArray[np.float64]:
        """The held concept's evaluation at the grid's points; never interpolated over a change."""
        values = np.full(grid.shape, np.nan)
        for number, piece in enumerate(self.pieces):
            last = number == len(self.pieces) - 1
            inside = (grid >= piece.begin) & ((grid <= piece.end) if last else (grid < piece.end))
            if piece.curve.xs:
                values[inside] = np.interp(grid[inside], piece.curve.xs, piece.curve.ys)
        return values


@dataclass(frozen=True, slots=True, kw_only=True)
class Paired:
    """Differences of two arms over paired seeds (the seed is the replicate)."""

    differences: tuple[float, ...]
    mean: float
    half_width: float | None
    """Of the 95 % t interval; None for fewer than two seeds."""
    wins: int


def pair(a: Sequence[float], b: Sequence[float]) -> Paired:
    """Paired differences a - b with their 95 % t interval (n - 1 degrees of freedom)."""
    differences = tuple(x - y for x, y in zip(a, b, strict=True))
    mean = math.fsum(differences) / len(differences)
    return Paired(
        differences=differences,
        mean=mean,
        half_width=_half_width(np.asarray(differences)),
        wins=sum(difference > 0 for difference in differences),
    )


def _half_width(values: NDArray[np.float64]) -> float | None:
    from scipy import stats

    n = len(values)
    if n < 2:
        return None
    return float(stats.t.ppf(0.975, n - 1) * values.std(ddof=1) / math.sqrt(n))


def read_arm_run(directory: Path | str) -> ArmRun:
    """Read what a comparison needs of a run directory."""
    log = EventLog(directory)
    facts = collect(log)
    pieces = held_pieces(facts)
    scenario = read_scenario(directory)
    return ArmRun(
        seed=log.header["seed"],
        world=world_hash(scenario, read_timeline(directory)),
        end=facts.started,
        clock=scenario.get("timeline", {}).get("clock", "unknown"),
        changes=tuple(piece.begin for piece in pieces[1:]),
        pieces=pieces,
    )


def compare(run_dirs: Mapping[str, Sequence[Path]], path: Path) -> Path:
    """Write the figure that compares arms on paired seeds, as PNG.

    Args:
        run_dirs: Label of an arm -> its run directories, one a seed. Differences are taken as the
            first arm minus each other.
        path: The file.

    Raises:
        InputError: Fewer than two arms, seeds that differ between arms, or runs of one seed that
            did not see the same world.
    """
    arms = {label: [read_arm_run(path) for path in paths] for label, paths in run_dirs.items()}
    return draw_comparison(check_paired(arms), path)


def check_paired(arms: Mapping[str, Sequence[ArmRun]]) -> dict[str, list[ArmRun]]:
    """The arms with their runs by rising seed, refused unless they can be compared in pairs."""
    if len(arms) < 2:
        raise InputError("a comparison needs at least two arms")
    ordered = {label: sorted(runs, key=lambda run: run.seed) for label, runs in arms.items()}
    first, *others = ordered
    seeds = [run.seed for run in ordered[first]]
    if not seeds or len(set(seeds)) < len(seeds):
        raise InputError(f"{first}: give one run for each seed, got seeds {seeds}")
    for label in others:
        found = [run.seed for run in ordered[label]]
        if found != seeds:
            raise InputError(
                f"{label} has the seeds {found} but {first} has {seeds}; run the missing ones"
            )
        for a, b in zip(ordered[first], ordered[label], strict=True):
            if a.world != b.world:
                raise InputError(
                    f"seed {a.seed}: {first} and {label} did not see the same world; "
                    "compare runs of the same environment, timeline and length"
                )
    return ordered


def draw_comparison(arms: Mapping[str, Sequence[ArmRun]], path: Path) -> Path:
    """The figure, from runs that passed `check_paired`."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    first, *others = arms
    runs = arms[first]
    end = min(run.end for same in arms.values() for run in same)
    grid = np.linspace(0, end, GRID_POINTS)
    values = {label: np.stack([run.on(grid) for run in same]) for label, same in arms.items()}
    with mpl.rc_context({**STYLE, "font.sans-serif": installed_fonts()}):
        figure = Figure(figsize=(10.4, 6.6), dpi=160, facecolor="white")
        FigureCanvasAgg(figure)
        (upper, corner), (lower, strip) = figure.subplots(
            2, 2, height_ratios=[2.4, 1], width_ratios=[1, 0.13]
        )
        corner.axis("off")
        upper.sharex(lower)
        upper.tick_params(labelbottom=False)
        figure.subplots_adjust(
            left=LEFT, right=0.98, top=0.815, bottom=0.09, hspace=0.2, wspace=0.1
        )
        _draw_words(figure, arms)
        for label, colour in reversed(list(zip(arms, ARM_COLOURS, strict=False))):
            _draw_arm(upper, grid, values[label], label, colour)
        for label, colour in zip(others, ARM_COLOURS[1:], strict=False):
            _draw_difference(lower, grid, values[first] - values[label], colour)
        _draw_strip(strip, arms)
        lower.axhline(0, color=INK, lw=0.9)
        upper.set_title("evaluation on the concept that holds", loc="left", **HEADING)
        band = f"{first} minus the other, paired by seed: mean, pointwise 95 % t interval"
        lower.set_title(band, loc="left", **HEADING)
        strip.set_title("by seed", loc="left", **HEADING)
        for axes in (upper, lower):
            axes.tick_params(labelsize=10.5)
            _mark_common_changes(axes, runs)
        _spread_labels(upper)
        lower.set_xlim(0, end)
        lower.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")
        text = f"rollouts started   (the drift runs on the clock: {runs[0].clock})"
        lower.set_xlabel(text, labelpad=6)
        figure.savefig(path, format="png", metadata={"Software": "sao-gym"})
    return path


HEADING: dict[str, Any] = {"fontsize": 11, "fontweight": "bold", "pad": 6}


def _draw_words(figure: Any, arms: Mapping[str, Sequence[ArmRun]]) -> None:
    """What the comparison says, at the top."""
    first, *others = arms
    seeds = len(arms[first])
    names = " and ".join([", ".join(others[:-1]), others[-1]] if len(others) > 1 else others)
    title = f"{first} against {names}, {seeds} paired seed{'' if seeds == 1 else 's'}"
    figure.text(LEFT, 0.957, title, fontsize=15, fontweight="bold", va="center")
    lines = [difference_words(first, label, arms[first], arms[label]) for label in others]
    figure.text(LEFT, 0.93, "\n".join(lines), fontsize=11.5, va="top", linespacing=1.4)


def difference_words(a: str, b: str, runs_a: Sequence[ArmRun], runs_b: Sequence[ArmRun]) -> str:
    """The paired difference of mean evaluation since the first change, as a sentence."""
    paired = pair_scores(runs_a, runs_b)
    if paired is None:
        return f"{a} - {b}: undefined, there are too few evaluations"
    interval = "" if paired.half_width is None else f" ± {paired.half_width:.3f} (95 % t)"
    since = "since the first change" if runs_a[0].changes else "over the run"
    return (
        f"{a} - {b}: {paired.mean:+.3f}{interval} mean evaluation {since}, "
        f"better on {paired.wins} of {len(paired.differences)} seeds"
    )


def pair_scores(runs_a: Sequence[ArmRun], runs_b: Sequence[ArmRun]) -> Paired | None:
    """Paired differences of `ArmRun.score`; None if a run was evaluated too rarely to have one."""
    a: list[float] = []
    b: list[float] = []
    for x, y in zip(runs_a, runs_b, strict=True):
        one, other = x.score, y.score
        if isinstance(one, Undefined) or isinstance(other, Undefined):
            return None
        a.append(one)
        b.append(other)
    return pair(a, b)


def _draw_arm(
    axes: Any, grid: NDArray[np.float64], values: NDArray[np.float64], label: str, colour: str
) -> None:
    for seed in values:
        axes.plot(grid, seed, color=colour, lw=0.7, alpha=0.28, zorder=2)
    mean = _mean(values)
    axes.plot(grid, mean, color=colour, lw=2.8, zorder=3, solid_capstyle="round")
    _label(axes, mean, label, colour)


def _draw_difference(
    axes: Any, grid: NDArray[np.float64], values: NDArray[np.float64], colour: str
) -> None:
    mean = _mean(values)
    if len(values) > 1:
        half = np.asarray([_half_width(column[~np.isnan(column)]) or 0.0 for column in values.T])
        axes.fill_between(grid, mean - half, mean + half, color=colour, alpha=0.16, lw=0, zorder=2)
    axes.plot(grid, mean, color=colour, lw=1.8, zorder=3)


def _draw_strip(axes: Any, arms: Mapping[str, Sequence[ArmRun]]) -> None:
    """The differences of mean evaluation, one dot a seed, with mean and interval."""
    first, *others = arms
    axes.axhline(0, color=INK, lw=0.9)
    for place, (label, colour) in enumerate(zip(others, ARM_COLOURS[1:], strict=False)):
        paired = pair_scores(arms[first], arms[label])
        if paired is None:
            continue
        n = len(paired.differences)
        spread = [place - 0.12 + 0.24 * (k / max(1, n - 1)) for k in range(n)]
        axes.plot(spread, paired.differences, "o", ms=4, color=colour, alpha=0.45, mew=0)
        half = paired.half_width or 0.0
        axes.errorbar(place + 0.3, paired.mean, half, fmt="o", ms=6, color=colour, lw=2, capsize=0)
    axes.set_xlim(-0.5, len(others) - 0.2)
    axes.set_xticks(range(len(others)), others if len(others) > 1 else [""])
    axes.tick_params(labelsize=10.5)


def _mean(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean over seeds where every seed has a value, NaN elsewhere."""
    mean: NDArray[np.float64] = values.mean(axis=0)
    return mean


def _label(axes: Any, line: NDArray[np.float64], text: str, colour: str) -> None:
    known = line[~np.isnan(line)]
    if known.size:
        axes.annotate(
            text,
            xy=(1.01, known[-1]),
            xycoords=("axes fraction", "data"),
            fontsize=11.5,
            fontweight="bold",
            color=colour,
            va="center",
        )


def _spread_labels(axes: Any) -> None:
    """Move labels at the right edge apart so that none covers another."""
    low, high = axes.get_ylim()
    box = axes.get_window_extent()
    gap = 0.24 * axes.figure.dpi / box.height * (high - low)  # a line of text, in data units
    labels = sorted(axes.texts, key=lambda label: label.xy[1])
    for below, above in pairwise(labels):
        if above.xy[1] - below.xy[1] < gap:
            above.xy = above.xyann = (above.xy[0], below.xy[1] + gap)


def _mark_common_changes(axes: Any, runs: Sequence[ArmRun]) -> None:
    """Lines where all seeds changed at the same place; drift that differs by seed is not drawn."""
    common = set(runs[0].changes).intersection(*(run.changes for run in runs[1:]))
    for x in sorted(common):
        axes.axvline(x, color=QUIET, lw=1, ls=(0, (2, 2)), alpha=0.8, zorder=1)
