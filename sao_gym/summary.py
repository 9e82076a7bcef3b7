"""A run in numbers (`summary.json`) and in words (the table on the screen)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sao_gym.log import Record
from sao_gym.metrics import (
    Facts,
    Undefined,
    area_mean,
    change_reports,
    collect,
    fading_mean,
    held_pieces,
    memory_report,
    window_mean,
)
from sao_gym.metrics.undefined import split

if TYPE_CHECKING:
    from rich.console import RenderableType

FORMAT = "sao-gym/summary"
VERSION = 1
WINDOW = 200
"""Rollouts in the window of the prequential reward."""
FADING = 0.995
"""Fading factor of the prequential reward: an effective window of 200 rollouts."""


def summarise(
    records: Iterable[Record],
    *,
    header: Mapping[str, Any] | None = None,
    scenario: Mapping[str, Any] | None = None,
    weights_sha256: str | None = None,
) -> dict[str, Any]:
    """What `summary.json` holds; a pure function of what is given.

    Args:
        records: The events of a run, without the header line.
        header: The header line.
        scenario: The resolved scenario (for its name and the timeline's clock).
        weights_sha256: Hash of the final policy.
    """
    facts = collect(records)
    return summarise_facts(facts, header=header, scenario=scenario, weights_sha256=weights_sha256)


def summarise_facts(
    facts: Facts,
    *,
    header: Mapping[str, Any] | None = None,
    scenario: Mapping[str, Any] | None = None,
    weights_sha256: str | None = None,
) -> dict[str, Any]:
    """As `summarise`, from facts that were collected already."""
    header, scenario = header or {}, scenario or {}
    reason, clocks = facts.ended or ("cut off: the log has no end", None)
    summary = {
        "format": FORMAT,
        "version": VERSION,
        "scenario": scenario.get("name"),
        "scenario_sha256": header.get("scenario_sha256"),
        "learner": header.get("learner"),
        "seed": header.get("seed"),
        "clock": scenario.get("timeline", {}).get("clock"),
        "ended": {"reason": reason, "clocks": clocks},
        "weights_sha256": weights_sha256,
        "seconds": facts.seconds,
        "rollouts": _rollouts(facts),
        "faults": dict(
            sorted(Counter(f"{fault}: {how}" for fault, how, _ in facts.faults).items())
        ),
        "alarms": dict(sorted(Counter(alarm for alarm, _, _ in facts.alarms).items())),
        "reward": _reward(facts),
        "learning": _learning(facts),
        "changes": [report.to_dict() for report in change_reports(facts)],
        "memory": memory_report(facts).to_dict(),
        "events": {"total": sum(facts.events.values()), **facts.events},
    }
    plain: dict[str, Any] = json.loads(json.dumps(summary))  # what a reader of the file gets
    return plain


def _rollouts(facts: Facts) -> dict[str, Any]:
    dropped = Counter(reason for _, reason, _ in facts.dropped)
    failed = Counter(kind for _, kind, _, _ in facts.failed)
    trained = sum(update.rollouts for update in facts.updates)
    straddling = sum(done.concept_start != done.concept_scored for done in facts.finished)
    return {
        "started": facts.started,
        "finished": len(facts.finished),
        "trained": trained,
        "dropped": dict(sorted(dropped.items())),
        "failed": dict(sorted(failed.items())),
        "open": facts.started - trained - dropped.total() - failed.total(),
        "straddling": straddling,
        "action_tokens": facts.tokens,
    }


def _reward(facts: Facts) -> dict[str, Any]:
    rewards = [done.reward for done in facts.finished]
    none = Undefined("no rollout finished")
    pieces = held_pieces(facts)
    evaluated = area_mean(piece.curve for piece in pieces)
    changed = Undefined("the world never changed")
    numbers, undefined = split(
        {
            "mean": sum(rewards) / len(rewards) if rewards else none,
            "window": window_mean(rewards, WINDOW)[-1] if rewards else none,
            "fading": fading_mean(rewards, FADING)[-1] if rewards else none,
            "evaluated": evaluated,
            "evaluated_after_first_change": area_mean(piece.curve for piece in pieces[1:])
            if len(pieces) > 1
            else changed,
        }
    )
    return {**numbers, "window_rollouts": WINDOW, "fading_factor": FADING, "undefined": undefined}


def _learning(facts: Facts) -> dict[str, Any]:
    lags: Counter[int] = Counter()
    for update in facts.updates:
        lags.update(update.lags)
    masked = [m for u in facts.updates if (m := u.metrics.get("masked_fraction")) is not None]
    old = [u.concept_lag for u in facts.updates if u.concept_lag is not None]
    none = Undefined("no update")
    tokens = lags.total()
    numbers, undefined = split(
        {
            "lag_mean": sum(lag * n for lag, n in lags.items()) / tokens if tokens else none,
            "lag_p95": quantile(lags, 0.95) if tokens else none,
            "lag_max": float(max(lags)) if tokens else none,
            "masked_fraction": sum(masked) / len(masked)
            if masked
            else Undefined("the learner reports no masked_fraction"),
            "concept_lag": sum(old) / len(old) if old else none,
        }
    )
    return {
        "updates": len(facts.updates),
        "published": len(facts.published),
        "version": facts.published[-1] if facts.published else 0,
        "trained_tokens": tokens,
        **numbers,
        "undefined": undefined,
    }


def quantile(counts: Mapping[int, int], q: float) -> float:
    """The smallest value that at least a share `q` of the weight does not exceed."""
    total = sum(counts.values())
    below = 0
    for value in sorted(counts):
        below += counts[value]
        if below >= q * total:
            break
    return float(value)


def table(summary: Mapping[str, Any]) -> RenderableType:
    """The summary for a person: one row a change, then what was lost on the way."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for number, column in enumerate(COLUMNS):
        grid.add_column(
            column,
            justify="left" if number < 2 else "right",
            overflow="fold",
            vertical="bottom",
            no_wrap=number != 1,
        )
    for row in rows(summary):
        grid.add_row(*(Text(cell) for cell in row))
    lines = [Text(line) for line in sentences(summary)]
    head = [Text(title(summary), style="bold"), Text(finding(summary)), Text("")]
    body: list[RenderableType] = [grid, Text("")] if summary["changes"] else []
    return Group(*head, *body, *lines)


RECOVERED = "recovered means 80 % of the loss won back and held"
COLUMNS = (
    "at rollout",
    "change",
    "before",
    "right\nafter",
    "end of\nsegment",
    "rollouts to\nrecover",
    "mean\nlag",
    "masked",
)


def rows(summary: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """The cells under `COLUMNS`, one row a change."""
    found: list[tuple[str, ...]] = []
    for change in summary["changes"]:
        kind = "" if change["kind"] == "abrupt" else f" ({change['kind']})"
        at = f"{change['tau']:,}"
        if change["settled"] != change["tau"]:
            end = change["settled"]
            at += "-" if end is None else f"-{end:,}"
        found.append(
            (
                at,
                f"{change['old']} to {change['new']}{kind}",
                _number(change["before"]) + ("" if change["converged"] is not False else "*"),
                _number(change["after"]),
                _number(change["at_end"]),
                recovery_words(change),
                _number(change["lag_mean"], 1),
                _percent(change["masked_fraction"]),
            )
        )
    return found


def recovery_words(change: Mapping[str, Any]) -> str:
    """Time to 80 % of the loss in rollouts started, or why there is none."""
    time = change["recovery"]["80"]
    if time is not None:
        return f"{time['started']:,.0f}"
    if change["censored"]["80"]:
        return f"> {change['end'] - change['tau']:,}"
    lost_nothing = "was lost" in change["undefined"].get("recovery.80", "")
    return "nothing lost" if lost_nothing else "-"


def title(summary: Mapping[str, Any]) -> str:
    """Which run it is."""
    return f"{summary['scenario'] or 'run'}: {summary['learner']}, seed {summary['seed']}"


def finding(summary: Mapping[str, Any]) -> str:
    """What the run shows about recovery, in one line."""
    changes = summary["changes"]
    if not changes:
        return "The world did not change."
    recovered = [c for c in changes if c["recovery"]["80"] is not None]
    lost = [c for c in changes if c["recovery"]["80"] is not None or c["censored"]["80"]]
    if not lost:
        return "No change of the world cost a measurable amount of reward."
    if len(lost) == 1:
        what = "the one costly change"
        share = f"Recovered from {what}" if recovered else f"Did not recover from {what}"
    else:
        share = f"Recovered from {len(recovered)} of {len(lost)} costly changes"
    if not recovered or len(recovered) < len(lost):  # censored times are longer: no median
        return f"{share}."
    median = "" if len(lost) == 1 else ", median"
    return f"{share} (80 % of the loss won back after {_middle(recovered):,.0f} rollouts{median})."


def _middle(recovered: Sequence[Mapping[str, Any]]) -> float:
    times = sorted(change["recovery"]["80"]["started"] for change in recovered)
    half = len(times) // 2
    return float(times[half]) if len(times) % 2 else (times[half - 1] + times[half]) / 2


def sentences(summary: Mapping[str, Any]) -> list[str]:
    """What stands below the table, in plain words."""
    rollouts, learning = summary["rollouts"], summary["learning"]
    clock = summary["clock"] or "unknown"
    lines = [f"Clock: {clock}. Times are in rollouts started; {RECOVERED}."]
    lines.append(
        f"{rollouts['started']:,} rollouts started, {rollouts['finished']:,} finished, "
        f"{rollouts['trained']:,} trained on in {learning['updates']:,} updates; "
        f"{rollouts['action_tokens']:,} action tokens; {summary['seconds']:,.0f} s on the "
        "run's clock."
    )
    lines.append(
        f"Version lag per token: mean {_number(learning['lag_mean'], 1)}, "
        f"95 % at most {_number(learning['lag_p95'], 0)}, max {_number(learning['lag_max'], 0)}. "
        f"Masked: {_percent(learning['masked_fraction'])}."
    )
    if any(change["censored"]["80"] for change in summary["changes"]):
        lines.append("> n: not recovered in the n rollouts that were left for it.")
    if any(change["settled"] != change["tau"] for change in summary["changes"]):
        lines.append("Of a drift window, times count from its begin.")
    if any(change["converged"] is False for change in summary["changes"]):
        lines.append("* still rising when the change came: not converged.")
    lines.append(_lost("Dropped", rollouts["dropped"]))
    lines.append(_lost("Failed", rollouts["failed"]))
    for word, counts in (("Faults", summary["faults"]), ("Alarms", summary["alarms"])):
        if counts:
            lines.append(_lost(word, counts))
    lines.append(f"Ended: {summary['ended']['reason']}.")
    return lines


def _lost(word: str, by_reason: Mapping[str, int]) -> str:
    parts = ", ".join(f"{n:,} {reason.replace('_', ' ')}" for reason, n in by_reason.items())
    return f"{word}: {parts or 'none'}."


def _number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"
