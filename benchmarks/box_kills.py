"""Kill boxes, workers and the run itself at random; afterwards count what is left and what is lost.

    python benchmarks/box_kills.py [--rollouts 1000] [--sandbox bubblewrap|docker]
                                   [--boxes warm|fresh] [--seed 0]

A run of `repo-fix` goes on while SIGKILL strikes: every second or two one of the processes or
containers in which code is run or graded, now and then the run itself, which is then resumed. At
the end every rollout of the log must have exactly one fate, and no container, volume, network,
process or folder of ours may be left.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from sao_gym import rng
from sao_gym.sandboxes import owner
from sao_gym.sandboxes.reaper import reap

MARK = "SAO_GYM_BOX_KILLS"


def main() -> int:
    """Print what was killed, what became of the rollouts, and what is left; 1 if anything is."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rollouts", type=int, default=1000)
    parser.add_argument("--sandbox", default="bubblewrap", choices=["bubblewrap", "docker"])
    parser.add_argument("--boxes", default="warm", choices=["warm", "fresh"])
    parser.add_argument("--owner-seconds", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    before = left(given.sandbox)
    killed: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "run"
        began = time.monotonic()
        while (code := one_life(given, directory, killed)) == -signal.SIGKILL:
            pass
        seconds = time.monotonic() - began
        fates, failed = accounted(directory)
    reap(docker=given.sandbox == "docker")
    remains = sorted(left(given.sandbox) - before)
    lost = sum(count != 1 for count in fates.values())
    print(f"{len(fates)} rollouts in {seconds:.0f} s, killed {dict(killed)}, exit code {code}")
    print(f"failed {dict(failed)}; without exactly one fate: {lost}; left: {remains or 'nothing'}")
    return int(bool(code or lost or remains))


def one_life(given: argparse.Namespace, directory: Path, killed: Counter[str]) -> int:
    """Start or resume the run, strike until it ends or is struck itself; its exit code."""
    command = [
        *(sys.executable, "-m", "sao_gym.run", "scenario", "repo-fix", "--resume"),
        *("--out", str(directory), "--quiet", "--no-report"),
        *("--set", f"budget.rollouts={given.rollouts}", "--set", "evaluation.every=null"),
        *("--set", f"environment.params.sandbox={given.sandbox}"),
        *("--set", f"environment.params.boxes={given.boxes}"),
        *("--set", "failures.stop_above=1.0", "--set", "checkpoint.every=2"),
    ]
    environment = os.environ | {MARK: str(os.getpid())}
    run = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    log = directory / "events.jsonl"
    while run.poll() is None and not log.exists():
        time.sleep(0.1)
    until = time.monotonic() + given.owner_seconds
    while run.poll() is None:
        draw = killed.total()
        time.sleep(0.5 + 1.5 * rng.uniform(given.seed, "pause", draw))
        if time.monotonic() > until:
            run.kill()
            killed["run"] += run.wait() == -signal.SIGKILL
            wait_for_end()
            continue
        targets = workers(run.pid) if given.sandbox == "bubblewrap" else containers()
        if targets:
            target = targets[int(rng.uniform(given.seed, "target", draw) * len(targets))]
            killed["worker" if given.sandbox == "bubblewrap" else "container"] += strike(target)
    return run.returncode


def strike(target: int | str) -> bool:
    if isinstance(target, int):
        try:
            os.kill(target, signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True
    return subprocess.run(["docker", "kill", target], capture_output=True).returncode == 0


def workers(run: int) -> list[int]:
    """Children of the run, and theirs, but for the learner."""
    found, frontier = [], [run]
    while frontier:
        parent = frontier.pop()
        for child in children(parent):
            line = command_line(child)
            if b"multiprocessing" in line:
                continue
            found.append(child)
            frontier.append(child)
    return found


def children(pid: int) -> list[int]:
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        return [int(n) for task in tasks for n in (task / "children").read_text().split()]
    except OSError:
        return []


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def containers() -> list[str]:
    return docker("ps", "-q", "--filter", "label=sao-gym.owner")


def docker(*words: str) -> list[str]:
    return subprocess.run(["docker", *words], capture_output=True, text=True).stdout.split()


def ours() -> list[int]:
    """Living processes that inherited our mark."""
    mark, found = f"{MARK}={os.getpid()}".encode(), []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            if state != "Z" and mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def wait_for_end(patience: float = 10.0) -> None:
    deadline = time.monotonic() + patience
    while ours() and time.monotonic() < deadline:
        time.sleep(0.05)


def left(sandbox: str) -> set[str]:
    """What there is of ours on this machine."""
    found = {f"process {pid}" for pid in ours()}
    found |= {f"box process {pid}" for pid, _ in owner.marked(owner.MARK.encode())}
    found |= {str(path) for path in Path(tempfile.gettempdir()).glob(f"{owner.FOLDER}*")}
    if sandbox == "docker":
        found |= {f"container {n}" for n in docker("ps", "-aq", "--filter", "label=sao-gym.owner")}
        found |= {f"volume {n}" for n in docker("volume", "ls", "-q")}
        found |= {f"network {n}" for n in docker("network", "ls", "-q")}
    return found


def accounted(directory: Path) -> tuple[Counter[int], Counter[str]]:
    """Fates by rollout, and failures by kind."""
    fates: Counter[int] = Counter()
    failed: Counter[str] = Counter()
    with (directory / "events.jsonl").open() as file:
        next(file)
        for event in map(json.loads, file):
            match event["event"]:
                case "RolloutStarted":
                    fates[event["rollout"]] += 0
                case "UpdateFinished":
                    fates.update(event["rollouts"])
                case "RolloutDropped":
                    fates[event["rollout"]] += 1
                case "RolloutFailed":
                    fates[event["rollout"]] += 1
                    failed[event["kind"]] += 1
    return fates, failed


if __name__ == "__main__":
    sys.exit(main())
