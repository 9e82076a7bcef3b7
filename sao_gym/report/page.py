"""`report.html`: one file, no outside resource, everything escaped."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import yaml

from sao_gym.metrics import Curve
from sao_gym.report.script import JS
from sao_gym.report.series import Series
from sao_gym.report.style import CSS
from sao_gym.report.svg import NARROW, WIDE, draw_chart
from sao_gym.report.trajectories import ShownRollout
from sao_gym.report.viewer import render_viewer
from sao_gym.summary import COLUMNS, WINDOW, finding, rows, sentences, title

CHOSEN = (
    "Chosen around the changes, not at random. Which single tokens the learner masked is not in "
    "the log; the share by update is in the figure."
)


def render_page(
    *,
    summary: Mapping[str, Any],
    series: Series,
    scenario: Mapping[str, Any],
    timeline: Sequence[Mapping[str, Any]],
    trajectories: Sequence[ShownRollout],
) -> str:
    """The whole document."""
    clock = summary["clock"] or "unknown"
    body = [
        f"<h1>{escape(title(summary))}</h1>",
        f'<p class="lead">{escape(finding(summary))}</p>',
        f'<p class="quiet">{escape(str(scenario.get("summary") or ""))}</p>',
        _tiles(summary),
        "<h2>Adaptation</h2>",
        _key(),
        draw_chart(series, WIDE, clock=clock),
        draw_chart(series, NARROW, clock=clock),
        '<p class="readout" id="readout">Point at the figure to read it.</p>',
        "<h2>What each change cost</h2>",
        _changes(summary, series),
        _missing(summary),
        "<h2>Dropped and failed rollouts</h2>",
        _losses(summary, trajectories),
        _memory(summary),
        "<h2>Sampled rollouts</h2>",
        f'<p class="quiet small">{CHOSEN}</p>',
        render_viewer(trajectories),
        "<h2>World and scenario</h2>",
        _timeline(timeline),
        _folded("Resolved scenario", yaml.safe_dump(dict(scenario), sort_keys=False)),
        _identity(summary),
    ]
    head = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title(summary))}</title><style>{CSS}</style></head>"
    )
    data = _embed(series)
    return f"{head}<body><main>{''.join(body)}</main>{data}<script>{JS}</script></body></html>\n"


def _embed(series: Series) -> str:
    """The series for the readout, as JSON that cannot end its own script element."""
    names = [("served", series.prequential, 2), ("lag", series.lag_mean, 1)]
    lines = [_line(name, curve, digits) for name, curve, digits in names]
    lines.append(_line("max lag", series.lag_max, 0))
    lines.append(_line("masked", series.masked, 1, percent=True))
    evaluations = [_line(f"on {name}", c, 2) for name, c in series.evaluations.items()]
    text = json.dumps({"series": evaluations + lines}, separators=(",", ":"), allow_nan=False)
    text = text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return f'<script type="application/json" id="series">{text}</script>'


def _line(name: str, curve: Curve, digits: int, *, percent: bool = False) -> dict[str, Any]:
    return {
        "name": name,
        "x": list(curve.xs),
        "y": [round(y, 4) for y in curve.ys],
        "digits": digits,
        "percent": percent,
    }


def _tiles(summary: Mapping[str, Any]) -> str:
    rollouts, learning = summary["rollouts"], summary["learning"]
    masked, lag = learning["masked_fraction"], learning["lag_mean"]
    reward = summary["reward"]["evaluated_after_first_change"]
    if reward is None:
        reward = summary["reward"]["evaluated"]
    tiles = [
        ("rollouts", f"{rollouts['started']:,}"),
        ("updates", f"{learning['updates']:,}"),
        ("mean evaluation since the first change", "-" if reward is None else f"{reward:.2f}"),
        ("mean version lag", "-" if lag is None else f"{lag:.1f}"),
        ("tokens masked", "-" if masked is None else f"{100 * masked:.1f} %"),
        ("dropped", f"{sum(rollouts['dropped'].values()):,}"),
        ("failed", f"{sum(rollouts['failed'].values()):,}"),
    ]
    cells = "".join(f'<div class="tile"><b>{b}</b><span>{name}</span></div>' for name, b in tiles)
    return f'<div class="tiles">{cells}</div>'


def _key() -> str:
    parts = [
        ("k-thick", "evaluation on the concept that holds"),
        ("k-thin", "on the other concepts"),
        ("k-served", f"reward of the last {WINDOW} rollouts served"),
    ]
    items = "".join(f'<span><i class="{style}"></i>{text}</span>' for style, text in parts)
    bracket = "<span>|-| rollouts until 80 % of the loss is won back</span>"
    return f'<div class="key">{items}{bracket}</div>'


def _changes(summary: Mapping[str, Any], series: Series) -> str:
    lines = "".join(f"<li>{escape(line)}</li>" for line in sentences(summary))
    notes = f'<ul class="quiet small">{lines}</ul>'
    if not summary["changes"]:
        return f"<p>The world did not change.</p>{notes}"
    number = {concept: k % 8 for k, concept in enumerate(series.colours)}
    body = []
    for change, cells in zip(summary["changes"], rows(summary), strict=True):
        dots = "".join(
            f'<span class="dot b{number.get(change[end], 0)}"></span>' for end in ("old", "new")
        )
        left = f'<td class="l">{cells[0]}</td><td class="l">{dots}{escape(cells[1])}</td>'
        body.append(f"<tr>{left}{''.join(f'<td>{escape(cell)}</td>' for cell in cells[2:])}</tr>")
    head = "".join(f'<th class="l">{name}</th>' for name in COLUMNS[:2])
    head += "".join(f"<th>{name.replace(chr(10), '<br>')}</th>" for name in COLUMNS[2:])
    return f'<div class="scroll"><table><tr>{head}</tr>{"".join(body)}</table></div>{notes}'


def _missing(summary: Mapping[str, Any]) -> str:
    """Why a number is not there."""
    reasons = [
        (f"change {change['number']}, {name}", reason)
        for change in summary["changes"]
        for name, reason in change["undefined"].items()
    ]
    for part in ("reward", "learning", "memory"):
        reasons += [(f"{part}, {name}", why) for name, why in summary[part]["undefined"].items()]
    if not reasons:
        return ""
    text = "\n".join(f"{what}: {reason}" for what, reason in reasons)
    return _folded("Numbers that are undefined, and why", text)


def _losses(summary: Mapping[str, Any], trajectories: Sequence[ShownRollout]) -> str:
    rollouts = summary["rollouts"]
    body = []
    for word in ("dropped", "failed"):
        for reason, count in rollouts[word].items():
            share = count / max(1, rollouts["started"])
            example = next(
                (
                    item.reason or ""
                    for item in trajectories
                    if word == "failed"
                    and item.fate == word
                    and (item.reason or "").startswith(f"{reason}:")
                ),
                "",
            )
            detail = escape(example[:300])
            cells = f"<td>{count:,}</td><td>{share:.2%}</td><td class='l wrap'>{detail}</td>"
            name = escape(reason.replace("_", " "))
            body.append(f"<tr><td class='l'>{word}</td><td class='l'>{name}</td>{cells}</tr>")
    if not body:
        return "<p>None.</p>"
    head = "<th class=l>what</th><th class=l>why</th><th>rollouts</th><th>share</th>"
    head += "<th class=l>for example</th>"
    return f'<div class="scroll"><table><tr>{head}</tr>{"".join(body)}</table></div>'


def _memory(summary: Mapping[str, Any]) -> str:
    memory = summary["memory"]
    if len(memory["concepts"]) < 2:
        return ""
    head = "".join(f"<th>on {escape(concept)}</th>" for concept in memory["concepts"])
    body = []
    for concept, scores in zip(memory["segments"], memory["scores"], strict=False):
        cells = "".join(f"<td>{'-' if s is None else f'{s:.2f}'}</td>" for s in scores)
        body.append(f'<tr><td class="l">{escape(concept)}</td>{cells}</tr>')
    names = ("accuracy", "backward", "forward", "forgetting")
    numbers = ", ".join(f"{n} {'-' if memory[n] is None else f'{memory[n]:+.2f}'}" for n in names)
    return (
        '<h2>What is remembered</h2><p class="quiet small">Evaluation on each concept when a '
        f'segment ends: {numbers}.</p><div class="scroll"><table>'
        f'<tr><th class="l">end of segment</th>{head}</tr>{"".join(body)}</table></div>'
    )


def _timeline(timeline: Sequence[Mapping[str, Any]]) -> str:
    names = ("started", "completed", "consumed", "version", "tokens", "seconds")
    head = "<th class=l>concept</th><th class=l>change</th><th>magnitude</th>"
    head += "".join(f"<th>{name}</th>" for name in names)
    body = []
    for line in timeline:
        kind = line["kind"] if line["phase"] == "changed" else f"{line['kind']} {line['phase']}"
        cells = "".join(f"<td>{line['clocks'][name]:,.0f}</td>" for name in names)
        body.append(
            f'<tr><td class="l">{escape(line["concept"])}</td>'
            f'<td class="l">{escape(kind.replace("_", " "))}</td>'
            f"<td>{line['magnitude']}</td>{cells}</tr>"
        )
    params = "\n".join(f"{line['concept']}: {json.dumps(line['params'])}" for line in timeline)
    table = f'<div class="scroll"><table><tr>{head}</tr>{"".join(body)}</table></div>'
    return f"{table}{_folded('Parameters of the concepts', params)}"


def _identity(summary: Mapping[str, Any]) -> str:
    lines = [f"{name}: {value}" for name, value in (summary.get("hashes") or {}).items()]
    lines.append(f"scenario_sha256: {summary['scenario_sha256']}")
    lines.append(f"weights_sha256: {summary['weights_sha256'] or 'not recorded'}")
    lines += [f"note: {note}" for note in summary.get("notes") or []]
    return _folded("Hashes: equal world_sha256 means the same world was seen", "\n".join(lines))


def _folded(name: str, text: str) -> str:
    return f"<details><summary>{escape(name)}</summary><pre>{escape(text)}</pre></details>"
