"""The image `base`, made from this machine's own Debian packages: no registry, no network.

    packages and what they depend on  --dpkg-query-->  their files  --tar-->  docker import

Named after a hash of the packages with their versions, so it is made once and again only when one
of them changes.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import io
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import threading
from collections.abc import Iterator
from typing import Any

from sao_gym.errors import MachineryError

REPOSITORY = "sao-gym/base"
PACKAGES = (
    *("bash", "coreutils", "dash", "diffutils", "findutils", "git", "grep", "gzip", "patch"),
    *("procps", "python3", "python3-pytest", "sed", "tar", "util-linux"),
)
_OPTIONAL = {"procps", "patch", "diffutils", "util-linux"}
_RECIPE = "3"  # count up whenever what follows puts something else into the image
_LEFT_OUT = re.compile(r"/usr/share/(doc|man|locale|info|lintian|bash-completion)/|/var/|/boot/")
_LINKS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_EXTRA = ("/etc/ld.so.cache",)
_FILES = {
    "etc/passwd": "root:x:0:0::/root:/bin/sh\nnobody:x:65534:65534::/tmp:/bin/sh\n",
    "etc/group": "root:x:0:\nnogroup:x:65534:\n",
    "etc/hosts": "127.0.0.1 localhost\n",
}
_lock = threading.Lock()


def ensure(client: Any) -> str:
    """The image's name; it is made if the engine does not have it (about 10 s).

    `client`: a `docker.APIClient`. Raises MachineryError(`image`) with what to install.
    """
    from docker.errors import ImageNotFound

    with _lock:
        found = packages()
        name = f"{REPOSITORY}:{content_hash(found)}"
        try:
            client.inspect_image(name)
        except ImageNotFound:
            _make(client, name, sorted(found))
        return name


def unusable() -> str | None:
    """Why the image cannot be made here; None if it can."""
    try:
        packages()
    except MachineryError as error:
        return str(error)
    return None


def content_hash(packages: dict[str, str]) -> str:
    """Of packages with their versions."""
    lines = "\n".join(f"{name}={version}" for name, version in sorted(packages.items()))
    return hashlib.sha256(f"{_RECIPE}\n{lines}".encode()).hexdigest()[:16]


def _make(client: Any, name: str, packages: list[str]) -> None:
    repository, tag = name.split(":")
    with tempfile.TemporaryFile() as file:
        with tarfile.open(fileobj=file, mode="w") as archive:
            _fill(archive, packages)
        file.seek(0)
        answer = client.import_image_from_data(
            file,
            repository=repository,
            tag=tag,
            changes=["ENV PATH=/usr/local/bin:/usr/bin:/bin", "LABEL sao-gym.base=1"],
        )
    if '"error' in str(answer):
        raise MachineryError("image", f"{name} was not made: {answer}")


def packages() -> dict[str, str]:
    """Installed packages that `PACKAGES` need, with their versions.

    Raises MachineryError(`image`) with what to install.
    """
    if shutil.which("dpkg-query") is None:
        raise MachineryError(
            "image", "the image `base` is made from Debian packages; here, name another image"
        )
    form = "${Package}\t${Version}\t${db:Status-Status}\t${Depends}, ${Pre-Depends}\t${Provides}\n"
    listed = subprocess.run(
        ["dpkg-query", "-W", "-f", form], capture_output=True, text=True, check=True
    ).stdout
    versions: dict[str, str] = {}
    needs: dict[str, str] = {}
    provided: dict[str, str] = {}
    for line in listed.splitlines():
        name, version, status, depends, provides = line.split("\t")
        if status != "installed":
            continue
        versions[name], needs[name] = version, depends
        for other in _names(provides):
            provided.setdefault(other, name)
    missing = sorted(set(PACKAGES) - versions.keys() - _OPTIONAL)
    if missing:
        raise MachineryError(
            "image", f"the image `base` is made from packages: apt-get install {' '.join(missing)}"
        )
    found: dict[str, str] = {}
    waiting = [name for name in PACKAGES if name in versions]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found[name] = versions[name]
        for group in needs[name].split(","):
            installed = (provided.get(n, n) if n not in versions else n for n in _names(group, "|"))
            waiting += [n for n in installed if n in versions][:1]
    return found


def _names(text: str, separator: str = ",") -> Iterator[str]:
    for part in text.split(separator):
        if part.strip():
            yield part.split()[0].partition(":")[0]


def _fill(archive: tarfile.TarFile, packages: list[str]) -> None:
    listed = subprocess.run(
        ["dpkg-query", "-L", *packages], capture_output=True, text=True, check=True
    ).stdout
    paths = {_real(path) for path in listed.splitlines() if path.startswith("/") and path != "/."}
    paths |= {f"/etc/alternatives/{name}" for name in os.listdir("/etc/alternatives")}
    # what an alternative stands behind belongs to no package
    paths |= {path for path in map(_alternative, sorted(paths)) if path}
    # and without their compiled modules every Python that starts would compile its imports anew
    paths |= {compiled for path in sorted(paths) for compiled in _compiled(path)}
    paths |= set(_EXTRA)
    done: set[str] = set()
    for path in sorted(paths):
        if path.lstrip("/") not in _FILES and not _LEFT_OUT.match(path):
            _add(archive, path, done)
    for folder in _LINKS:
        if os.path.islink(folder):
            _add(archive, folder, done)
    for path, text in _FILES.items():
        _add_bytes(archive, path, text.encode())
    for folder, mode in (("tmp", 0o1777), ("work", 0o755), ("proc", 0o755), ("dev", 0o755)):
        if f"/{folder}" in done:
            continue
        member = tarfile.TarInfo(folder)
        member.type, member.mode = tarfile.DIRTYPE, mode
        archive.addfile(member)


def _real(path: str) -> str:
    """With the links above it followed (a merged /usr), but not itself."""
    folder, name = os.path.split(path)
    return os.path.join(os.path.realpath(folder), name)


def _compiled(path: str) -> list[str]:
    """What Debian's Python keeps of a module, compiled when its package was installed."""
    folder, name = os.path.split(path)
    if not name.endswith(".py"):
        return []
    return glob.glob(f"{glob.escape(folder)}/__pycache__/{glob.escape(name[:-3])}.cpython-*.pyc")


def _alternative(path: str) -> str:
    """The link in /usr/bin to an alternative, for the path of the alternative itself."""
    if not path.startswith("/etc/alternatives/"):
        return ""
    link = f"/usr/bin/{os.path.basename(path)}"
    return link if os.path.islink(link) and os.readlink(link) == path else ""


def _add(archive: tarfile.TarFile, path: str, done: set[str]) -> None:
    if path in done or not os.path.lexists(path):
        return
    done.add(path)
    with contextlib.suppress(OSError):
        member = archive.gettarinfo(path, arcname=path.lstrip("/"))
        member.mode &= 0o1777 if member.isdir() else 0o777  # no setuid
        if member.isreg():
            with open(path, "rb") as file:
                archive.addfile(member, file)
        else:
            archive.addfile(member)


def _add_bytes(archive: tarfile.TarFile, path: str, data: bytes) -> None:
    member = tarfile.TarInfo(path)
    member.size, member.mode = len(data), 0o644
    archive.addfile(member, io.BytesIO(data))
