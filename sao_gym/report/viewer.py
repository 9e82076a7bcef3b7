"""The trajectory viewer of the report: sampled rollouts as text, tokens coloured by their age."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape

from sao_gym.report.trajectories import Piece, ShownRollout

AGES = ((0, "0"), (2, "1-2"), (5, "3-5"), (10, "6-10"), (math.inf, "over 10"))
"""Upper bounds and names of the five colours."""
TEXT = 4000
"""Characters of one observation or action that are shown."""
SHORT = 240
"""Characters up to which a rollout is shown as one line."""
BUDGET = 450_000
"""Characters of HTML for the whole viewer."""


def render_viewer(rollouts: Sequence[ShownRollout]) -> str:
    """The section's HTML; rollouts beyond the size budget are left out and counted."""
    if not rollouts:
        return '<p class="quiet">No rollout to show.</p>'
    blocks: list[str] = []
    size = 0
    for rollout in rollouts:
        block = _rollout(rollout, opened=not blocks)
        size += len(block)
        if size > BUDGET and blocks:
            break
        blocks.append(block)
    left_out = len(rollouts) - len(blocks)
    words = f"{left_out} more do not fit on this page."
    note = f'<p class="quiet small">{words}</p>' if left_out else ""
    ages = "".join(
        f'<span><span class="tok l{k}">&nbsp;{name}&nbsp;</span></span>'
        for k, (_, name) in enumerate(AGES)
    )
    key = (
        f'<div class="key"><span>versions between sampling and training:</span>{ages}'
        '<span><span class="tok none">&nbsp;not trained on&nbsp;</span></span></div>'
    )
    return f"{key}{_filters(rollouts)}{''.join(blocks)}{note}"


def _filters(rollouts: Sequence[ShownRollout]) -> str:
    def select(name: str, label: str, values: Iterable[str]) -> str:
        options = "".join(f"<option>{escape(value)}</option>" for value in values)
        return (
            f'<label>{label} <select name="{name}"><option value="">all</option>{options}'
            "</select></label>"
        )

    concepts = dict.fromkeys(rollout.concept for rollout in rollouts)
    fates = dict.fromkeys(rollout.fate for rollout in rollouts)
    both = select("concept", "concept", concepts) + select("fate", "fate", fates)
    return f'<div class="filters">{both}</div>'


def _rollout(rollout: ShownRollout, *, opened: bool) -> str:
    pieces = [piece for turn in rollout.turns for piece in turn.pieces]
    facts = [
        f"rollout {rollout.rollout:,}",
        f"concept {rollout.concept}",
        _plural(sum(piece.tokens for piece in pieces), "token"),
        _fate(rollout, pieces),
    ]
    reward = "no reward" if rollout.reward is None else f"reward {rollout.reward:g}"
    data = f'data-concept="{escape(rollout.concept)}" data-fate="{rollout.fate}"'
    head = (
        f'<span class="reward">{reward}</span> '
        f'<span class="quiet small">{escape(" · ".join(facts))}</span>'
    )
    if _is_short(rollout, pieces):
        flow = f'<div class="flow mono">{_flow(rollout)}</div>'
        return f'<div class="rollout" {data}>{head}{flow}</div>'
    unfolded = " open" if opened else ""
    return (
        f'<details class="rollout" {data}{unfolded}><summary>{head}</summary>'
        f'<div class="talk mono">{_talk(rollout)}</div></details>'
    )


def _is_short(rollout: ShownRollout, pieces: Sequence[Piece]) -> bool:
    """Whether the whole rollout reads well as one running line."""
    texts = [rollout.prompt, *(turn.answer or "" for turn in rollout.turns)]
    texts += [piece.text for piece in pieces]
    return sum(map(len, texts)) <= SHORT and not any("\n" in text for text in texts)


def _flow(rollout: ShownRollout) -> str:
    """Observations and actions as one line."""
    parts = [f'<span class="quiet">{escape(rollout.prompt)}</span>']
    for turn in rollout.turns:
        parts.append(_tokens(turn.pieces, rollout.trained_in))
        if turn.answer:
            parts.append(f'<span class="quiet">{escape(turn.answer)}</span>')
        if turn.reward:
            parts.append(f'<span class="got">{turn.reward:+g}</span>')
    return " ".join(parts)


def _talk(rollout: ShownRollout) -> str:
    """Observations and actions line by line."""
    lines = [_line("task", rollout.prompt)]
    for number, turn in enumerate(rollout.turns, start=1):
        tokens = _tokens(turn.pieces, rollout.trained_in)
        got = f'<span class="got">{turn.reward:+g}</span>' if turn.reward else ""
        text = f'<span class="text">{tokens}</span>'
        lines.append(f"<div><span>action {number}</span>{text}{got}</div>")
        if turn.answer:
            lines.append(_line("environment", turn.answer))
    if rollout.outcome:
        lines.append(_line("end", rollout.outcome))
    return "".join(lines)


def _fate(rollout: ShownRollout, pieces: Sequence[Piece]) -> str:
    if rollout.trained_in is None:
        return f"{rollout.fate}: {rollout.reason}" if rollout.reason else rollout.fate
    ages = [rollout.trained_in - 1 - piece.version for piece in pieces]
    if not ages:
        return f"trained in version {rollout.trained_in}"
    span = f"{min(ages)}" if min(ages) == max(ages) else f"{min(ages)} to {max(ages)}"
    return f"trained in version {rollout.trained_in}, lag {span}"


def _line(who: str, text: str) -> str:
    return f'<div><span>{who}</span><span class="text quiet">{escape(_clip(text))}</span></div>'


def _clip(text: str) -> str:
    left_out = len(text) - TEXT
    return text if left_out <= 0 else f"{text[:TEXT]} ({left_out:,} more characters)"


def _tokens(pieces: Sequence[Piece], trained_in: int | None) -> str:
    parts: list[str] = []
    room = TEXT
    for piece in pieces:
        if room <= 0:
            parts.append(f" ({len(pieces) - len(parts)} more pieces)")
            break
        room -= len(piece.text)
        parts.append(_token(piece, trained_in))
    return "".join(parts)


def _token(piece: Piece, trained_in: int | None) -> str:
    title = f"version {piece.version}"
    style = "none"
    if trained_in is not None:
        age = trained_in - 1 - piece.version
        style = f"l{next(k for k, (bound, _) in enumerate(AGES) if age <= bound)}"
        title += f", {_plural(age, 'version')} old in training"
    if piece.logprob is not None:
        what = "probability" if piece.tokens == 1 else f"{piece.tokens} tokens, probability"
        title += f", {what} {math.exp(piece.logprob):.3g}"
    return f'<span class="tok {style}" title="{title}">{escape(_clip(piece.text))}</span>'


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
