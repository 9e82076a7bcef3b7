"""A few dozen rollouts of a run, chosen and read back from its events for the viewer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from sao_gym.log import Record
from sao_gym.metrics import Facts

SHOWN = 42
"""Finished rollouts to show; a few that were dropped or failed come on top."""
EXTRA = 4
PER_TOKEN = 64
"""Rollouts with more action tokens are cut by policy version instead of token by token."""


class Piece(NamedTuple):
    """Consecutive action tokens sampled by one policy version."""

    text: str
    tokens: int
    version: int
    logprob: float | None
    """Their sum, natural log; None if the log does not hold it."""


@dataclass(slots=True, kw_only=True)
class ShownTurn:
    """One action and what the environment answered."""

    pieces: list[Piece]
    answer: str | None = None
    reward: float | None = None


@dataclass(slots=True, kw_only=True)
class ShownRollout:
    """A rollout as the viewer shows it."""

    rollout: int
    order: int
    """The `started` clock when it began."""
    concept: str
    prompt: str = ""
    turns: list[ShownTurn] = field(default_factory=list)
    reward: float | None = None
    outcome: str | None = None
    fate: str = "open"
    """`trained`, `dropped`, `failed` or `open`."""
    reason: str | None = None
    trained_in: int | None = None


def choose(facts: Facts) -> list[int]:
    """Rollouts to show: around every change, and some that were dropped or failed."""
    begins = sorted({0, *(c.clocks.started for c in facts.changes)})
    ends = [*begins[1:], facts.started]
    by_order = sorted(facts.finished, key=lambda done: done.order)
    n = max(2, SHOWN // len(begins))
    places = [(k / (n - 1)) ** 2 for k in range(n)]  # mostly soon after a change
    chosen: list[int] = []
    for begin, end in zip(begins, ends, strict=True):
        stretch = [done.rollout for done in by_order if begin <= done.order < end]
        chosen += [stretch[round(place * (len(stretch) - 1))] for place in places if stretch]
    chosen = chosen[:SHOWN]
    chosen += _spread([rollout for rollout, _, _ in facts.dropped], EXTRA)
    chosen += _spread([rollout for rollout, _, _, _ in facts.failed], EXTRA)
    return list(dict.fromkeys(chosen))


def _spread(rollouts: Sequence[int], count: int) -> list[int]:
    if len(rollouts) <= count:
        return list(rollouts)
    return [rollouts[k * (len(rollouts) - 1) // (count - 1)] for k in range(count)]


def read_trajectories(
    records: Iterable[Record], facts: Facts, decode: Callable[[Sequence[int]], str] | None
) -> list[ShownRollout]:
    """The chosen rollouts, in the order in which they started.

    Args:
        records: The events again.
        facts: The same run.
        decode: Token ids to text; None shows the ids.
    """
    wanted = set(choose(facts))
    decode = decode or _ids
    shown: dict[int, ShownRollout] = {}
    started = 0
    for record in records:
        name = record["event"]
        if name == "UpdateFinished":
            for trained in wanted.intersection(record["rollouts"]):
                shown[trained].fate = "trained"
                shown[trained].trained_in = record["version"]
            continue
        started += name == "RolloutStarted"
        rollout = record.get("rollout", -1)
        if rollout not in wanted:
            continue
        if name == "RolloutStarted":
            shown[rollout] = ShownRollout(
                rollout=rollout, order=started - 1, concept=record["concept"]
            )
        else:
            _apply(shown[rollout], record, decode)
    return sorted(shown.values(), key=lambda item: item.order)


def _apply(shown: ShownRollout, record: Record, decode: Callable[[Sequence[int]], str]) -> None:
    match record["event"]:
        case "EnvironmentStepped":
            if record["turn"] == 0:
                shown.prompt = record["observation"]
            elif shown.turns:
                shown.turns[-1].answer = record["observation"]
                shown.turns[-1].reward = record["reward"]
        case "TurnSampled":
            shown.turns.append(ShownTurn(pieces=_pieces(record, decode)))
        case "RolloutFinished":
            shown.reward = record["reward"]
            limit = f" ({record['limit']})" if record["limit"] else ""
            shown.outcome = record["outcome"] + limit
            for turn, reward in zip(shown.turns, record["rewards"], strict=False):
                turn.reward = reward
        case "RolloutDropped":
            shown.fate, shown.reason = "dropped", record["reason"]
        case "RolloutFailed":
            shown.fate, shown.reason = "failed", f"{record['kind']}: {record['detail']}"


def _pieces(record: Record, decode: Callable[[Sequence[int]], str]) -> list[Piece]:
    ids, logprobs = record["action_ids"], record["logprobs"]
    pieces = []
    first = 0
    for version, count in record["versions"]:
        step = 1 if len(ids) <= PER_TOKEN else count
        for at in range(first, first + count, max(1, step)):
            stop = min(at + step, first + count)
            known = [value for value in logprobs[at:stop] if value is not None]
            total = sum(known) if len(known) == stop - at else None
            pieces.append(Piece(decode(ids[at:stop]), stop - at, version, total))
        first += count
    return pieces


def _ids(ids: Sequence[int]) -> str:
    return " ".join(map(str, ids)) + " "
