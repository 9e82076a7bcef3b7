"""Verdicts again, offline, from the patches that a run left in its event log."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sao_gym.errors import InputError, MachineryError
from sao_gym.repo.grade import grade
from sao_gym.repo.record import patch_from_json, verdict_from_json
from sao_gym.repo.task import RepoTask, Verdict
from sao_gym.sandbox import Sandbox


@dataclass(frozen=True, slots=True, kw_only=True)
class Regraded:
    """One fix, judged then and now."""

    rollout: int
    task: str
    then: Verdict | None
    """None: it was not judged."""
    now: Verdict | None
    """None: it cannot be judged; `why` says why."""
    why: str = ""

    @property
    def differs(self) -> bool:
        """Whether both judged, and not alike."""
        return (
            self.then is not None
            and self.now is not None
            and self.then.resolved != self.now.resolved
        )


def stored(events: Iterable[Mapping[str, Any]]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Rollout and record of each fix in an event log."""
    for event in events:
        kept = event.get("record")
        if isinstance(kept, Mapping) and "task" in kept and "patch" in kept:
            yield event["rollout"], kept


def regrade(
    events: Iterable[Mapping[str, Any]],
    tasks: Callable[[str], RepoTask | None],
    sandbox: Sandbox,
) -> Iterator[Regraded]:
    """Judge every stored fix again; the same fix of the same task is judged once."""
    judged: dict[str, tuple[Verdict | None, str]] = {}
    for rollout, kept in stored(events):
        name = str(kept["task"])
        key = json.dumps([name, kept["patch"]], sort_keys=True)
        then = None if kept.get("verdict") is None else verdict_from_json(kept["verdict"])
        if key not in judged:
            judged[key] = _judge(kept, tasks(name), sandbox)
        now, why = judged[key]
        yield Regraded(rollout=rollout, task=name, then=then, now=now, why=why)


def _judge(
    kept: Mapping[str, Any], task: RepoTask | None, sandbox: Sandbox
) -> tuple[Verdict | None, str]:
    if task is None:
        return None, "unknown task"
    try:
        return grade(task, patch_from_json(kept["patch"]), sandbox=sandbox), ""
    except (MachineryError, InputError) as error:
        return None, str(error)
