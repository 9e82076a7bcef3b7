"""Boxes that are plain processes in a temporary folder: for code that is trusted.

Time limit, output limit and environment are kept, and nothing is left behind; but a command sees
and may change whatever the user can. `WORK` stands for a temporary folder: it is where commands
start and is understood in `cwd`, `put` and `get`; inside commands paths are the machine's own.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import time
from functools import partial

from sao_gym.errors import MachineryError
from sao_gym.sandbox import WORK, Box, BoxSpec
from sao_gym.sandboxes import owner
from sao_gym.sandboxes.box import ENVIRONMENT, Boxes, SupervisedBox, source
from sao_gym.sandboxes.local import LocalLink


class ProcessSandbox:
    """`sao_gym.sandbox.Sandbox` without isolation."""

    name = "process"
    isolation = (
        "process: no isolation at all; commands run as you, with your files and your network "
        "(for trusted code only)"
    )

    def __init__(self) -> None:
        self._boxes = Boxes()

    def start(self, spec: BoxSpec) -> Box:
        if spec.image != "base":
            raise MachineryError(
                "image", f"the process sandbox has no images, only `base`: {spec.image!r}"
            )
        if spec.empty:
            raise MachineryError("engine", f"the process sandbox has no folder {spec.empty[0]}")
        mine = owner.me().text()
        folder = owner.folder()
        for name in ("work", "tmp"):
            os.mkdir(os.path.join(folder, name))
        config = {"owner": owner.MARK + mine, "rlimits": _rlimits(spec)}
        link = LocalLink(
            [sys.executable, "-I", "-S", "-c", source(), json.dumps(config)],
            environment=_environment(folder, owner.MARK + mine),
            removed=partial(_removed, folder),
        )
        where = partial(_where, folder)
        return self._boxes.add(SupervisedBox(link, spec, where=where, closed=self._boxes.forget))

    def close(self) -> None:
        self._boxes.close()


def _where(folder: str, path: str) -> str:
    if path == WORK or path.startswith(f"{WORK}/"):
        return os.path.join(folder, "work") + path[len(WORK) :]
    return path


def _removed(folder: str, in_order: bool) -> None:
    """Remove the folder, and what a supervisor that was killed itself could not kill."""
    for _ in range(10):
        left = [] if in_order else [pid for pid, _ in owner.marked(f"{folder}/".encode())]
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if not left:
            break
        time.sleep(0.01)
    shutil.rmtree(folder, ignore_errors=True)


def _rlimits(spec: BoxSpec) -> dict[str, int]:
    return {"DATA": spec.limits.memory, "FSIZE": spec.limits.disk, "CORE": 0}


def _environment(folder: str, mark: str) -> dict[str, str]:
    """Not the user's; `mark` finds a process that outlived its supervisor."""
    temporary = os.path.join(folder, "tmp")
    path = ENVIRONMENT["PATH"]
    if shutil.which("python3", path=path) is None:
        path = f"{os.path.dirname(sys.executable)}:{path}"
    return ENVIRONMENT | {
        "PATH": path,
        "HOME": temporary,
        "TMPDIR": temporary,
        "SAO_GYM_BOX": mark,
    }
