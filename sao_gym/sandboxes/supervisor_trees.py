"""How the supervisor of a box reads and writes trees. Runs inside the box: see `supervisor`.

>cBIQ  kind (f, l, d; e ends), executable, length of the path, length of the data; path, data

Paths of more than `LONGEST` bytes below the folder are no part of a tree, in any kind of box: the
system takes 4096 at once, together with the folder's own path.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import struct
from typing import Any

TOO_LARGE, MISSING, DISK_FULL, BROKEN = 75, 76, 77, 78
"""How `get` and `put` end when they fail."""

LONGEST = 3000
"""Bytes of a path below the folder that is read or written."""

_CHUNK = 1 << 18
_ENTRY = struct.Struct(">cBIQ")
_LETTERS = {stat.S_IFLNK: b"l", stat.S_IFREG: b"f"}


def guarded(work: Any, write: int) -> int:
    """Do the work; its exit code. What went wrong is written down in one line."""
    try:
        work(write)
        return 0
    except OSError as error:
        os.write(write, str(error).encode("utf-8", "replace")[:1000])
        return DISK_FULL if error.errno in (errno.ENOSPC, errno.EDQUOT) else BROKEN
    except OverflowError:
        return TOO_LARGE
    except LookupError:
        return MISSING
    except BaseException as error:  # noqa: BLE001  this process must end here, whatever happens
        os.write(write, repr(error).encode("utf-8", "replace")[:1000])
        return BROKEN


def read_tree(at: str, limit: int, write: int) -> None:
    """Send every entry below a folder; nothing if it is above `limit` bytes.

    Left out are `.git`, what is neither a file, a link nor a folder, and paths above `LONGEST`.
    """
    root = os.fsencode(at)
    if not os.path.isdir(root):
        raise LookupError
    found: list[tuple[bytes, bytes, int]] = []
    total, stack = 0, [b""]
    while stack:
        path = stack.pop()
        folder = os.path.join(root, path) if path else root
        _open_up(folder, 0o700)
        names = [name for name in os.listdir(folder) if name != b".git"]
        if not names and path:
            found.append((path, b"d", 0))
        for name in names:
            inner = os.path.join(path, name)
            if len(inner) > LONGEST:
                continue
            info = os.lstat(os.path.join(root, inner))
            if stat.S_ISDIR(info.st_mode):
                stack.append(inner)
                continue
            kind = (
                b"l" if stat.S_ISLNK(info.st_mode) else b"f" if stat.S_ISREG(info.st_mode) else b""
            )
            if kind:
                total += info.st_size + len(inner) + _ENTRY.size
                found.append((inner, kind, info.st_mode))
            if total > limit:
                raise OverflowError
    with os.fdopen(write, "wb", _CHUNK) as out:
        for path, kind, mode in found:
            here, data = os.path.join(root, path), b""
            if kind == b"l":
                data = os.readlink(here)
            elif kind == b"f":
                _open_up(here, 0o400)
                with open(here, "rb") as file:
                    data = file.read()
            out.write(_ENTRY.pack(kind, bool(mode & 0o100), len(path), len(data)) + path + data)
        out.write(_ENTRY.pack(b"e", 0, 0, 0))


def _open_up(path: bytes, bits: int) -> None:
    """Give oneself back what was taken away by chmod."""
    mode = stat.S_IMODE(os.lstat(path).st_mode)
    if mode & bits != bits:
        with contextlib.suppress(OSError):  # somebody else's: reading it says so if it matters
            os.chmod(path, mode | bits)


def write_tree(at: str, payload: bytes) -> None:
    """Write the entries of `payload` below a folder; what is in the way is replaced.

    Raises OSError; of a path above `LONGEST`, too, which `read_tree` would leave out.
    """
    root = os.fsencode(at)
    os.makedirs(root, exist_ok=True)
    made, start = {root}, 0
    while start < len(payload):
        kind, executable, path_size, size = _ENTRY.unpack_from(payload, start)
        start += _ENTRY.size
        path = payload[start : start + path_size]
        data = memoryview(payload)[start + path_size : start + path_size + size]
        start += path_size + size
        if path_size > LONGEST:
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), os.fsdecode(path))
        folder = root
        for part in path.split(b"/")[:-1]:
            folder = os.path.join(folder, part)
            if folder not in made:
                _make_folder(folder)
                made.add(folder)
        here = os.path.join(root, path)
        if kind == b"d":
            _make_folder(here)
            continue
        _remove(here)
        if kind == b"l":
            os.symlink(bytes(data), here)
            continue
        fd = os.open(here, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o755 if executable else 0o644)
        with os.fdopen(fd, "wb") as file:
            file.write(data)


def _make_folder(path: bytes) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        return
    _remove(path)
    os.mkdir(path)


def _remove(path: bytes) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)
