"""Boxes that are Docker containers, one each.

Its first process is the supervisor, and the connection to its standard input and output is the
channel: no `docker exec` for each command, and when the owner dies the engine closes the input,
the container ends and is removed.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from sao_gym.errors import MachineryError
from sao_gym.sandbox import WORK, Box, BoxSpec
from sao_gym.sandboxes import base_image, owner
from sao_gym.sandboxes.box import ENVIRONMENT, Boxes, SupervisedBox, source
from sao_gym.sandboxes.bubblewrap import NOBODY, shares

RUN, OWNER, CREATED = "sao-gym.run", "sao-gym.owner", "sao-gym.created"
"""Labels of a container."""

_OURS = 24 << 20  # bytes that the supervisor itself may take
_PAUSES = (0.2, 0.5, 1.0, 2.0, 4.0)  # seconds before each further attempt
_SECONDS = 30  # for the engine to answer a call
_STANDARD_OUTPUT = 1

T = TypeVar("T")


def unusable() -> str | None:
    """Why no engine can be used here; None if one answers."""
    try:
        import docker
    except ImportError:
        return "the Docker SDK is not installed (pip install 'sao-gym[repo]')"
    try:
        _knock(docker.utils.parse_host(os.environ.get("DOCKER_HOST")))
        with contextlib.closing(docker.APIClient(timeout=5, version="auto")) as client:
            client.ping()
    except (docker.errors.DockerException, OSError) as error:
        return f"no Docker engine answers ({_line(error)})"
    return None


def _knock(host: str) -> None:
    """Raise OSError if nobody listens at a local socket: the SDK would leave its own one open."""
    scheme, _, path = host.partition("://")
    if scheme == "http+unix":
        with socket.socket(socket.AF_UNIX) as probe:
            probe.connect(path)


class DockerSandbox:
    """`sao_gym.sandbox.Sandbox` over a Docker engine."""

    name = "docker"

    isolation = (
        "docker: one container for each box, no network, no capabilities, read-only image (unless "
        "a task's image needs it otherwise), limits on memory, processes, CPU and disk; the kernel "
        "is shared"
    )

    def __init__(self, *, run: str = "") -> None:
        import docker

        self._client = docker.APIClient(timeout=_SECONDS, version="auto")
        self._run = run
        self._boxes = Boxes()
        # more starts at once only make each of them slower, until they fail
        self._starting = threading.BoundedSemaphore(os.cpu_count() or 1)
        self._base = ""

    def start(self, spec: BoxSpec) -> Box:
        with self._starting:
            image = self._image(spec)
            return self._boxes.add(tried(lambda: self._started(image, spec)))

    def close(self) -> None:
        self._boxes.close()
        self._client.close()

    def _image(self, spec: BoxSpec) -> str:
        if spec.image != "base":
            return spec.image
        if not self._base:
            self._base = tried(lambda: base_image.ensure(self._client))
        return self._base

    def _started(self, image: str, spec: BoxSpec) -> SupervisedBox:
        made = self._create(image, spec)
        try:
            connection = self._client.attach_socket(
                made, params={"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
            )
            link = DockerLink(self._client, made, connection)
        except BaseException:
            remove(self._client, made)
            raise
        try:
            self._client.start(made)
            return SupervisedBox(link, spec, closed=self._boxes.forget)
        except MachineryError as error:
            raise MachineryError("engine", f"no box: {error}") from None
        except Exception as error:
            link.close()
            if "executable file not found" in str(error):
                raise MachineryError(
                    "image", f"image {image!r} has no python3; boxes need Python 3.7 or newer"
                ) from None
            raise

    def _create(self, image: str, spec: BoxSpec) -> str:
        import docker

        mine = owner.me()
        config = {"owner": owner.MARK + mine.text(), "rlimits": {"CORE": 0}}
        try:
            made = self._client.create_container(
                image,
                entrypoint=["python3", "-I", "-S", "-c", source()],
                command=[json.dumps(config)],
                environment=_environment(spec),
                hostname="sandbox",
                labels={RUN: self._run, OWNER: mine.text(), CREATED: str(mine.created)},
                network_disabled=True,
                stdin_open=True,
                tty=False,
                user=f"{_user(spec)}:{_user(spec)}",
                working_dir=WORK,
                host_config=self._host_config(spec),
            )
        except docker.errors.ImageNotFound:
            raise MachineryError(
                "image", f"no image {image!r} here: `docker pull` or `docker build` it"
            ) from None
        return str(made["Id"])

    def _host_config(self, spec: BoxSpec) -> Any:
        limits, user = spec.limits, _user(spec)
        work, temporary, shared = shares(limits.disk)
        folder = f"rw,exec,nosuid,nodev,size={work},mode=755,uid={user},gid={user}"
        memory = limits.memory + _OURS
        return self._client.create_host_config(
            auto_remove=True,
            cap_drop=["ALL"],
            cgroupns="private",
            init=False,  # the supervisor is
            ipc_mode="private",
            log_config={"type": "none"},
            mem_limit=memory,
            memswap_limit=memory,
            nano_cpus=int(limits.cpus * 1e9),
            network_mode="none",
            pids_limit=limits.processes + 1,
            read_only=not spec.whole,
            security_opt=["no-new-privileges"],
            shm_size=max(shared, 1 << 16),
            tmpfs={
                **dict.fromkeys((WORK, *spec.empty), folder),
                "/tmp": f"rw,exec,nosuid,nodev,size={temporary},mode=1777",
                "/dev/mqueue": "ro,noexec,nosuid,nodev,size=4k,mode=755",
            },
        )


class DockerLink:
    """`Link` to a container's first process, over an attached connection."""

    def __init__(self, client: Any, container: str, connection: Any) -> None:
        self._client, self._container, self._connection = client, container, connection
        self._socket: socket.socket = getattr(connection, "_sock", connection)
        self._read, self._left = bytearray(), 0
        self._said = bytearray()

    def send(self, data: bytes, deadline: float) -> None:
        self._socket.settimeout(_until(deadline))
        self._socket.sendall(data)

    def receive(self, size: int, deadline: float) -> bytes:
        while len(self._read) < size:
            self._more(deadline)
        data = bytes(self._read[:size])
        del self._read[:size]
        return data

    def wake(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> str:
        with contextlib.suppress(OSError):
            self._connection.close()
        self._socket.close()
        remove(self._client, self._container)
        return self._said.decode("utf-8", "replace")

    def _more(self, deadline: float) -> None:
        """Take in one frame of the engine: its stream, three zeros, its length, its bytes."""
        stream, size = _header(self._exactly(8, deadline))
        data = self._exactly(size, deadline)
        if stream == _STANDARD_OUTPUT:
            self._read += data
        else:
            self._said = (self._said + data)[-2000:]

    def _exactly(self, size: int, deadline: float) -> bytes:
        parts = bytearray(size)
        view, got = memoryview(parts), 0
        while got < size:
            self._socket.settimeout(_until(deadline))
            more = self._socket.recv_into(view[got:])
            if not more:
                raise EOFError("the container ended")
            got += more
        return bytes(parts)


def remove(client: Any, container: str) -> None:
    """Kill and remove a container; that it is gone or going is as good."""
    import docker

    for pause in _PAUSES:
        try:
            client.remove_container(container, force=True, v=True)
            return
        except docker.errors.NotFound:
            return
        except docker.errors.APIError as error:
            if error.status_code == 409:  # it is being removed
                return
            time.sleep(pause)
        except OSError:
            time.sleep(pause)


def remove_dead(max_age: float) -> int:
    """Remove containers of ours that no living owner has; how many."""
    import docker

    count = 0
    with contextlib.closing(docker.APIClient(timeout=_SECONDS, version="auto")) as client:
        try:
            found = client.containers(all=True, filters={"label": OWNER})
        except (docker.errors.DockerException, OSError):
            return 0
        for container in found:
            whose = owner.parse(container["Labels"][OWNER])
            if whose is not None and owner.dead(whose, max_age=max_age, here=False):
                remove(client, container["Id"])
                count += 1
    return count


def tried(call: Callable[[], T]) -> T:
    """The answer of an engine that may be overloaded.

    Raises MachineryError(`engine`) when pauses did not help, or it says no.
    """
    import docker

    last: Exception | None = None
    for pause in (*_PAUSES, None):
        try:
            return call()
        except docker.errors.APIError as error:
            last = error
            if error.status_code is not None and error.status_code < 500:
                break
        except (docker.errors.DockerException, OSError) as error:
            last = error
        except MachineryError as error:
            if error.kind != "engine":
                raise
            last = error
        if pause is not None:
            # apart, so that those who were refused together do not come back together
            time.sleep(pause * random.SystemRandom().uniform(0.5, 1.5))
    raise MachineryError("engine", f"the Docker engine: {_line(last)}")


def _user(spec: BoxSpec) -> int:
    return 0 if spec.whole else NOBODY


def _environment(spec: BoxSpec) -> dict[str, str]:
    """The image's own PATH stays; the rest is ours, then the user's."""
    ours = {key: value for key, value in ENVIRONMENT.items() if key != "PATH"}
    return {**ours, **spec.environment}


def _header(data: bytes) -> tuple[int, int]:
    return data[0], int.from_bytes(data[4:8], "big")


def _until(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _line(error: object) -> str:
    explained = getattr(error, "explanation", None)
    text = str(explained or error).splitlines()
    return text[0] if text else type(error).__name__
