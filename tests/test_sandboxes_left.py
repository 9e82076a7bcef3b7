"""Sandboxes: nothing is left, whoever is killed; the pool; the command."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from sandbox_kinds import KINDS, eventually, owned_by, usable

from sao_gym import conformance
from sao_gym.errors import InputError, MachineryError
from sao_gym.sandbox import BoxLimits, BoxSpec, Sandbox
from sao_gym.sandboxes import base_image, bubblewrap, docker, open_sandbox, owner, process, reaper
from sao_gym.sandboxes.pool import WarmPool
from sao_gym.sandboxes.suite import Outcome
from sao_gym.tree import Entry


@pytest.fixture(params=KINDS)
def kind(request) -> str:
    return usable(request.param)


@pytest.fixture
def bubble() -> Iterator[Sandbox]:
    usable("bubblewrap")
    opened = bubblewrap.BubblewrapSandbox()
    yield opened
    opened.close()


# ------------------------------------------------------------------ nothing is left

OWNER = """
import os, sys, time
from sao_gym.sandbox import BoxSpec
from sao_gym.sandboxes import open_sandbox
if __name__ == "__main__":
    box = open_sandbox(sys.argv[1], run="test-owner").start(BoxSpec())
    if sys.argv[2] == "forks" and os.fork() == 0:
        time.sleep(600)  # holds the channel, as a worker process may
    print("ready", flush=True)
    box.run(["sh", "-c", "setsid sleep 601 & setsid setsid sleep 602 & sleep 603"], seconds=600)
