"""What the tests of sandboxes share: which kinds can be tested here, what stands in whose name."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sao_gym.sandboxes import base_image, bubblewrap, cgroups, docker, owner, reaper

KINDS = ("process", "bubblewrap", "docker")


def usable(kind: str) -> str:
    """The kind, or a skip that says why it cannot be tested here."""
    reason = {"bubblewrap": bubblewrap.unusable, "docker": docker.unusable}.get(kind)
    if reason is not None and (why := reason()) is not None:
        pytest.skip(f"{kind}: {why}")
    if kind == "docker" and (why := base_image.unusable()) is not None:
        pytest.skip(f"docker: {why}")
    return kind


def eventually(check: Callable[[], bool], seconds: float = 20.0) -> bool:
    """Whether something becomes true; no test depends on how soon."""
    end = time.monotonic() + seconds
    while not check():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def owned_by(pid: int) -> list[str]:
    """What stands on this machine in the name of a process."""
    whose = f"{pid}-"
    found = [f"process {n}" for n, text in reaper._processes() if text.startswith(whose)]
    found += [f"group {text}" for text, _ in cgroups.left() if text.startswith(whose)]
    for folder in Path(tempfile.gettempdir()).glob(f"{owner.FOLDER}*"):
        mark = folder / "owner"
        if mark.is_file() and mark.read_text().startswith(whose):
            found.append(str(folder))
    if docker.unusable() is None:
        import docker as sdk

        client = sdk.APIClient(version="auto")
        for container in client.containers(all=True, filters={"label": docker.OWNER}):
            if container["Labels"][docker.OWNER].startswith(whose):
                found.append(f"container {container['Id']}")
        client.close()
    return found
