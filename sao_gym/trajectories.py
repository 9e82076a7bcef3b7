"""Trajectories as a learner saw them, built again from the events of a log."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from sao_gym.log import Record
from sao_gym.types import (
    Concept,
    Task,
    Terminated,
    Timing,
    Trajectory,
    Truncated,
    Turn,
    VersionSpan,
)


def read_trajectories(
    records: Iterable[Record], rollouts: Collection[int], concepts: Iterable[Concept] = ()
) -> dict[int, Trajectory]:
    """Those of the finished `rollouts`, by number; nothing of them is lost in a log.

    Args:
        records: the events of a run.
        rollouts: which ones.
        concepts: where to look up the one that a rollout was scored under, if it is not the one
            that it began under.
    """
    known = {concept.id: concept for concept in concepts}
    started: dict[int, Record] = {}
    sampled: dict[int, list[Record]] = {}
    found: dict[int, Trajectory] = {}
    for record in records:
        number: int = record.get("rollout", -1)
        if number not in rollouts:
            continue
        match record["event"]:
            case "RolloutStarted":
                started[number] = record
                sampled[number] = []
            case "TurnSampled":
                sampled[number].append(record)
            case "RolloutFinished":
                begin, turns = started.pop(number), sampled.pop(number)
                found[number] = _trajectory(record, begin, turns, known)
    return found


def _trajectory(
    done: Record, begin: Record, sampled: list[Record], known: dict[str, Concept]
) -> Trajectory:
    start = Concept(id=begin["concept"], params=begin["params"])
    scored = start if done["concept_scored"] == start.id else known[done["concept_scored"]]
    outcome: Any = Terminated() if done["outcome"] == "terminated" else Truncated(done["limit"])
    restarts = done.get("restarts", ())
    parts = zip(sampled, done["observation_ids"], done["rewards"], strict=True)
    return Trajectory(
        rollout=done["rollout"],
        task=Task(index=begin["task"], seed=begin["task_seed"]),
        concept_start=start,
        concept_scored=scored,
        turns=tuple(
            Turn(
                observation_ids=tuple(observation),
                action_ids=tuple(turn["action_ids"]),
                logprobs=tuple(turn["logprobs"]),
                versions=tuple(VersionSpan(*span) for span in turn["versions"]),
                reward=reward,
                restart=index in restarts,
            )
            for index, (turn, observation, reward) in enumerate(parts)
        ),
        outcome=outcome,
        timing=Timing(started=done["started_at"], finished=done["t"]),
    )
