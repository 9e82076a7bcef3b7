"""Boxes made of Linux namespaces by `bwrap`: no daemon, no image, nothing on disk.

    the supervisor is process 1 of the box; WORK and /tmp are file systems in memory that live as
    long as it does, so that closing, or dying, removes everything

The box sees the system folders of this machine, read-only, and its own WORK, /tmp and /proc.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from functools import cache

from sao_gym.errors import MachineryError
from sao_gym.sandbox import WORK, Box, BoxLimits, BoxSpec
from sao_gym.sandboxes import cgroups, owner
from sao_gym.sandboxes.box import ENVIRONMENT, Boxes, SupervisedBox, source
from sao_gym.sandboxes.local import LocalLink

NOBODY = 65534
_SYSTEM = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_PASSWD = f"root:x:0:0::/:/bin/sh\nnobody:x:{NOBODY}:{NOBODY}::/tmp:/bin/sh\n"
_GROUP = f"root:x:0:\nnogroup:x:{NOBODY}:\n"
_HOSTS = "127.0.0.1 localhost\n::1 localhost\n"


class BubblewrapSandbox:
    """`sao_gym.sandbox.Sandbox` over namespaces."""

    name = "bubblewrap"

    def __init__(self) -> None:
        held = f"limits on disk{_held()}"
        self.isolation = (
            "bubblewrap: own namespaces, no network, no capabilities, this machine's system "
            f"folders read-only and nothing else of it; {held}; the kernel is shared"
        )
        self._boxes = Boxes()

    def start(self, spec: BoxSpec) -> Box:
        if spec.image != "base":
            raise MachineryError(
                "image", f"bubblewrap has no images, only `base`: {spec.image!r} needs Docker"
            )
        mine = owner.me().text()
        group = cgroups.make(spec.limits, mine)
        config = {"owner": owner.MARK + mine, "rlimits": _rlimits(spec.limits, group)}
        told, tell = os.pipe()
        files = [_file(text) for text in (_PASSWD, _GROUP, _HOSTS)]
        try:
            link = LocalLink(
                [
                    *("bwrap", "--info-fd", str(tell)),
                    *_arguments(spec, files),
                    *("--", "/usr/bin/env", "python3", "-I", "-S"),
                    *("-c", source(), json.dumps(config)),
                ],
                environment=ENVIRONMENT,
                removed=lambda _: group.remove(),
                files=[tell, *files],
                user=NOBODY if os.geteuid() == 0 else None,
            )
        except OSError as error:
            os.close(told)
            raise MachineryError("engine", f"bwrap does not start: {error}") from None
        finally:
            for fd in (tell, *files):
                os.close(fd)
        with os.fdopen(told, "rb") as info:
            try:
                box = SupervisedBox(link, spec, closed=self._boxes.forget)
            except MachineryError as error:
                raise MachineryError("engine", f"no box: {error}") from None
            # only the supervisor has run so far; what it starts is born into the group
            try:
                group.add(json.loads(info.read())["child-pid"])
            except (OSError, ValueError, KeyError) as error:
                box.close()
                raise MachineryError("engine", f"no control group: {error}") from None
        return self._boxes.add(box)

    def close(self) -> None:
        self._boxes.close()


def _held() -> str:
    """What else is limited on this machine, for the line that users read."""
    controllers = cgroups.usable()
    memory = "memory" if "memory" in controllers else "memory of each process (not of all)"
    cpu = " and CPU" if "cpu" in controllers else ", but not on CPU"
    return f", {memory}, processes{cpu}"


@cache
def unusable() -> str | None:
    """Why bubblewrap does not work here; None if it does."""
    if shutil.which("bwrap") is None:
        return "bwrap is not installed (package bubblewrap)"
    sandbox = BubblewrapSandbox()
    try:
        sandbox.start(BoxSpec()).close()
    except MachineryError as error:
        return str(error)
    return None


def shares(disk: int) -> tuple[int, int, int]:
    """How `limits.disk` is divided between WORK, /tmp and /dev/shm, in bytes."""
    shared = min(disk // 16, 16 << 20)
    return disk - disk // 4 - shared, disk // 4, shared


@cache
def _help() -> str:
    return subprocess.run(["bwrap", "--help"], capture_output=True, text=True).stdout


def _arguments(spec: BoxSpec, files: list[int]) -> list[str]:
    work, temporary, shared = map(str, shares(spec.limits.disk))
    passwd, group, hosts = map(str, files)
    arguments = [
        *("--unshare-all", "--unshare-user", "--new-session", "--as-pid-1"),
        *("--uid", str(NOBODY), "--gid", str(NOBODY), "--hostname", "sandbox"),
        *("--ro-bind", "/usr", "/usr"),
        *_system_folders(),
        *("--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"),
        *("--ro-bind-try", "/etc/alternatives", "/etc/alternatives"),
        *("--ro-bind-data", passwd, "/etc/passwd"),
        *("--ro-bind-data", group, "/etc/group"),
        *("--ro-bind-data", hosts, "/etc/hosts"),
        *("--proc", "/proc", "--dev", "/dev"),
        *("--perms", "1777", "--size", shared, "--tmpfs", "/dev/shm", "--remount-ro", "/dev"),
        *("--perms", "1777", "--size", temporary, "--tmpfs", "/tmp"),
        *(part for at in (WORK, *spec.empty) for part in ("--size", work, "--tmpfs", at)),
        *("--remount-ro", "/", "--chdir", WORK),
    ]
    if "--disable-userns" in _help():  # since bubblewrap 0.8
        arguments.insert(0, "--disable-userns")
    return arguments


def _system_folders() -> list[str]:
    """Links into /usr, as on a merged system, or the folders themselves."""
    arguments: list[str] = []
    for folder in _SYSTEM:
        if os.path.islink(folder):
            arguments += ["--symlink", os.readlink(folder), folder]
        elif os.path.isdir(folder):
            arguments += ["--ro-bind", folder, folder]
    if os.path.exists("/usr/bin/python3") and os.path.isdir("/usr/local"):
        # what was installed by hand; as in a container, `base` is the distribution's own
        arguments += ["--size", "4096", "--tmpfs", "/usr/local", "--remount-ro", "/usr/local"]
    return arguments


def _rlimits(limits: BoxLimits, group: cgroups.Group) -> dict[str, int]:
    """What the groups do not hold. The count of processes is that of the box's own user space."""
    rlimits = {"FSIZE": limits.disk, "CORE": 0}
    if "memory" not in group.folders:
        rlimits["DATA"] = limits.memory
    if "pids" not in group.folders:
        rlimits["NPROC"] = limits.processes + 1
    return rlimits


def _file(text: str) -> int:
    fd = os.memfd_create("etc")
    os.write(fd, text.encode())
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
