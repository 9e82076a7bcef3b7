"""Kill -9 at many points of a run, resume each time, and compare with the run that was not killed.

    python benchmarks/kill.py [--points 200] [--seed 0]

A real process dies each time, by a signal that it cannot catch: before or after an event is
written, in the middle of a line of the log, and at every stage of writing a checkpoint. Then
another process resumes the directory to the end. Events, timeline and weights must be those of the
whole run, byte for byte. Processes are forked from one that has imported everything, so that a
point takes seconds.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from sao_gym import checkpoint, rng
from sao_gym.assemble import make_learner, prepare_process
from sao_gym.play import play
from sao_gym.record import Recorder
from sao_gym.scenario import Scenario, load_scenario
from sao_gym.world import make_world

SCENARIO = Path(__file__).parent / "kill.yaml"
WHERE = ("before", "torn", "after")
STAGES = ("draft", "half", "synced", "renamed", "pruned")
"""Of writing a checkpoint: just after ..."""


class Point(NamedTuple):
    """Where to kill."""

    event: int
    """At the writing of this event (from 0)."""
    where: str
    """`before`, `torn` (half of its line is on the disk), `after`, or one of `STAGES`."""
    kind: str
    beside: bool = False
    """With the learner in a process of its own."""


def main() -> int:
    """Print a line for each failure and a summary; exit code 1 if anything differed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--points", type=int, default=200)
    parser.add_argument("--updates", type=int, default=200, help="length of the run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--beside", type=int, default=20, help="every n-th point: learner beside")
    given = parser.parse_args()
    prepare_process()
    scenario = load_scenario(SCENARIO, overrides=[f"budget.updates={given.updates}"])
    make_learner(make_world(scenario), scenario)  # imports what every child would import
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "whole"
        assert in_child(lambda: run(scenario, whole, resume=False)) == 0
        expected = result(whole)
        points = choose(whole, given.points, given.seed, given.beside)
        same, times = 0, []
        for number, point in enumerate(points):
            again = Path(folder) / f"{number}"
            wrong = kill_and_resume(scenario, again, point, expected, times)
            same += not wrong
            if wrong:
                print(f"{point}: {wrong}", flush=True)
            elif number % 20 == 19:
                print(f"{number + 1} points, {same} identical", flush=True)
    kinds = Counter(point.where if point.where in STAGES else point.kind for point in points)
    seconds = time.monotonic() - began
    print(f"identical {same}/{len(points)} in {seconds:.0f} s; killed at {dict(kinds)}")
    print(f"resume ready in {max(times):.2f} s at most, {sum(times) / len(times):.2f} s on average")
    return int(same < len(points))


def run(scenario: Scenario, directory: Path, *, resume: bool, beside: bool = False) -> None:
    played = play(scenario, directory, resume=resume, live=False, beside=beside, quiet=True)
    (directory / "weights").write_text(str(played.weights_sha256))
    sys.exit(played.code)


def kill_and_resume(
    scenario: Scenario, directory: Path, point: Point, expected: dict[str, str], times: list[float]
) -> str:
    """What was wrong, or nothing."""

    def killed() -> None:
        with dying(point):
            run(scenario, directory, resume=False, beside=point.beside)

    code = in_child(killed)
    if code != -signal.SIGKILL:
        return f"was not killed but ended with {code}"
    if left := orphans():
        return f"left processes {left}"

    def resumed() -> None:
        with ready(directory, time.monotonic()):
            run(scenario, directory, resume=True, beside=point.beside)

    code = in_child(resumed)
    if code:
        return f"the resumed run ended with {code}"
    times.append(float((directory / "ready").read_text()))
    found = result(directory)
    return ", ".join(f"{name} differs" for name in expected if found[name] != expected[name])


def result(directory: Path) -> dict[str, str]:
    names = ("events.jsonl", "timeline.jsonl", "weights")
    return {n: hashlib.sha256((directory / n).read_bytes()).hexdigest() for n in names}


