"""Sandboxes: the three kinds behind the seam `sao_gym.sandbox`, and the choice between them."""

from __future__ import annotations

import time
from typing import Literal

from sao_gym.errors import InputError, MachineryError
from sao_gym.sandbox import BoxSpec, Sandbox

Kind = Literal["auto", "docker", "bubblewrap", "process"]


def open_sandbox(name: Kind = "auto", *, run: str = "") -> Sandbox:
    """A sandbox of this kind; what dead owners left is removed first.

    `auto`: Docker if an engine runs a box of the image `base`, else bubblewrap if it works, else
    plain processes; `isolation` tells the choice and its reason. `run` marks what is
    started (default: the time).

    Raises:
        InputError: the kind that was asked for does not work here.
    """
    from sao_gym.sandboxes import reaper

    run = run or time.strftime("%Y%m%d-%H%M%S")
    reaper.reap(docker=name in ("docker", "auto"))
    if name == "auto":
        return _best(run)
    reason = _unusable(name)
    if reason is not None:
        raise InputError(f"no {name} sandbox: {reason}")
    return _opened(name, run)


def _best(run: str) -> Sandbox:
    why: list[str] = []
    for name in ("docker", "bubblewrap"):
        reason = _unusable(name, with_base=True)
        if reason is None:
            sandbox = _opened(name, run)
            reason = _fails(sandbox)
            if reason is None:
                break
            sandbox.close()
        why.append(f"{name} was not taken: {reason}")
    else:
        sandbox = _opened("process", run)
    sandbox.isolation = "; ".join((sandbox.isolation, *why))
    return sandbox


def _fails(sandbox: Sandbox) -> str | None:
    """Why no box can be started: an engine that answers may still not run anything."""
    try:
        sandbox.start(BoxSpec()).close()
    except MachineryError as error:
        return str(error)
    return None


def _unusable(name: str, *, with_base: bool = False) -> str | None:
    """Why a kind does not work here; None if it does."""
    match name:
        case "docker":
            from sao_gym.sandboxes import base_image, docker

            return docker.unusable() or (base_image.unusable() if with_base else None)
        case "bubblewrap":
            from sao_gym.sandboxes import bubblewrap

            return bubblewrap.unusable()
        case _:
            return None


def _opened(name: str, run: str) -> Sandbox:
    match name:
        case "docker":
            from sao_gym.sandboxes.docker import DockerSandbox

            return DockerSandbox(run=run)
        case "bubblewrap":
            from sao_gym.sandboxes.bubblewrap import BubblewrapSandbox

            return BubblewrapSandbox()
        case _:
            from sao_gym.sandboxes.process import ProcessSandbox

            return ProcessSandbox()
