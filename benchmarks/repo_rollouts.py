"""Repository fixes end to end: whole short rollouts a second, by kind of sandbox.

    python benchmarks/repo_rollouts.py [--rollouts 60] [--threads 4] [--json]

A rollout is: reset, search, edit, run the tests, submit and grade. `fresh`: the tests run in a
container (or other box) of the rollout's own and the fix is graded in another, both from the warm
pool; `warm`: both are forked in boxes that wait. A kind that does not work here is left out, and
said. `busy` is the share of all cores' time.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from sao_gym.envs.repo_fix import RepoFix
from sao_gym.envs.repo_fix.bench import shared_bench
from sao_gym.sandboxes import bubblewrap, docker


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rollouts", type=int, default=60, help="fresh; warm: ten times as many")
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found: dict[str, dict[str, float]] = {}
    for kind, reason in (("docker", docker.unusable()), ("bubblewrap", bubblewrap.unusable())):
        if reason is not None:
            print(f"{kind} left out: {reason}")
            continue
        for boxes, count in (("fresh", given.rollouts), ("warm", 10 * given.rollouts)):
            found[f"{kind}, {boxes}"] = measured(kind, boxes, count, given.threads)
    if given.json:
        print(json.dumps(found, indent=2))
        return
    for name, figures in found.items():
        print(f"{name:20}", *(f"{what} {value:.2f}" for what, value in figures.items()), sep="   ")


def measured(kind: str, boxes: str, count: int, threads: int) -> dict[str, float]:
    rollout(kind, boxes, 0)  # the image, the pool, the interpreters
    time.sleep(2)
    busy, began = busy_seconds(), time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        rewards = list(pool.map(lambda seed: rollout(kind, boxes, seed), range(1, count + 1)))
    seconds = time.perf_counter() - began
    busy = (busy_seconds() - busy) / seconds / (os.cpu_count() or 1)
    shared_bench(kind, boxes).close()
    return {"rollouts/s": count / seconds, "solved": sum(rewards) / count, "busy": busy}


def rollout(kind: str, boxes: str, seed: int) -> float:
    """Play the reference solution; its reward."""
    env = RepoFix(sandbox=kind, boxes=boxes)
    env.reset(seed=seed)
    ended = False
    while not ended:
        _, reward, terminated, truncated, _ = env.step(env.reference_action())
        ended = terminated or truncated
    return reward


def busy_seconds() -> float:
    """CPU seconds of this machine so far, all processes together."""
    user, nice, system = map(int, Path("/proc/stat").read_text().split()[1:4])
    return (user + nice + system) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