def choose(whole: Path, count: int, seed: int, beside: int) -> list[Point]:
    """Every kind of event and every stage of a checkpoint, then spread evenly over the run."""
    with (whole / "events.jsonl").open() as file:
        next(file)
        kinds = [json.loads(line)["event"] for line in file]
    places: dict[str, list[int]] = {}
    for number, kind in enumerate(kinds):
        places.setdefault(kind, []).append(number)
    order = sorted(places, key=lambda kind: len(places[kind]))
    taken = places["CheckpointTaken"]
    points: list[tuple[int, str]] = []
    for share in (0.5, 0.2, 0.7, 0.9):
        if count > len(STAGES) + len(places) or not points:
            points += [(taken[int(share * len(taken))], stage) for stage in STAGES]
        if share < 0.9:
            for number, kind in enumerate(order):
                at = places[kind][int(share * len(places[kind]))]
                points.append((at, WHERE[(number + int(10 * share)) % 3]))
    while len(points) < count:
        draw = len(points)
        at = int(rng.uniform(seed, "kill", draw) * len(kinds))
        points.append((at, WHERE[draw % 3]))
    del points[count:]
    return [
        Point(event, where, kinds[event], beside=number % beside == beside - 1)
        for number, (event, where) in enumerate(points)
    ]


# -- dying -----------------------------------------------------------------------------------


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def dying(point: Point) -> Iterator[None]:
    """Have this process kill itself at `point`; it never leaves this block."""
    write = Recorder._write

    def writing(self: Recorder, t: float, event: Any) -> None:
        if self.written != point.event:
            write(self, t, event)
            return
        if point.where == "before":
            die()
        if point.where == "torn":
            from sao_gym.log import encode

            line = encode(t, event)
            self._events.write(line[: len(line) // 2])
            self._events.flush()
            die()
        if point.where in STAGES:
            stage(point.where)
        write(self, t, event)
        if point.where == "after":
            die()

    Recorder._write = writing  # type: ignore[method-assign]
    yield


def stage(where: str) -> None:
    """From now on, die just after this stage of writing a file."""

    def then_die(function: Callable[..., Any], when: Callable[..., bool]) -> Callable[..., Any]:
        def called(*args: Any, **more: Any) -> Any:
            if when(*args):
                function(*args, **more)
                die()
            return function(*args, **more)

        return called

    always = lambda *_: True  # noqa: E731
    if where == "draft":
        checkpoint.hashlib.sha256 = then_die(hashlib.sha256, always)  # type: ignore[assignment]
    elif where == "half":
        opened = Path.open

        def half(self: Path, *args: Any, **more: Any) -> Any:
            file = opened(self, *args, **more)
            if self.suffix == ".tmp":
                file.write(b'{"format": "sao-gym/checkpoint", "version"')
                file.flush()
                die()
            return file

        Path.open = half  # type: ignore[method-assign,assignment]
    elif where == "synced":
        os.replace = then_die(os.replace, lambda *_: die() or True)  # before the rename
    elif where == "renamed":
        os.replace = then_die(os.replace, always)
    elif where == "pruned":
        Path.unlink = then_die(Path.unlink, always)  # type: ignore[method-assign]


@contextmanager
def ready(directory: Path, began: float) -> Iterator[None]:
    """Write down how long it took until the first event after the resume."""
    write = Recorder._write

    def writing(self: Recorder, t: float, event: Any) -> None:
        (directory / "ready").write_text(str(time.monotonic() - began))
        Recorder._write = write  # type: ignore[method-assign]
        write(self, t, event)

    Recorder._write = writing  # type: ignore[method-assign]
    yield


def in_child(work: Callable[[], None]) -> int:
    """Run `work` in a forked process; its exit code, or minus the signal that killed it."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            work()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def orphans(patience: float = 5.0) -> list[int]:
    """Learner processes of ours that outlived the one that was killed."""
    deadline = time.monotonic() + patience
    while found := _spawned():
        if time.monotonic() > deadline:
            return found
        time.sleep(0.05)
    return []


def _spawned() -> list[int]:
    """Processes whose environment carries our mark."""
    mark = f"SAO_GYM_KILL={os.getpid()}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            ours = mark in (entry / "environ").read_bytes()
            zombie = (entry / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            continue
        if ours and not zombie:
            found.append(int(entry.name))
    return found


if __name__ == "__main__":
    os.environ["SAO_GYM_KILL"] = str(os.getpid())
    sys.exit(main())
