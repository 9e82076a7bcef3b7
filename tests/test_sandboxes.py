"""Sandboxes: each kind held to what it promises, and the suite held to finding holes."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sandbox_kinds import KINDS, eventually, usable

from sao_gym.errors import InputError, MachineryError
from sao_gym.sandbox import BoxSpec, Sandbox
from sao_gym.sandboxes import (
    base_image,
    box,
    bubblewrap,
    cgroups,
    docker,
    open_sandbox,
    process,
    supervisor_system,
)
from sao_gym.sandboxes.suite import cases, promised, run_suite
from sao_gym.tree import Entry


@pytest.fixture(params=KINDS)
def kind(request) -> str:
    return usable(request.param)


@pytest.fixture
def sandbox(kind: str) -> Iterator[Sandbox]:
    opened = open_sandbox(kind, run="test")
    yield opened
    opened.close()


@pytest.fixture
def bubble() -> Iterator[Sandbox]:
    usable("bubblewrap")
    opened = bubblewrap.BubblewrapSandbox()
    yield opened
    opened.close()


# ------------------------------------------------------------------ the suite


def test_the_sandbox_keeps_what_it_promises(sandbox: Sandbox) -> None:
    outcomes = run_suite(sandbox)
    assert [outcome for outcome in outcomes if not outcome.ok] == []
    assert [outcome.name for outcome in outcomes] == promised(sandbox)


def test_only_the_process_sandbox_promises_less() -> None:
    assert len(cases()) == 35
    assert all(cases().values())
    assert set(cases()) - set(promised(process.ProcessSandbox())) == {
        *("network", "host_files", "host_processes", "capabilities", "privileges"),
        *("memory", "processes", "disk", "read_only", "supervisor"),
    }


def test_a_case_that_would_harm_the_machine_is_refused() -> None:
    sandbox = process.ProcessSandbox()
    with pytest.raises(InputError, match="'supervisor' needs isolation"):
        run_suite(sandbox, names=["supervisor"])
    with pytest.raises(InputError, match="no case 'memroy'; did you mean 'memory'"):
        run_suite(sandbox, names=["memroy"])


def without(arguments: list[str], *words: str) -> list[str]:
    """Arguments without a run of words."""
    for i in range(len(arguments)):
        if tuple(arguments[i : i + len(words)]) == words:
            return arguments[:i] + arguments[i + len(words) :]
    raise AssertionError(words)


def plant(hole: str, monkeypatch) -> None:
    """Take one wall of the bubblewrap sandbox away."""
    real, limits = bubblewrap._arguments, bubblewrap._rlimits
    changed = {
        "network": lambda a: [*a, "--share-net"],
        "host_files": lambda a: [*a, "--bind", tempfile.gettempdir(), tempfile.gettempdir()],
        "host_processes": lambda a: [*a, "--ro-bind", "/proc", "/proc"],
        "read_only": lambda a: without(a, "--remount-ro", "/"),
        "supervisor": lambda a: without(a, "--as-pid-1"),
        "disk": lambda a: [*a, "--tmpfs", "/tmp"],
    }.get(hole, list)
    monkeypatch.setattr(bubblewrap, "_arguments", lambda *given: changed(real(*given)))
    if hole in ("memory", "processes"):
        name = {"memory": "DATA", "processes": "NPROC"}[hole]
        monkeypatch.setattr(cgroups, "make", lambda *_: cgroups.Group({}))
        monkeypatch.setattr(
            bubblewrap, "_rlimits", lambda *a: {k: v for k, v in limits(*a).items() if k != name}
        )
    if hole == "environment":
        monkeypatch.setenv("PLANTED", "secret")
        monkeypatch.setitem(box.ENVIRONMENT, "PLANTED", "secret")
    if hole == "tree_line_endings":
        whole = box.packed

        def tidied(tree):
            unix = {p: e._replace(data=e.data.replace(b"\r\n", b"\n")) for p, e in tree.items()}
            return whole(unix)

        monkeypatch.setattr(box, "packed", tidied)
    planted = {
        "background": ("self._kill_all(child)", "pass"),
        "output": ("marker = f", "marker = '' and f"),
        "tree_modes": ("0o755 if executable else 0o644", "0o644"),
        "tree_git_folders": ('if name != b".git"', ""),
        "tree_long_paths": ("if len(inner) > LONGEST", "if False"),
    }.get(hole)
    if planted is not None:
        whole = box.source()
        text = box._text
        monkeypatch.setattr(box, "_text", lambda module: text(module).replace(*planted))
        assert box.source() != whole


HOLES = (
    *("network", "host_files", "host_processes", "memory", "processes", "disk", "read_only"),
    *("supervisor", "background", "output", "environment"),
    *("tree_line_endings", "tree_modes", "tree_git_folders", "tree_long_paths"),
)


@pytest.mark.parametrize("hole", HOLES)
def test_the_suite_finds_a_hole(hole: str, bubble: Sandbox, monkeypatch) -> None:
    plant(hole, monkeypatch)
    (outcome,) = run_suite(bubble, names=[hole])
    assert not outcome.ok
    assert outcome.detail


# ------------------------------------------------------------------ boxes


def test_limits_without_control_groups(bubble: Sandbox, monkeypatch) -> None:
    monkeypatch.setattr(cgroups, "make", lambda *_: cgroups.Group({}))
    outcomes = run_suite(bubble, names=["memory", "processes", "disk"])
    assert [outcome for outcome in outcomes if not outcome.ok] == []


def test_what_is_kept_of_output() -> None:
    kept = supervisor_system.Kept(10)
    for part in (b"abc", b"defgh", b"i" * 30, b"j", b"klmnop"):
        kept.add(part)
    text, cut = kept.whole()
    assert (text, cut) == (b"abcde\n[... 35 bytes of output dropped ...]\nlmnop", True)
    kept = supervisor_system.Kept(10)
    kept.add(b"0123456789")
    assert kept.whole() == (b"0123456789", False)


def test_a_box_that_was_killed_says_so(sandbox: Sandbox, kind: str) -> None:
    opened = sandbox.start(BoxSpec())
    link = opened._link
    if kind == "docker":
        link._client.kill(link._container)
    else:
        for pid in (*children(link.pid), link.pid):
            os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: gone(opened))
    with pytest.raises(MachineryError) as caught:
        opened.run(["true"], seconds=5)
    assert caught.value.kind == "box"
    opened.close()
    opened.close()


def gone(opened) -> bool:
    try:
        opened.run(["true"], seconds=5)
    except MachineryError:
        return True
    return False


def children(pid: int) -> list[int]:
    try:
        return [int(n) for n in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def test_closing_ends_a_command_that_runs(sandbox: Sandbox) -> None:
    opened = sandbox.start(BoxSpec())
    caught: list[MachineryError] = []

    def run() -> None:
        try:
            opened.run(["sleep", "600"], seconds=600)
        except MachineryError as error:
            caught.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    time.sleep(0.3)
    opened.close()
    thread.join(30)
    assert [error.kind for error in caught] == ["box"]


def test_paths_that_leave_the_folder_are_refused() -> None:
    for path in ("../x", "a/../../x", "/x", "a//b", ""):
        with pytest.raises(ValueError, match="is not a path below the root"):
            box.packed({path: Entry("file")})
    forged = box._ENTRY.pack(b"f", 0, 4, 0) + b"../x" + box._ENTRY.pack(b"e", 0, 0, 0)
    with pytest.raises(MachineryError, match="a broken tree came back"):
        box.unpacked(forged)
    with pytest.raises(MachineryError, match="a broken tree came back"):
        box.unpacked(box._ENTRY.pack(b"f", 0, 1, 9) + b"x")


def test_an_image_that_is_missing(sandbox: Sandbox) -> None:
    with pytest.raises(MachineryError) as caught:
        sandbox.start(BoxSpec(image="sao-gym-test/none:1"))
    assert caught.value.kind == "image"
    assert "sao-gym-test/none:1" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_an_engine_that_is_overloaded_is_asked_again(monkeypatch) -> None:
    usable("docker")
    from docker.errors import APIError
    from requests import Response

    def status(code: int) -> Response:
        response = Response()
        response.status_code = code
        return response

    def failing(*errors: Exception):
        left = list(errors)

        def call() -> str:
            if left:
                raise left.pop(0)
            return f"after {len(errors)}"

        return call

    monkeypatch.setattr(docker, "_PAUSES", (0.0, 0.0))
    busy = APIError("busy", response=status(503))
    assert docker.tried(failing(busy, TimeoutError())) == "after 2"
    for errors in ([busy] * 3, [APIError("no", response=status(400))], [TimeoutError()] * 3):
        with pytest.raises(MachineryError) as caught:
            docker.tried(failing(*errors))
        assert caught.value.kind == "engine"


def test_the_base_image_is_named_after_what_is_in_it() -> None:
    one = base_image.content_hash({"git": "1:2.39", "python3": "3.11"})
    assert one == base_image.content_hash({"python3": "3.11", "git": "1:2.39"})
    assert one != base_image.content_hash({"git": "1:2.40", "python3": "3.11"})
