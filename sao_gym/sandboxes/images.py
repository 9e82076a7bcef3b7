"""Images besides `base`, for the Docker sandbox: pulled by name, or built from a Dockerfile.

    name    --pull, unless the engine has it-->        image
    folder  --build, unless its content has been-->    image  sao-gym/built:HASH

The engine's own network is used, if it has one. What was built stays until somebody removes it:
`docker rmi $(docker images -q --filter label=sao-gym.built)`.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from sao_gym.errors import MachineryError
from sao_gym.tree import digest, read_folder

BUILT = "sao-gym.built"
"""Label of an image that was built here."""

REPOSITORY = "sao-gym/built"
_SECONDS = 30  # for the engine to answer a call
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_NO_OUTPUT = re.compile(r"(Step \d+/\d+ :|Removing intermediate container| ---> )")


def pull(name: str) -> None:
    """Have the engine fetch an image that it has not, however long that takes.

    Raises MachineryError: `image`, it cannot be had; `engine`.
    """
    from docker.errors import APIError, ImageNotFound

    with _engine() as client:
        with contextlib.suppress(ImageNotFound):
            client.inspect_image(name)
            return
        try:
            error, _ = _told(client.pull(name, stream=True, decode=True))
        except APIError as refused:
            error = _line(refused)
    if error:
        raise MachineryError("image", f"no image {name!r} here, and no pull: {error}")


def build(folder: Path, *, seconds: float) -> str:
    """The name of the image that the folder's Dockerfile makes; the folder is the build's context.

    Built once for the same content: a tag in `FROM` that moves is not seen. It is the classic
    builder, without what BuildKit adds (`RUN --mount`). `seconds`: so long a step may say nothing.
    Raises MachineryError: `image` with the builder's last words; `engine`.
    """
    from docker.errors import APIError, ImageNotFound

    name = f"{REPOSITORY}:{digest(read_folder(folder, skip=()))[:16]}"
    with _engine() as client:
        with contextlib.suppress(ImageNotFound):
            client.inspect_image(name)
            return name
        try:
            answers = client.build(
                path=str(folder),
                tag=name,
                labels={BUILT: "1"},
                rm=True,
                forcerm=True,
                timeout=seconds,
                decode=True,
            )
            error, said = _told(answers)
        except APIError as refused:
            error, said = _line(refused), ""
    if error:
        last = f" ({said})" if said else ""
        raise MachineryError("image", f"Dockerfile: the build failed: {error}{last}")
    return name


def workdir(name: str) -> str:
    """The working directory that an image names; "/" if none. Raises MachineryError."""
    with _engine() as client:
        return str(client.inspect_image(name)["Config"].get("WorkingDir") or "/")


@contextlib.contextmanager
def _engine() -> Iterator[Any]:
    """A client of our own, closed at the end; what goes wrong is a MachineryError(`engine`)."""
    import docker
    from urllib3.exceptions import HTTPError  # the SDK lets it through where it reads a stream

    try:
        with contextlib.closing(docker.APIClient(timeout=_SECONDS, version="auto")) as client:
            yield client
    except (docker.errors.DockerException, OSError, HTTPError) as error:
        raise MachineryError("engine", f"the Docker engine: {_line(error)}") from None


def _told(answers: Iterable[Mapping[str, Any]]) -> tuple[str, str]:
    """The error in what the engine says, "" if none; and the last line that a step printed."""
    text = ""
    for answer in answers:
        if "error" in answer:
            lines = _COLOUR.sub("", text).splitlines()
            printed = [p for p in lines if p.strip() and not _NO_OUTPUT.match(p)]
            return _line(answer["error"]), _line("".join(printed[-1:]))
        text = (text + str(answer.get("stream", "")))[-4000:]
    return "", ""


def _line(error: object) -> str:
    """One line; of a long one the end, where a failed command's exit code is."""
    text = _COLOUR.sub("", str(getattr(error, "explanation", None) or error))
    shown = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return shown if len(shown) <= 200 else f"...{shown[-197:]}"
