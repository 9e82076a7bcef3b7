"""A tree of files as a value: paths, modes, bytes. Nothing is ever decoded or normalised.

    folder or tar  --read-->  Tree  --write-->  folder or tar
    Patch = between(before, after)        apply(before, patch) == after

Names are POSIX paths relative to the root; bytes that are no UTF-8 stand as surrogate escapes, as
`os.fsdecode` makes them. Directories appear only if they are empty. What is neither a regular file,
a symbolic link nor a directory (a device, a socket) is left out.
"""

from __future__ import annotations

import hashlib
import io
import os
import stat
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias


class Entry(NamedTuple):
    """One file, link or empty directory."""

    kind: Literal["file", "link", "dir"]
    data: bytes = b""
    """Of a file its content, of a link its target, as bytes."""
    executable: bool = False


Tree: TypeAlias = Mapping[str, Entry]
"""Path -> entry."""


class Patch(NamedTuple):
    """What turns one tree into another."""

    written: Tree
    """New and changed entries, whole."""
    removed: tuple[str, ...]


def between(before: Tree, after: Tree) -> Patch:
    """The patch that turns `before` into `after`."""
    written = {path: entry for path, entry in after.items() if before.get(path) != entry}
    return Patch(written, tuple(sorted(path for path in before if path not in after)))


def apply(tree: Tree, patch: Patch) -> dict[str, Entry]:
    """`tree` with `patch` applied."""
    removed = set(patch.removed)
    kept = {path: entry for path, entry in tree.items() if path not in removed}
    return kept | dict(patch.written)


def read_folder(folder: Path | str, *, skip: Iterable[str] = (".git",)) -> dict[str, Entry]:
    """Everything below a folder, but names in `skip` at any depth. Links are not followed."""
    root, tree, left_out = os.fsencode(folder), {}, {os.fsencode(name) for name in skip}

    def visit(at: bytes, path: bytes) -> None:
        names = sorted(name for name in os.listdir(at) if name not in left_out)
        if not names and path:
            tree[os.fsdecode(path)] = Entry("dir")
        for name in names:
            here, inner = os.path.join(at, name), os.path.join(path, name)
            mode = os.lstat(here).st_mode
            if stat.S_ISDIR(mode):
                visit(here, inner)
            elif stat.S_ISLNK(mode):
                tree[os.fsdecode(inner)] = Entry("link", os.readlink(here))
            elif stat.S_ISREG(mode):
                with open(here, "rb") as file:
                    data = file.read()
                tree[os.fsdecode(inner)] = Entry("file", data, bool(mode & 0o100))

    visit(root, b"")
    return tree


def write_folder(tree: Tree, folder: Path | str) -> None:
    """Write a tree below an existing folder.

    Raises:
        ValueError: a path leaves the folder, or goes through something that is no directory.
    """
    root = os.fsencode(folder)
    for path, entry in sorted(tree.items()):
        parts = _checked(path)
        at = root
        for part in parts[:-1]:
            at = os.path.join(at, part)
            if not os.path.lexists(at):
                os.mkdir(at)
            elif not stat.S_ISDIR(os.lstat(at).st_mode):
                raise ValueError(
                    f"{path!r} goes through {os.fsdecode(at)!r}, which is no directory"
                )
        here = os.path.join(at, parts[-1])
        if entry.kind == "dir":
            os.makedirs(here, exist_ok=True)
            continue
        if os.path.lexists(here):
            os.unlink(here)
        if entry.kind == "link":
            os.symlink(entry.data, here)
            continue
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
        with os.fdopen(os.open(here, flags, 0o755 if entry.executable else 0o644), "wb") as file:
            file.write(entry.data)


def to_tar(tree: Tree) -> bytes:
    """An uncompressed tar archive, the same bytes for the same tree."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path, entry in sorted(tree.items()):
            member = tarfile.TarInfo(path)
            if entry.kind == "file":
                member.size = len(entry.data)
                member.mode = 0o755 if entry.executable else 0o644
                archive.addfile(member, io.BytesIO(entry.data))
                continue
            member.type = tarfile.SYMTYPE if entry.kind == "link" else tarfile.DIRTYPE
            member.mode = 0o777 if entry.kind == "link" else 0o755
            member.linkname = os.fsdecode(entry.data) if entry.kind == "link" else ""
            archive.addfile(member)
    return out.getvalue()


def from_tar(data: bytes, *, skip: Iterable[str] = (".git",), strip: str = "") -> dict[str, Entry]:
    """The tree in a tar archive; of its paths the leading folder `strip` is taken off.

    Raises:
        ValueError: not a tar archive, or a path leaves the root.
    """
    tree: dict[str, Entry] = {}
    full: set[str] = set()
    left_out = set(skip)
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
            for member in archive:
                path = _below(member.name, strip)
                if not path or left_out.intersection(path.split("/")):
                    continue
                _checked(path)
                entry = _entry(archive, member)
                if entry is not None:
                    tree[path] = entry
                    full.add(path.rpartition("/")[0])
    except tarfile.TarError as error:
        raise ValueError(f"not a tar archive: {error}") from None
    # a directory is told only if nothing lies in it
    return {p: e for p, e in tree.items() if e.kind != "dir" or p not in full}


def digest(tree: Tree) -> str:
    """SHA-256 of a tree: of paths, kinds, modes and bytes."""
    return hashlib.sha256(to_tar(tree)).hexdigest()


def _entry(archive: tarfile.TarFile, member: tarfile.TarInfo) -> Entry | None:
    if member.issym():
        return Entry("link", os.fsencode(member.linkname))
    if member.isdir():
        return Entry("dir")
    if member.isfile() or member.islnk():
        file = archive.extractfile(member)
        return Entry("file", file.read() if file else b"", bool(member.mode & 0o100))
    return None


def _below(name: str, strip: str) -> str:
    path = name.removeprefix("./").rstrip("/")
    if not strip:
        return "" if path == "." else path
    return path.removeprefix(f"{strip}/") if path.startswith(f"{strip}/") else ""


def _checked(path: str) -> list[bytes]:
    parts = os.fsencode(path).split(b"/")
    if any(part in (b"", b".", b"..") for part in parts):
        raise ValueError(f"{path!r} is not a path below the root")
    return parts
