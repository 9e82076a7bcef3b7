"""What sandboxes cost: starting a box, taking one from a warm pool, running a command.

    python benchmarks/sandbox.py [--repetitions N] [--json]

A kind that does not work here is left out, and said.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

from sao_gym.sandbox import Box, BoxSpec, Sandbox
from sao_gym.sandboxes import bubblewrap, docker
from sao_gym.sandboxes.pool import WarmPool
from sao_gym.sandboxes.process import ProcessSandbox
from sao_gym.tree import Entry

TREE = {f"package/module{i}.py": Entry("file", b"x = 1\n" * 200) for i in range(20)}
COMMANDS = 5  # of a short rollout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found: dict[str, dict[str, float]] = {}
    for sandbox in sandboxes():
        found[sandbox.name] = measured(sandbox, options.repetitions)
        sandbox.close()
    if options.json:
        print(json.dumps(found, indent=2))
        return
    for name, figures in found.items():
        print(name)
        for what, value in figures.items():
            print(f"  {what:44} {value:8.1f}")


def sandboxes() -> list[Sandbox]:
    usable: list[Sandbox] = [ProcessSandbox()]
    for name, reason in (("bubblewrap", bubblewrap.unusable()), ("docker", docker.unusable())):
        if reason is not None:
            print(f"{name} left out: {reason}")
        elif name == "docker":
            usable.append(docker.DockerSandbox(run="benchmark"))
        else:
            usable.append(bubblewrap.BubblewrapSandbox())
    return usable


def measured(sandbox: Sandbox, repetitions: int) -> dict[str, float]:
    """Medians in ms, and rollouts a second."""
    sandbox.start(BoxSpec()).close()  # the image, the first time
    starts, closes = [], []
    for _ in range(repetitions):
        began = time.perf_counter()
        box = sandbox.start(BoxSpec())
        started = time.perf_counter()
        box.close()
        starts.append(started - began)
        closes.append(time.perf_counter() - started)
    figures = {"start, ms": _ms(starts), "close, ms": _ms(closes)}
    box = sandbox.start(BoxSpec())
    put = [_took(lambda: box.put(TREE)) for _ in range(repetitions)]
    got = [_took(box.get) for _ in range(repetitions)]
    figures |= {"put 20 files, ms": _ms(put), "get 20 files, ms": _ms(got)}
    figures |= _commands(sandbox, box, repetitions * 5)
    box.close()
    return figures | _pooled(sandbox, repetitions)


def _commands(sandbox: Sandbox, box: Box, count: int) -> dict[str, float]:
    """`true` in the box, and by turns through the engine's own exec where there is one."""
    ours: list[float] = []
    bare: list[float] = []
    link = getattr(box, "_link")  # noqa: B009  the container is nobody else's business
    for _ in range(count):
        ours.append(_took(lambda: box.run(["true"], seconds=10)))
        if sandbox.name == "docker":
            bare.append(_took(lambda: _exec(link)))
    figures = {"run `true`, ms": _ms(ours)}
    if bare:
        figures |= {"docker exec `true`, ms": _ms(bare), "overhead, ms": _ms(ours) - _ms(bare)}
    return figures


def _exec(link: docker.DockerLink) -> None:
    made = link._client.exec_create(link._container, ["true"])
    link._client.exec_start(made["Id"])


def _pooled(sandbox: Sandbox, repetitions: int) -> dict[str, float]:
    """Short rollouts one after the other: take a box, put, commands, get, give it back."""
    figures = {}
    for what, size in (("without pool", 0), ("with a pool of 4", 4)):
        pool = WarmPool(sandbox, BoxSpec(), size) if size else None
        source: Sandbox = pool or sandbox
        if pool is not None:
            pool.wait()
        waits = []
        began = time.perf_counter()
        for _ in range(repetitions):
            start = time.perf_counter()
            box = source.start(BoxSpec())
            waits.append(time.perf_counter() - start)
            box.put(TREE)
            for _ in range(COMMANDS):
                box.run(["sleep", "0.05"], seconds=10)
            box.get()
            box.close()
        took = time.perf_counter() - began
        figures[f"{what}: mean wait for a box, ms"] = statistics.fmean(waits) * 1e3
        figures[f"{what}: rollouts/s, one at a time"] = repetitions / took
        if pool is not None:
            pool.close()
    return figures


def _took(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _ms(seconds: list[float]) -> float:
    return statistics.median(seconds) * 1e3


if __name__ == "__main__":
    main()
