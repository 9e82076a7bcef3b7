"""The picture of one run: how the policy scores on each concept while the world changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sao_gym.report.series import Series
from sao_gym.summary import WINDOW

INK = "#1c2024"
QUIET = "#687076"
GRID = "#e6e8eb"
SERVED = "#8b949b"
LEFT = 0.06
WINDOW_SHADE = "#eef0f3"
STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["Inter", "Helvetica Neue", "Arial", "DejaVu Sans"],
    "font.size": 12,
    "axes.edgecolor": "#c1c8cd",
    "axes.linewidth": 0.8,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "text.color": INK,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "svg.hashsalt": "sao-gym",
}


def draw_adaptation(series: Series, path: Path, *, title: str, finding: str, clock: str) -> Path:
    """Write the figure of a run as PNG.

    Args:
        series: From `build_series`.
        path: The file.
        title: Which run it is.
        finding: What it shows, in one line.
        clock: The clock that the timeline runs on; named in the figure.
    """
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with mpl.rc_context({**STYLE, "font.sans-serif": installed_fonts()}):
        figure = Figure(figsize=(10.4, 7.4), dpi=160, facecolor="white")
        FigureCanvasAgg(figure)
        ribbon, reward, lag, masked = figure.subplots(
            4, 1, sharex=True, height_ratios=[0.3, 5, 1.05, 1.05]
        )
        figure.subplots_adjust(left=LEFT, right=0.882, top=0.838, bottom=0.082, hspace=0.3)
        figure.text(LEFT, 0.962, title, fontsize=15, fontweight="bold", va="center")
        figure.text(LEFT, 0.923, finding, fontsize=12, va="center")
        _draw_key(figure)
        _draw_ribbon(ribbon, series)
        _draw_reward(reward, series)
        _draw_lag(lag, series)
        _draw_masked(masked, series)
        names = ("mean reward", "version lag", "masked tokens")
        for axes, name in zip((reward, lag, masked), names, strict=True):
            _mark_changes(axes, series)
            axes.set_title(name, loc="left", fontsize=11, fontweight="bold", pad=5)
            axes.tick_params(labelsize=10.5)
        masked.set_xlim(0, max(series.end, 1))
        masked.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")
        masked.set_xlabel(f"rollouts started   (the drift runs on the clock: {clock})", labelpad=6)
        figure.savefig(path, format="png", metadata={"Software": "sao-gym"})
    return path


def _draw_key(figure: Any) -> None:
    """What the lines of the upper panel are, in a line of text with samples."""
    from matplotlib.lines import Line2D

    blue = "#0072B2"
    samples = [
        Line2D([], [], color=blue, lw=2.8, label="evaluation on the concept that holds"),
        Line2D([], [], color=blue, lw=0.9, alpha=0.5, label="on the other concepts"),
        Line2D([], [], color=SERVED, lw=1.4, label=f"reward of the last {WINDOW} rollouts served"),
    ]
    figure.legend(
        handles=samples,
        loc="center left",
        bbox_to_anchor=(LEFT, 0.884),
        ncols=3,
        frameon=False,
        fontsize=10.5,
        labelcolor=QUIET,
        borderpad=0,
        borderaxespad=0,
        handlelength=1.6,
        columnspacing=2.2,
    )


def installed_fonts() -> list[str]:
    """The preferred fonts that are installed; asking for others makes matplotlib warn."""
    from matplotlib import font_manager

    installed = {font.name for font in font_manager.fontManager.ttflist}
    return [name for name in STYLE["font.sans-serif"] if name in installed] or ["DejaVu Sans"]


def _draw_ribbon(axes: Any, series: Series) -> None:
    """The concepts over time as a coloured band; drift windows blend from one to the next."""
    from matplotlib.colors import LinearSegmentedColormap

    axes.set_ylim(0, 1)
    axes.axis("off")
    for segment in series.segments:
        width = segment.end - segment.begin
        axes.axvspan(segment.begin, segment.end, color=series.colours[segment.concept], lw=0)
        if width > 0.025 * series.end:
            axes.text(
                segment.begin + width / 2,
                0.44,
                _fit(segment.concept, width / max(series.end, 1)),
                color="white",
                fontsize=11,
                fontweight="bold",
                ha="center",
                va="center",
            )
    for change in series.changes:
        until = change.end if change.settled is None else change.settled
        if until > change.tau:
            ends = [series.colours[change.old], series.colours[change.new]]
            blend = LinearSegmentedColormap.from_list("blend", ends)
            extent = (change.tau, until, 0, 1)
            axes.imshow([[k / 63 for k in range(64)]], cmap=blend, extent=extent, aspect="auto")


def _fit(name: str, share: float) -> str:
    """Shorten a name to the share of the width that it may take."""
    room = max(1, int(share * 95))
    return name if len(name) <= room else name[: max(1, room - 1)] + "…"


def _draw_reward(axes: Any, series: Series) -> None:
    for concept, curve in series.evaluations.items():
        colour = series.colours.get(concept, QUIET)
        axes.plot(curve.xs, curve.ys, color=colour, lw=0.9, alpha=0.38, zorder=2)
    axes.plot(*series.prequential, color=SERVED, lw=1.3, zorder=3)
    for concept in series.evaluations:
        for piece in series.held(concept):
            axes.plot(
                piece.xs,
                piece.ys,
                color=series.colours.get(concept, QUIET),
                lw=2.6,
                solid_capstyle="round",
                zorder=4,
            )
    top = max([1.0, *(y for curve in series.evaluations.values() for y in curve.ys)])
    low = min([0.0, *(y for curve in series.evaluations.values() for y in curve.ys)])
    axes.set_ylim(low - 0.135 * (top - low), top + 0.03 * (top - low))
    axes.set_yticks([low + k * (top - low) / 5 for k in range(6)])
    _draw_recoveries(axes, series, low - 0.065 * (top - low))


def _draw_recoveries(axes: Any, series: Series, y: float) -> None:
    """Below the curves: a bracket from each change to where 80 % of its cost was won back."""
    for recovery in series.recoveries:
        done = recovery.rollouts is not None
        right = recovery.tau + (recovery.rollouts or 0) if done else recovery.end
        arrow = {"arrowstyle": "|-|,widthA=0.22,widthB=0.22", "shrinkA": 0, "shrinkB": 0, "lw": 1.2}
        ends = {"xy": (right, y), "xytext": (recovery.tau, y)}
        colour = INK if done else QUIET
        axes.annotate("", **ends, arrowprops={**arrow, "color": colour, "ls": "-"})
        axes.text(
            (recovery.tau + right) / 2,
            y,
            f"{recovery.rollouts:,}" if done else "not recovered",
            ha="center",
            va="center",
            fontsize=10.5,
            color=colour,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.6},
        )
    if series.recoveries:
        axes.annotate(
            "rollouts until\n80 % of the loss\nis won back",
            xy=(1.008, y),
            xycoords=("axes fraction", "data"),
            fontsize=9.5,
            color=QUIET,
            va="center",
        )


def _draw_lag(axes: Any, series: Series) -> None:
    axes.plot(*series.lag_max, color="#b4bbc1", lw=1.1)
    axes.plot(*series.lag_mean, color=INK, lw=1.6)
    axes.set_ylim(0, 1.12 * max([1.0, *series.lag_max.ys]))
    axes.locator_params(axis="y", nbins=3)
    if series.lag_mean.xs:
        mean = series.lag_mean.ys[-1]
        apart = 0.25 * axes.get_ylim()[1]
        _end_label(axes, max(series.lag_max.ys[-1], mean + apart), "max", QUIET)
        _end_label(axes, mean, "mean", INK)


def _draw_masked(axes: Any, series: Series) -> None:
    if not series.masked.xs:
        axes.set_yticks([])
        axes.text(
            0.5,
            0.5,
            "not reported by this learner",
            transform=axes.transAxes,
            color=QUIET,
            ha="center",
            va="center",
        )
        return
    axes.fill_between(*series.masked, color=INK, alpha=0.10, lw=0)
    axes.plot(*series.masked, color=INK, lw=1.4)
    axes.set_ylim(0, 1.15 * max([0.01, *series.masked.ys]))
    axes.locator_params(axis="y", nbins=3)
    axes.yaxis.set_major_formatter(lambda y, _: f"{100 * y:.0f} %")


def _end_label(axes: Any, y: float, text: str, colour: str) -> None:
    place = {"xy": (1.008, y), "xycoords": ("axes fraction", "data"), "va": "center"}
    axes.annotate(text, **place, fontsize=10.5, color=colour)


def _mark_changes(axes: Any, series: Series) -> None:
    for change in series.changes:
        until = change.end if change.settled is None else change.settled
        if until > change.tau:
            axes.axvspan(change.tau, until, color=WINDOW_SHADE, lw=0, zorder=0)
        else:
            axes.axvline(change.tau, color="#9ba1a6", lw=1, ls=(0, (2, 2)), zorder=1)
