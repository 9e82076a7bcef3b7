"""From a recorded fix to a task: download two releases, keep what is source, take the difference.

    fixes  --fetch: pip, pinned by hash-->  wheels in a cache  --make-->  RepoTask

A wheel is read as an archive; nothing of it is installed or run here. The agent's tree is the
import package with its metadata and licence; tests and change logs that a wheel may hold are left
out, since they may give the fix away.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from sao_gym.envs.repo_fix.real.fixes import Fix, fixes
from sao_gym.errors import RunError
from sao_gym.repo.task import RepoTask
from sao_gym.tree import Entry, Patch

_PIP = (
    *("-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"),
    *("--no-deps", "--only-binary", ":all:", "--require-hashes", "--retries", "2"),
)
_SECONDS = 600.0
_METADATA = re.compile(r"[^/]+\.dist-info/(METADATA|(licenses/)?(LICEN[CS]E|COPYING|AUTHORS)[^/]*)")
_LEFT_OUT = re.compile(r"(^|/)(tests?|(changelog|changes|history)[^/]*)(/|$)", re.IGNORECASE)


class Pin(NamedTuple):
    """One wheel."""

    package: str
    version: str
    sha256: str


def build(cache: Path, chosen: Sequence[Fix] | None = None) -> list[RepoTask]:
    """A task for each fix (all of them by default), by id.

    Args:
        cache: a folder for the wheels, made if missing; what lies there is not downloaded again.
        chosen: the fixes to build.

    Raises:
        RunError: a wheel cannot be had, or is not the recorded one.
    """
    wanted = fixes() if chosen is None else tuple(chosen)
    fetch(cache, [pin for fix in wanted for pin in _pins(fix)])
    return [make(fix, *(_wheel(cache, pin).read_bytes() for pin in _pins(fix))) for fix in wanted]


def fetch(cache: Path, pins: Iterable[Pin]) -> None:
    """Download what the cache lacks.

    Raises:
        RunError: the index cannot be reached, has no such release, or a hash differs.
    """
    cache.mkdir(parents=True, exist_ok=True)
    missing = [pin for pin in dict.fromkeys(pins) if not _holds(cache, pin)]
    while missing:
        # pip refuses two versions of one package in one call
        batch = list({pin.package: pin for pin in missing}.values())
        _download(cache, batch)
        missing = [pin for pin in missing if pin not in batch]


def make(fix: Fix, before: bytes, after: bytes) -> RepoTask:
    """A task from the two wheels.

    Raises:
        RunError: a wheel has no file that the fix names, or the releases do not differ in any.
    """
    old, new = unpack(before), unpack(after)
    absent = [path for path in fix.files if path not in old or path not in new]
    if absent:
        raise RunError(f"{fix.id}: the releases hold no {absent[0]}")
    gold = Patch({path: new[path] for path in fix.files if new[path] != old[path]}, ())
    if not gold.written:
        raise RunError(f"{fix.id}: the releases do not differ in {', '.join(fix.files)}")
    path = fix.test_path
    return RepoTask(
        id=fix.id,
        instruction=fix.instruction,
        tree=old,
        tests={path: Entry("file", fix.test.encode())},
        fail_to_pass=tuple(f"{path}::{name}" for name in fix.fail_to_pass),
        pass_to_pass=tuple(f"{path}::{name}" for name in fix.pass_to_pass),
        gold=gold,
        extra={
            "package": fix.package,
            "licence": fix.licence,
            "before": fix.before.version,
            "after": fix.after.version,
        },
    )


def unpack(wheel: bytes) -> dict[str, Entry]:
    """What a wheel holds of source, metadata and licence.

    Raises:
        RunError: a path leads out of the archive's root.
    """
    tree: dict[str, Entry] = {}
    with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
        for member in archive.infolist():
            path = member.filename
            if member.is_dir() or not _kept(path):
                continue
            if any(part in ("", ".", "..") for part in path.split("/")):
                raise RunError(f"{path!r} is not a path below the root of a wheel")
            executable = bool(member.external_attr >> 16 & 0o100)
            tree[path] = Entry("file", archive.read(member), executable)
    return tree


def _kept(path: str) -> bool:
    top = path.split("/")[0]
    if top.endswith(".dist-info"):
        return bool(_METADATA.fullmatch(path))
    return not top.endswith(".data") and not _LEFT_OUT.search(path)


def _pins(fix: Fix) -> tuple[Pin, Pin]:
    before, after = (
        Pin(fix.package, release.version, release.sha256) for release in (fix.before, fix.after)
    )
    return before, after


def _wheel(cache: Path, pin: Pin) -> Path:
    return cache / f"{pin.package}-{pin.version}-{pin.sha256[:16]}.whl"


def _holds(cache: Path, pin: Pin) -> bool:
    file = _wheel(cache, pin)
    return file.is_file() and _sha256(file) == pin.sha256


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _download(cache: Path, batch: Sequence[Pin]) -> None:
    """One call of pip, at most one version of a package."""
    lines = [f"{pin.package}=={pin.version} --hash=sha256:{pin.sha256}\n" for pin in batch]
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        requirements = Path(folder, "requirements.txt")
        requirements.write_text("".join(lines), encoding="utf-8")
        _pip("--dest", folder, "--requirement", str(requirements))
        came = {_sha256(file): file for file in Path(folder).glob("*.whl")}
        for pin in batch:
            if pin.sha256 not in came:
                raise RunError(f"{pin.package} {pin.version}: pip downloaded no such wheel")
            os.replace(came[pin.sha256], _wheel(cache, pin))


def _pip(*arguments: str) -> None:
    command = [sys.executable, *_PIP, *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise RunError(f"the package index gave no answer within {_SECONDS:g} s") from None
    if done.returncode:
        raise RunError(_complaint(done.stderr))


def _complaint(said: str) -> str:
    """One line from what pip said."""
    if "DO NOT MATCH THE HASHES" in said:
        named = re.search(r"^\s*(\S+==\S+) from", said, re.MULTILINE)
        which = named[1] if named else "a package"
        return f"{which}: the index has a file with another SHA-256 than the recorded one"
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    why = (errors or lines or ["pip said nothing"])[-1]
    return f"the releases cannot be downloaded; is a package index reachable? pip: {why}"
