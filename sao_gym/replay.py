"""Do again what a run directory says was done, and compare.

replay DIR              the whole run: the same events, byte for byte?
replay DIR --update N   one update: the learner's state before it, its batch from the log
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from sao_gym import checkpoint, plain
from sao_gym.assemble import assemble, make_faults, make_learner, prepare_process, warm_start
from sao_gym.checkpoint import DamagedError
from sao_gym.errors import DifferenceError, InputError, SaoGymError
from sao_gym.executors.trainers import make_update
from sao_gym.log import EventLog, encode
from sao_gym.play import FAILED_BATCH
from sao_gym.policy import weights_hash
from sao_gym.protocols import Learner
from sao_gym.record import SCENARIO
from sao_gym.scenario import Scenario, load_scenario
from sao_gym.trajectories import read_trajectories
from sao_gym.types import Trajectory
from sao_gym.world import World, make_world


class Replayed(NamedTuple):
    """A whole run, done again."""

    events: int
    """Events that were recorded and came again, all of them the same."""
    complete: bool
    """Whether they go to the run's own end."""
    weights_sha256: str
    """Of the policy after the last of them."""


def replay_run(directory: Path) -> Replayed:
    """Run the scenario of `directory` again, in memory, and hold each event against the log.

    Raises:
        DifferenceError: an event differs; its line is named.
        InputError: there is no readable run, or it was on the wall clock.
    """
    log = EventLog(directory)
    if log.header.get("time") == "live":
        raise InputError(
            f"{directory}: a run on the wall clock, whose order was the world's; "
            "`replay DIR --update N` does single updates again"
        )
    lines, complete = _recorded(log)
    count = 0
    with assemble(load_scenario(directory / SCENARIO), beside=True) as run:
        try:
            for t, event in run.events():
                again = encode(t, event)
                if count < len(lines) and lines[count] != again:
                    raise DifferenceError(_differing(log.path, count, lines[count], again))
                count += 1
                if count >= len(lines) and not complete:
                    break
        except DifferenceError:
            raise
        except SaoGymError:
            pass  # as it was then: the log tells how it ended
        if count != len(lines):
            raise DifferenceError(f"{log.path}: holds {len(lines)} events, but {count} came again")
        return Replayed(count, complete, weights_hash(run.executor.weights()))


def _recorded(log: EventLog) -> tuple[list[bytes], bool]:
    """The event lines, and whether they end as the run itself did.

    What an interrupt made of the open rollouts is left out: an uninterrupted run goes on.
    """
    with log.path.open("rb") as file:
        lines = [line for line in file if line.endswith(b"\n")][1:]
    last = orjson.loads(lines[-1]) if lines else {}
    if last.get("reason") != "interrupted":
        return lines, last.get("event") == "RunEnded"
    lines.pop()
    while lines and b'"event":"RolloutDropped"' in lines[-1]:
        lines.pop()
    return lines, False


def _differing(path: Path, number: int, line: bytes, again: bytes) -> str:
    then, now = orjson.loads(line), orjson.loads(again)
    where = checkpoint.difference(now, then) or "the order of its keys differs"
    return f"{path}, line {number + 2}: {then['event']} at {then['t']:g} s: {where}"


class Again(NamedTuple):
    """An update that was made again."""

    version: int
    rollouts: int
    began_from: int
    """The update whose checkpoint was used; 0: the learner as it began."""
    metrics: Mapping[str, float]
    recorded: Mapping[str, float] | None
    """None if the run broke in this update."""
    weights_sha256: str | None

    @property
    def different(self) -> list[str]:
        """Metrics that are not, bit for bit, those of the log."""
        recorded = self.metrics if self.recorded is None else self.recorded
        return [n for n, v in self.metrics.items() if not _same(v, recorded.get(n))]


def replay_update(directory: Path, number: int) -> Again:
    """Make update `number` of a recorded run again, in this process.

    The learner starts from the last checkpoint before it, or from the beginning, and makes the
    updates between, on the batches of the log.

    Raises:
        InputError: the log holds no such update.
        Whatever the learner raises: that is what the replay is for.
    """
    log = EventLog(directory)
    updates = {r["version"]: r for r in log if r["event"] == "UpdateFinished"}
    batches = {version: list(record["rollouts"]) for version, record in updates.items()}
    batches |= _broken_batch(directory, max(updates, default=0) + 1)
    if number not in batches:
        raise InputError(f"{log.path}: holds updates 1 to {max(batches, default=0)}, not {number}")
    prepare_process()
    scenario = load_scenario(directory / SCENARIO)
    world = make_world(scenario)
    start, learner = _learner_before(directory, number, world, scenario)
    wanted = {rollout for v in range(start + 1, number + 1) for rollout in batches[v]}
    known = read_trajectories(log, wanted, world.timeline.concepts)
    faults = make_faults(scenario)
    for version in range(start + 1, number + 1):
        batch: list[Trajectory] = [known[rollout] for rollout in batches[version]]
        poison = faults.struck("update_nan", version) is not None
        update = make_update(learner, batch, poison)
    recorded = updates[number]["metrics"] if number in updates else None
    weights = None if update.weights is None else weights_hash(update.weights)
    size = len(batches[number])
    return Again(number, size, start, update.metrics, recorded, weights)


def _broken_batch(directory: Path, version: int) -> dict[int, list[int]]:
    """The batch of the update in which the run broke, if it did."""
    try:
        batch = json.loads((directory / FAILED_BATCH).read_text(encoding="utf-8"))
    except OSError:
        return {}
    return {version: [trajectory["rollout"] for trajectory in batch]}


def _learner_before(
    directory: Path, number: int, world: World, scenario: Scenario
) -> tuple[int, Learner]:
    """The learner as it was after some update before `number`, the latest that is kept."""
    for state, update in _states(directory):
        if update < number:
            learner = make_learner(world, scenario)
            learner.load_state_dict(plain.loads(state["executor"]["learner"]))
            return update, learner
    warm_start(world, scenario, lambda *_: None)
    return 0, make_learner(world, scenario)


def _states(directory: Path) -> Iterator[tuple[Any, int]]:
    for path in checkpoint.newest_first(directory):
        try:
            found = checkpoint.read(path)
        except DamagedError:
            continue
        yield plain.loads(found.state), found.update


def _same(value: float, recorded: float | None) -> bool:
    """JSON has no NaN: the log holds null for what is not finite."""
    return value == recorded or (recorded is None and not math.isfinite(value))
