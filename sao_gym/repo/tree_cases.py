"""What an agent may do to a tree, as named cases: every byte must arrive where the tests run."""

from __future__ import annotations

import hashlib
import json
import os

from sao_gym.repo.task import RepoTask
from sao_gym.tree import Entry, Patch, apply

HUGE = 24 << 20
"""Bytes of the huge file."""

_CHECK = """import hashlib
import json
import os
import stat

EXPECTED = json.loads({expected!r})


def test_same():
    root = os.fsencode(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    found = {{}}
    for folder, names, files in os.walk(root):
        for name in [*names, *files]:
            here = os.path.join(folder, name)
            mode = os.lstat(here).st_mode
            if stat.S_ISLNK(mode):
                entry = ["link", os.fsencode(os.readlink(here)).hex(), False]
            elif stat.S_ISREG(mode):
                with open(here, "rb") as file:
                    entry = ["file", hashlib.sha256(file.read()).hexdigest(), bool(mode & 0o100)]
            elif not os.listdir(here):
                entry = ["dir", "", False]
            else:
                continue
            found[os.path.relpath(here, root).hex()] = entry
    for path in sorted(set(found) | set(EXPECTED)):
        assert found.get(path) == EXPECTED.get(path), bytes.fromhex(path)
"""


def task(patch: Patch) -> RepoTask:
    """A task that is solved by exactly this patch."""
    tree = before()
    expected = {}
    for path, entry in apply(tree, patch).items():
        data = {"file": hashlib.sha256(entry.data).hexdigest(), "link": entry.data.hex(), "dir": ""}
        expected[os.fsencode(path).hex()] = [entry.kind, data[entry.kind], entry.executable]
    name = "check_tree/test_tree.py"
    own = name.encode().hex()
    text = _CHECK.format(expected=json.dumps(expected))
    text = text.replace("    for path in sorted", f"    del found[{own!r}]\n    for path in sorted")
    return RepoTask(
        id="tree",
        instruction="",
        tree=tree,
        tests={name: Entry("file", text.encode())},
        fail_to_pass=(f"{name}::test_same",),
        gold=patch,
        seconds=60.0,
        extra={"test_seconds": 60.0},
    )


def before() -> dict[str, Entry]:
    """What the tree cases begin with."""
    return {
        "pkg/old.py": Entry("file", b"x = 1\n"),
        "pkg/tool.sh": Entry("file", b"#!/bin/sh\n"),
        "pkg/ran.sh": Entry("file", b"#!/bin/sh\n", True),
        ".gitignore": Entry("file", b"*.log\nbuild/\n"),
        "README": Entry("file", b"text\n"),
    }


def patches() -> dict[str, Patch]:
    """Name -> what an agent may do to a tree."""
    return _contents() | _structure()


def _contents() -> dict[str, Patch]:
    byte_values = bytes(range(256)) * 3
    return {
        "line endings": _files(dos=b"a\r\nb\r\n", mac=b"a\rb\r", mixed=b"a\nb\r\nc\r\r\n"),
        "no final newline": _files(one=b"last line", empty=b"", newline=b"\n"),
        "binary": _files(all=byte_values, nul=b"\0" * 100),
        "odd names": _named(
            b"with space",
            b"quo'te\"s",
            b"new\nline",
            b"tab\there",
            "grün/日本".encode(),
            b"back\\slash",
            b"-dash",
            b"star*?[x]",
            b"a:b|c;d&e",
            b"%41",
            b" lead",
            b"trail ",
            b"latin-\xe9",
            b"\xff\xfe",
        ),
        "encodings": _files(
            latin=b"caf\xe9\n",
            utf16="größe\n".encode("utf-16"),
            bom=b"\xef\xbb\xbfx = 1\n",
            shift="日本".encode("shift_jis"),
            broken=b"\xc3\x28",
        ),
        "deep path": _named(b"/".join([b"d" * 50] * 20)),
        "huge file": _files(huge=byte_values * (HUGE // len(byte_values))),
    }


def _structure() -> dict[str, Patch]:
    moved = Entry("file", b"x = 1\n")
    return {
        "rename": Patch({"lib/new.py": moved}, ("pkg/old.py",)),
        "file becomes folder": Patch({"README/a": moved}, ("README",)),
        "modes": Patch(
            {
                "pkg/tool.sh": Entry("file", b"#!/bin/sh\n", True),
                "pkg/ran.sh": Entry("file", b"#!/bin/sh\n", False),
            },
            (),
        ),
        "symlinks": Patch(
            {
                "data/to_file": Entry("link", b"../pkg/old.py"),
                "data/to_folder": Entry("link", b"../pkg"),
                "data/dangling": Entry("link", b"nothing-here"),
            },
            (),
        ),
        "untracked and ignored files": Patch(
            {
                "debug.log": Entry("file", b"ignored\n"),
                "build/out.o": Entry("file", b"\x7fELF"),
                "new/untracked.py": Entry("file", b"y = 2\n"),
                "empty": Entry("dir"),
            },
            (),
        ),
        "submodule": Patch(
            {
                ".gitmodules": Entry("file", b'[submodule "vendor/lib"]\n\tpath = vendor/lib\n'),
                "vendor/lib/lib.py": Entry("file", b"z = 3\n"),
            },
            (),
        ),
        "many files": Patch({f"many/{n}": Entry("file", b"%d" % n) for n in range(2000)}, ()),
    }


def _files(**entries: bytes) -> Patch:
    return Patch({f"data/{n}": Entry("file", data) for n, data in entries.items()}, ())


def _named(*names: bytes) -> Patch:
    return Patch({os.fsdecode(n): Entry("file", b"in " + n) for n in names}, ())
