"""The figure of the report as SVG: colours come from the page, so that it follows its theme."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from sao_gym.metrics import Curve
from sao_gym.report.series import Series


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Sizes in SVG units."""

    name: str
    width: int
    left: int
    right: int
    """Room at the right."""
    reward: int
    """Height of the upper panel."""
    lower: int
    """Height of each lower panel."""
    ticks: int
    """Ticks on the x axis, at most."""


WIDE = Layout(name="wide", width=960, left=44, right=56, reward=330, lower=64, ticks=8)
NARROW = Layout(name="narrow", width=400, left=36, right=42, reward=250, lower=56, ticks=5)

RIBBON = 22
GAP = 34


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """Maps values to places."""

    layout: Layout
    top: int
    height: int
    low: float
    high: float
    end: int

    def x(self, value: float) -> float:
        inner = self.layout.width - self.layout.left - self.layout.right
        return round(self.layout.left + inner * value / max(self.end, 1), 1)

    def y(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return round(self.top + self.height * (1 - share), 1)

    def path(self, curve: Curve) -> str:
        """The `d` attribute of a line through the curve."""
        return "M" + "L".join(
            f"{self.x(x):g} {self.y(y):g}" for x, y in zip(curve.xs, curve.ys, strict=True)
        )


def draw_chart(series: Series, layout: Layout, *, clock: str) -> str:
    """The whole chart as one `<svg>` element."""
    scores = [y for curve in (*series.evaluations.values(), series.prequential) for y in curve.ys]
    low, high = min([0.0, *scores]), max([1.0, *scores])
    top = RIBBON + GAP
    upper = Panel(
        layout=layout,
        top=top,
        height=layout.reward,
        low=low - 0.15 * (high - low),
        high=high + 0.02 * (high - low),
        end=series.end,
    )
    top += layout.reward + GAP
    peak = 1.1 * max([1.0, *series.lag_max.ys])
    lag = Panel(layout=layout, top=top, height=layout.lower, low=0, high=peak, end=series.end)
    top += layout.lower + GAP
    peak = 1.1 * max([0.01, *series.masked.ys])
    masked = Panel(layout=layout, top=top, height=layout.lower, low=0, high=peak, end=series.end)
    height = top + layout.lower + 46
    parts = [
        _open(layout, height, series.end),
        *_ribbon(series, upper),
        *_marks(series, (upper, lag, masked)),
        *_axes(upper, "mean reward", _steps(low, high, 5), "{:.1f}"),
        *_reward(series, upper, low),
        *_axes(lag, "version lag", _steps(0, _round_down(lag.high), 1), "{:.0f}"),
        *_lag(series, lag),
        *_masked(series, masked),
        *_x_axis(masked, layout, clock),
        f'<line class="cursor" x1="0" x2="0" y1="{RIBBON + 8}" y2="{masked.top + masked.height}"/>',
        "</svg>",
    ]
    return "".join(parts)


def _open(layout: Layout, height: int, end: int) -> str:
    right = layout.width - layout.right
    return (
        f'<svg class="chart {layout.name}" viewBox="0 0 {layout.width} {height}" role="img" '
        'aria-label="Evaluation by concept, version lag and masked tokens over rollouts started" '
        f'data-left="{layout.left}" data-right="{right}" data-end="{end}">'
    )


def _ribbon(series: Series, panel: Panel) -> list[str]:
    parts = []
    number = {concept: k % 8 for k, concept in enumerate(series.colours)}
    for segment in series.segments:
        x0, x1 = panel.x(segment.begin), panel.x(segment.end)
        box = f'x="{x0:g}" y="0" width="{max(0, x1 - x0):g}" height="{RIBBON}"'
        parts.append(f'<rect class="f{number[segment.concept]}" {box}/>')
        room = int((x1 - x0 - 8) / 8)
        if room >= 1:
            name = segment.concept
            name = name if len(name) <= room else name[: room - 1] + "…"
            middle = (x0 + x1) / 2
            parts.append(
                f'<text class="onfill" x="{middle:g}" y="{RIBBON - 6.5}">{escape(name)}</text>'
            )
    for k, change in enumerate(series.changes):
        until = change.end if change.settled is None else change.settled
        if until > change.tau:
            x0, x1 = panel.x(change.tau), panel.x(until)
            name = f"blend-{panel.layout.name}-{k}"
            parts.append(
                f'<linearGradient id="{name}"><stop class="s{number[change.old]}" offset="0"/>'
                f'<stop class="s{number[change.new]}" offset="1"/></linearGradient>'
                f'<rect x="{x0:g}" y="0" width="{x1 - x0:g}" height="{RIBBON}" '
                f'fill="url(#{name})"/>'
            )
    return parts


def _marks(series: Series, panels: Sequence[Panel]) -> list[str]:
    parts = []
    for panel in panels:
        y0, y1 = panel.top, panel.top + panel.height
        for change in series.changes:
            until = change.end if change.settled is None else change.settled
            x0, x1 = panel.x(change.tau), panel.x(until)
            if x1 > x0:
                box = f'x="{x0:g}" y="{y0}" width="{x1 - x0:g}" height="{y1 - y0}"'
                parts.append(f'<rect class="window" {box}/>')
            else:
                parts.append(f'<line class="mark" x1="{x0:g}" x2="{x0:g}" y1="{y0}" y2="{y1}"/>')
    return parts


def _axes(panel: Panel, name: str, ticks: Sequence[float], form: str) -> list[str]:
    left, right = panel.layout.left, panel.layout.width - panel.layout.right
    parts = [f'<text class="name" x="{left}" y="{panel.top - 9}">{name}</text>']
    for tick in ticks:
        y = panel.y(tick)
        parts.append(f'<line class="grid" x1="{left}" x2="{right}" y1="{y:g}" y2="{y:g}"/>')
        label = form.format(tick)
        parts.append(f'<text class="tick end" x="{left - 7}" y="{y + 4:g}">{label}</text>')
    return parts


def _reward(series: Series, panel: Panel, low: float) -> list[str]:
    number = {concept: k % 8 for k, concept in enumerate(series.colours)}
    parts = []
    for concept, curve in series.evaluations.items():
        if concept in number:
            parts.append(f'<path class="line c{number[concept]} thin" d="{panel.path(curve)}"/>')
    if series.prequential.xs:
        parts.append(f'<path class="line served" d="{panel.path(series.prequential)}"/>')
    for concept in series.evaluations:
        for piece in series.held(concept):
            if piece.xs and concept in number:
                d = panel.path(piece)
                parts.append(f'<path class="line c{number[concept]} thick" d="{d}"/>')
    y = panel.y(low) + 16
    for recovery in series.recoveries:
        done = recovery.rollouts is not None
        x0 = panel.x(recovery.tau)
        x1 = panel.x(recovery.tau + (recovery.rollouts or 0)) if done else panel.x(recovery.end)
        text = f"{recovery.rollouts:,}" if done else "not recovered"
        kind = "" if done else " quiet"
        d = f"M{x0:g} {y - 4:g}v8m0-4H{x1:g}m0-4v8"
        parts.append(f'<path class="bracket{kind}" d="{d}"/>')
        if x1 - x0 > 8 * len(text) + 28:
            middle, width = (x0 + x1) / 2, 7.2 * len(text) + 8
            box = f'x="{middle - width / 2:g}" y="{y - 8:g}" width="{width:g}" height="16"'
            parts.append(f'<rect class="gap" {box}/>')
            parts.append(f'<text class="onpage{kind}" x="{middle:g}" y="{y + 4:g}">{text}</text>')
        else:  # no room in the bracket: below it
            middle = min((x0 + x1) / 2, panel.layout.width - panel.layout.right - 4.0 * len(text))
            parts.append(f'<text class="tick middle" x="{middle:g}" y="{y + 18:g}">{text}</text>')
    return parts


def _lag(series: Series, panel: Panel) -> list[str]:
    if not series.lag_mean.xs:
        return []
    x = panel.layout.width - panel.layout.right + 6
    mean, top = panel.y(series.lag_mean.ys[-1]), panel.y(series.lag_max.ys[-1])
    top = min(top, mean - 13)
    return [
        f'<path class="line faint" d="{panel.path(series.lag_max)}"/>',
        f'<path class="line ink" d="{panel.path(series.lag_mean)}"/>',
        f'<text class="tick" x="{x}" y="{top + 4:g}">max</text>',
        f'<text class="tick strong" x="{x}" y="{mean + 4:g}">mean</text>',
    ]


def _masked(series: Series, panel: Panel) -> list[str]:
    if not series.masked.xs:
        place = f'x="{panel.layout.width / 2:g}" y="{panel.top + panel.height / 2:g}"'
        return [
            *_axes(panel, "masked tokens", [], ""),
            f'<text class="tick middle" {place}>not reported by this learner</text>',
        ]
    x0, x1 = panel.x(series.masked.xs[0]), panel.x(series.masked.xs[-1])
    floor = panel.y(0)
    line = panel.path(series.masked)
    ticks = [0, _round_down(panel.high)]
    return [
        *_axes(panel, "masked tokens", ticks, "{:.0%}" if ticks[1] >= 0.01 else "{:.1%}"),
        f'<path class="area" d="{line}L{x1:g} {floor:g}L{x0:g} {floor:g}Z"/>',
        f'<path class="line ink" d="{line}"/>',
    ]


def _x_axis(panel: Panel, layout: Layout, clock: str) -> list[str]:
    y = panel.top + panel.height
    right = layout.width - layout.right
    parts = [f'<line class="axis" x1="{layout.left}" x2="{right}" y1="{y}" y2="{y}"/>']
    step = _nice(panel.end / layout.ticks)
    for k in range(int(panel.end // step) + 1):
        x = panel.x(k * step)
        parts.append(f'<text class="tick middle" x="{x:g}" y="{y + 18}">{k * step:,.0f}</text>')
    middle = (layout.left + right) / 2
    text = f"rollouts started (drift clock: {escape(clock)})"
    parts.append(f'<text class="tick middle strong" x="{middle:g}" y="{y + 39}">{text}</text>')
    return parts


def _steps(low: float, high: float, count: int) -> list[float]:
    return [low + k * (high - low) / count for k in range(count + 1)]


def _nice(value: float) -> float:
    """The smallest of 1, 2, 5 times a power of ten that is at least `value`."""
    return next(m * 10.0**e for e in range(15) for m in (1, 2, 5) if m * 10.0**e >= value)


def _round_down(value: float) -> float:
    """The largest of 1, 2, 5 times a power of ten below `value`."""
    return next(m * 10.0**e for e in range(15, -16, -1) for m in (5, 2, 1) if m * 10.0**e <= value)