"""


@pytest.mark.parametrize("how", ["alone", "forks"])
def test_a_killed_owner_leaves_nothing(kind: str, how: str) -> None:
    started = subprocess.Popen(
        [sys.executable, "-c", OWNER, kind, how], stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        assert started.stdout is not None
        assert started.stdout.readline() == b"ready\n"
        assert eventually(lambda: any("process" in found for found in owned_by(started.pid)))
        time.sleep(0.3)
        os.kill(started.pid, signal.SIGKILL)
        started.wait()
        if how == "alone":  # ends by itself, but for a folder
            assert eventually(lambda: not any("process" in f for f in owned_by(started.pid)))
        reaper.reap(docker=True)
        assert eventually(lambda: owned_by(started.pid) == [])
    finally:
        os.killpg(started.pid, signal.SIGKILL) if how == "forks" else started.kill()
        started.wait()
        started.stdout.close()


def test_a_killed_supervisor_leaves_nothing() -> None:
    sandbox = process.ProcessSandbox()
    opened = sandbox.start(BoxSpec())
    thread = threading.Thread(
        target=lambda: failed(opened, ["sh", "-c", "setsid sleep 604 & wait"])
    )
    thread.start()
    assert eventually(lambda: len(sleepers()) == 1)
    os.kill(opened._link.pid, signal.SIGKILL)
    thread.join()
    assert eventually(lambda: not sleepers())
    assert owned_by(os.getpid()) == []


def failed(opened, command: list[str]) -> None:
    with pytest.raises(MachineryError):
        opened.run(command, seconds=600)


def sleepers() -> list[int]:
    return [pid for pid, _ in owner.marked(b"sleep\x00604\x00")]


def test_a_container_that_was_never_started_is_removed() -> None:
    usable("docker")
    sandbox = docker.DockerSandbox(run="test")
    gone = subprocess.Popen(["true"])
    gone.wait()
    dead = owner.me()._replace(pid=gone.pid, started=1)
    labels = {docker.OWNER: dead.text(), docker.RUN: "test"}
    image = sandbox._image(BoxSpec())
    made = sandbox._client.create_container(image, command=["true"], labels=labels)
    mine = sandbox.start(BoxSpec())
    assert owned_by(gone.pid) == [f"container {made['Id']}"]
    assert reaper.reap(docker=True) >= 1
    assert owned_by(gone.pid) == []
    assert mine.run(["true"], seconds=10).code == 0  # and the living one's stays
    sandbox.close()
    assert eventually(lambda: not any("container" in f for f in owned_by(os.getpid())))


def test_whether_an_owner_is_dead() -> None:
    mine = owner.me()
    assert owner.parse(mine.text()) == mine
    never = {"max_age": 1e9, "here": False}
    assert not owner.dead(mine, **never)
    assert owner.dead(mine._replace(started=mine.started + 1), **never)  # its number, again
    assert owner.dead(mine._replace(created=mine.created - 100), max_age=50, here=False)
    elsewhere = mine._replace(pid=1, started=0, space=mine.space + 1)
    assert not owner.dead(elsewhere, **never)
    assert not owner.dead(mine._replace(boot="other"), **never)
    assert owner.dead(mine._replace(boot="other"), max_age=1e9, here=True)
    for text in ("", "1-2-3", "a-1-b-2-3", "1-2-b-3-4-5"):
        assert owner.parse(text) is None


def test_boxes_whose_containers_are_killed_at_random() -> None:
    usable("docker")
    sandbox = docker.DockerSandbox(run="test-kills")
    client, draws = sandbox._client, random.Random(7)
    ends: Counter[str] = Counter()
    over = threading.Event()

    def rollouts(count: int) -> None:
        for _ in range(count):
            try:
                opened = sandbox.start(BoxSpec(limits=BoxLimits(disk=16 << 20)))
                for _ in range(4):
                    assert opened.run(["sleep", "0.1"], seconds=10).code == 0
                opened.close()
                ends["finished"] += 1
            except MachineryError as error:
                ends[error.kind] += 1

    def kill() -> None:
        while not over.wait(0.8):
            running = client.containers(filters={"label": f"{docker.RUN}=test-kills"})
            if running:
                docker.remove(client, draws.choice(running)["Id"])

    threads = [threading.Thread(target=rollouts, args=(10,)) for _ in range(3)]
    killer = threading.Thread(target=kill)
    for thread in (*threads, killer):
        thread.start()
    for thread in threads:
        thread.join()
    over.set()
    killer.join()
    assert sum(ends.values()) == 30
    assert set(ends) <= {"finished", "box", "engine"}
    assert ends["finished"] > 0
    assert ends["box"] > 0
    sandbox.close()
    assert eventually(lambda: not any("container" in f for f in owned_by(os.getpid())))


# ------------------------------------------------------------------ the pool, the commands


def test_a_pool_gives_a_fresh_box_each_time(bubble: Sandbox) -> None:
    pool = WarmPool(bubble, BoxSpec(), 2)
    seen = []
    for _ in range(5):
        taken = pool.start(BoxSpec())
        assert taken.get() == {}
        taken.put({"file": Entry("file", b"x")})
        seen.append(taken)
        taken.close()
        taken.close()
    other = pool.start(BoxSpec(environment={"A": "b"}))
    assert other.run(["sh", "-c", "echo $A"], seconds=10).output == b"b\n"
    pool.close()
    other.close()
    with pytest.raises(MachineryError):
        pool.take()
    assert bubble._boxes._open == set()


def test_a_pool_hands_on_what_starting_raised() -> None:
    pool = WarmPool(process.ProcessSandbox(), BoxSpec(image="other"), 1)
    for _ in range(2):
        with pytest.raises(MachineryError, match="has no images"):
            pool.take()
    pool.close()


@pytest.mark.parametrize("broken", [(), ("docker",), ("base",), ("docker", "bubblewrap")])
def test_auto_takes_the_best_that_works_and_says_why(broken: tuple[str, ...], monkeypatch) -> None:
    parts = {"docker": docker, "base": base_image, "bubblewrap": bubblewrap}
    for name, part in parts.items():
        reason = f"no {name} today" if name in broken else None
        monkeypatch.setattr(part, "unusable", lambda reason=reason: reason)
    if "docker" not in broken:
        monkeypatch.setattr(docker, "remove_dead", lambda _: 0)
        monkeypatch.setattr(docker, "DockerSandbox", lambda run: Named("docker"))
    chosen = open_sandbox("auto")
    best = {(): "docker", ("docker", "bubblewrap"): "process"}.get(broken, "bubblewrap")
    assert chosen.isolation.startswith(f"{best}: ")
    assert [name for name in parts if f"no {name} today" in chosen.isolation] == sorted(
        broken, key=list(parts).index
    )
    monkeypatch.setattr(docker, "unusable", lambda: "no docker today")
    with pytest.raises(InputError, match="no docker sandbox: no docker today"):
        open_sandbox("docker")


def test_auto_leaves_an_engine_that_answers_and_runs_nothing(monkeypatch) -> None:
    monkeypatch.setattr(docker, "remove_dead", lambda _: 0)
    for part in (docker, base_image, bubblewrap):
        monkeypatch.setattr(part, "unusable", lambda: None)
    engine = Named("docker", works=False)
    monkeypatch.setattr(docker, "DockerSandbox", lambda run: engine)
    monkeypatch.setattr(bubblewrap, "BubblewrapSandbox", lambda: Named("bubblewrap"))
    chosen = open_sandbox("auto")
    assert chosen.isolation == "bubblewrap: a double; docker was not taken: it runs nothing"
    assert engine.closed


class Named:
    def __init__(self, name: str, works: bool = True) -> None:
        self.name, self.isolation = name, f"{name}: a double"
        self.works, self.closed = works, False

    def start(self, spec: BoxSpec):
        if not self.works:
            raise MachineryError("engine", "it runs nothing")
        return SimpleNamespace(close=lambda: None)

    def close(self) -> None:
        self.closed = True


def test_a_failed_case_is_the_exit_code(capsys) -> None:
    outcomes = [Outcome("network", True, ""), Outcome("memory", False, "had it")]
    assert conformance.show(outcomes, {"network": "No network."}) == 1
    assert "1 passed, 1 failed" in capsys.readouterr().out
    assert conformance.show(outcomes[:1], {}) == 0


def test_check_sandbox_refuses_what_it_does_not_take() -> None:
    for arguments, says in (
        (["sandbox", "--kind", "process", "--image", "x"], "has no images"),
        (["sandbox", "--seed", "1"], "takes only --kind and --image"),
        (["default", "--kind", "docker"], "belong to `check sandbox`"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "sao_gym.run", "check", *arguments],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 2
        assert says in done.stderr
