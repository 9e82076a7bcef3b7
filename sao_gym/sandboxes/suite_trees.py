"""The cases of the suite about trees: what goes in is there, and comes out, byte for byte."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable

from sao_gym.errors import MachineryError
from sao_gym.sandbox import WORK
from sao_gym.sandboxes.suite_trial import Trial, Wrong, short
from sao_gym.tree import Entry, Tree

# What is there, told by a program that knows nothing of how it was written.
_LIST = """
import base64, hashlib, json, os, sys
told = {}
for root, folders, files in os.walk(b"."):
    for name in folders + files:
        path = os.path.join(root, name)
        key = base64.b64encode(os.path.relpath(path, b".")).decode()
        if os.path.islink(path):
            told[key] = ["link", base64.b64encode(os.readlink(path)).decode()]
        elif os.path.isdir(path):
            if not os.listdir(path):
                told[key] = ["dir"]
        else:
            data = open(path, "rb").read()
            told[key] = ["file", hashlib.sha256(data).hexdigest(), bool(os.stat(path).st_mode & 64)]
print(json.dumps(told))
"""


def _case(name: str, says: str, tree: Tree) -> Callable[[Trial], Wrong]:
    def case(trial: Trial) -> Wrong:
        box, at = trial.box(), f"{WORK}/{name}"
        box.put(tree, at)
        if (back := box.get(at)) != dict(tree):
            return _difference(tree, back)
        told = json.loads(box.run(["python3", "-c", _LIST], seconds=30, cwd=at).output)
        return None if told == _expected(tree) else "a program in the box sees something else"

    case.__doc__ = says
    return case


def _expected(tree: Tree) -> dict[str, list[object]]:
    told: dict[str, list[object]] = {}
    for path, entry in tree.items():
        key = base64.b64encode(path.encode("utf-8", "surrogateescape")).decode()
        match entry.kind:
            case "link":
                told[key] = ["link", base64.b64encode(entry.data).decode()]
            case "dir":
                told[key] = ["dir"]
            case _:
                told[key] = ["file", hashlib.sha256(entry.data).hexdigest(), entry.executable]
    return told


def _difference(put: Tree, got: Tree) -> str:
    for path in sorted(put.keys() | got.keys()):
        if path not in got:
            return f"{path!r} did not come back"
        if path not in put:
            return f"{path!r} came from nowhere"
        if put[path] != got[path]:
            return f"{path!r} came back as another"
    return "the order differs"


def _files(**contents: bytes) -> dict[str, Entry]:
    return {name: Entry("file", data) for name, data in contents.items()}


def overwrite(trial: Trial) -> Wrong:
    """A tree is written over what is there, links and folders in its way included."""
    box, at = trial.box(), f"{WORK}/overwrite"
    box.put({"made": Entry("file", b"")}, at)
    prepare = "mkdir -p away folder/x file/y; ln -s away linked; ln -s nowhere target"
    box.run(["sh", "-c", f"{prepare}; echo old >kept"], seconds=10, cwd=at)
    put = {
        "linked/inner": Entry("file", b"1"),
        "file": Entry("file", b"2"),
        "target": Entry("file", b"3"),
    }
    box.put(put, at)
    rest = {
        "made": Entry("file"),
        "away": Entry("dir"),
        "folder/x": Entry("dir"),
        "kept": Entry("file", b"old\n"),
    }
    back = box.get(at)
    return None if back == put | rest else _difference(put | rest, back)


def git_folders(trial: Trial) -> Wrong:
    """`.git` does not come along, at any depth; ignored and untracked files do."""
    box, at = trial.box(), f"{WORK}/git_folders"
    tree = {".gitignore": Entry("file", b"*.log\n"), "sub/x.log": Entry("file", b"log")}
    box.put(tree, at)
    ran = box.run(["sh", "-c", "git init -q . && git init -q sub"], seconds=20, cwd=at)
    back = box.get(at)
    return (_difference(tree, back) if back != tree else None) if ran.code == 0 else "git failed"


def unreadable(trial: Trial) -> Wrong:
    """Files and folders whose permissions were taken away come along."""
    box, at = trial.box(), f"{WORK}/unreadable"
    tree = {"a/file": Entry("file", b"x"), "b": Entry("file", b"y")}
    box.put(tree, at)
    box.run(["sh", "-c", "chmod 0 a/file b; chmod 0 a"], seconds=10, cwd=at)
    back = box.get(at)
    box.run(["chmod", "-R", "u+rwx", "."], seconds=10, cwd=at)
    return None if back == tree else _difference(tree, back)


def not_files(trial: Trial) -> Wrong:
    """Pipes and sockets are left out, and do not block."""
    box, at = trial.box(), f"{WORK}/not_files"
    box.put(_files(file=b""), at)
    code = "import os, socket; os.mkfifo('pipe'); socket.socket(socket.AF_UNIX).bind('socket')"
    box.run(["python3", "-c", code], seconds=10, cwd=at)
    back = box.get(at)
    return None if back == _files(file=b"") else _difference(_files(file=b""), back)


def long_paths(trial: Trial) -> Wrong:
    """Paths of up to 3000 bytes go in and out; longer ones are left out, and refused."""
    box, at = trial.box(), f"{WORK}/long_paths"
    tree = {"/".join(["d" * 99] * 30): Entry("file", b"x")}  # 30 names, 29 slashes: 2999 bytes
    box.put(tree, at)
    code = "import os\nfor _ in range(60): os.mkdir('d' * 100); os.chdir('d' * 100)\nopen('x', 'w')"
    ran = box.run(["python3", "-c", code], seconds=20, cwd=at)
    back = box.get(at)
    box.run(["rm", "-rf", at], seconds=20)
    if ran.code or back != tree:
        return _difference(tree, back) if back != tree else "no deep folders: " + short(ran.output)
    try:
        box.put({"/".join(["d" * 99] * 30) + "/y": Entry("file")}, at)
    except MachineryError as error:
        return None if error.kind == "box" else f"{error.kind} instead of box: {error}"
    return "a path of 3001 bytes was written"


def too_large(trial: Trial) -> Wrong:
    """Above the limit a tree is refused, and nothing is sent; a missing folder is told."""
    box, at = trial.box(), f"{WORK}/too_large"
    box.put(_files(file=bytes(1000)), at)
    box.run(["truncate", "-s", "40M", "hole"], seconds=10, cwd=at)
    for where, kind in ((at, "too_large"), (f"{WORK}/none/such", "missing")):
        try:
            box.get(where, limit=100_000)
        except MachineryError as error:
            if error.kind != kind:
                return f"{error.kind} instead of {kind}: {error}"
        else:
            return f"no {kind}"
    box.run(["rm", "-f", "hole"], seconds=10, cwd=at)
    return None if box.get(at) == _files(file=bytes(1000)) else "a file is gone"


_ODD = (
    "with space",
    "with\nnewline",
    "-rf",
    "--",
    "*",
    "ümlaut",
    "\udcff\udc80",
    "'\"$`\\",
    "a" * 200,
)

TREE_CASES: dict[str, Callable[[Trial], Wrong]] = {
    "tree_line_endings": _case(
        "line_endings",
        "Line endings stay, mixed ones too.",
        _files(unix=b"a\nb\n", dos=b"a\r\nb\r\n", mac=b"a\rb\r", mixed=b"a\nb\r\nc\r"),
    ),
    "tree_no_final_newline": _case(
        "no_final_newline",
        "A final newline is neither added nor taken away.",
        _files(without=b"a\nb", with_=b"a\n", empty=b"", only=b"\n", many=b"a\n\n\n"),
    ),
    "tree_binary": _case(
        "binary",
        "Any bytes.",
        _files(every=bytes(range(256)) * 9, zeros=bytes(5000), tar=b"ustar\0" * 300),
    ),
    "tree_modes": _case(
        "modes",
        "Whether a file is executable.",
        {"run.sh": Entry("file", b"#!/bin/sh\n", True), "text": Entry("file", b"#!/bin/sh\n")},
    ),
    "tree_links": _case(
        "links",
        "Symbolic links as they are: relative, absolute, dangling, in a circle, to folders.",
        {
            "folder/file": Entry("file", b"x"),
            "relative": Entry("link", b"folder/file"),
            "to_folder": Entry("link", b"folder"),
            "absolute": Entry("link", b"/etc/passwd"),
            "dangling": Entry("link", b"no/where"),
            "outside": Entry("link", b"../../.."),
            "circle": Entry("link", b"circle"),
            "odd": Entry("link", b"\xff\n"),
        },
    ),
    "tree_names": _case(
        "names",
        "Odd names: spaces, newlines, leading dashes, no UTF-8, long ones.",
        {name: Entry("file", name.encode("utf-8", "surrogateescape")) for name in _ODD}
        | {f"{name}/inner": Entry("file", b"") for name in (".hidden", "a b", "-x", "\udcfe")}
        | {"/".join(["deep" * 20] * 8): Entry("file", b"deep")},
    ),
    "tree_encodings": _case(
        "encodings",
        "Files in any encoding, with a byte order mark or not.",
        {
            codec: Entry("file", "grün, €, x\r\n".encode(codec))
            for codec in ("utf-8", "utf-8-sig", "utf-16", "utf-32", "cp1252", "iso8859_15")
        },
    ),
    "tree_empty_folders": _case(
        "empty_folders",
        "Empty folders.",
        {"empty": Entry("dir"), "a/b/c": Entry("dir"), "full/file": Entry("file")},
    ),
    "tree_large_file": _case(
        "large_file",
        "A file of 20 MB.",
        _files(large=hashlib.sha256(b"large").digest() * 625_000),
    ),
    "tree_overwrite": overwrite,
    "tree_git_folders": git_folders,
    "tree_unreadable": unreadable,
    "tree_not_files": not_files,
    "tree_long_paths": long_paths,
    "tree_too_large": too_large,
}
