"""The tools, on a tree of files; who calls them, and how it is shown, is not their business.

Lines are numbered from 1. A file that is no text (UTF-8) cannot be read or edited line by line.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from sao_gym.tree import Entry, Tree

MOST_FOUND = 50
"""Hits that a search shows."""


class Line(NamedTuple):
    path: str
    number: int
    text: str


class ToolError(Exception):
    """The call cannot be served; said to the agent, who may try again."""


def lines_of(tree: Tree, path: str) -> list[str]:
    """The lines of a text file, their ends left on.

    Raises:
        ToolError: no such file, or no text.
    """
    entry = tree.get(path)
    if entry is None or entry.kind != "file":
        raise ToolError(f"no file {path}")
    try:
        return _split(entry.data.decode())
    except UnicodeDecodeError:
        raise ToolError(f"{path} is no text") from None


def read(tree: Tree, path: str, number: int | None = None) -> list[Line]:
    """A whole file, or one line of it.

    Raises:
        ToolError: no such file or line, or no text.
    """
    lines = [Line(path, i, _bare(text)) for i, text in enumerate(lines_of(tree, path), start=1)]
    if number is None:
        return lines
    if not 1 <= number <= len(lines):
        raise ToolError(f"{path} has {len(lines)} lines")
    return [lines[number - 1]]


def search(tree: Tree, word: str) -> list[Line]:
    """Lines that hold `word`, in the order of paths.

    Raises:
        ToolError: there are none.
    """
    found = [line for line in _all(tree) if word in line.text][:MOST_FOUND]
    if not found:
        raise ToolError(f"nothing found: {word}")
    return found


def edit(tree: Tree, path: str, first: int, last: int, text: str) -> dict[str, Entry]:
    """The tree with some lines of a file replaced; their line ends and all others stay.

    Without text the lines are deleted. A file that does not exist is made.

    Raises:
        ToolError: no such lines, no text, or `path` is no path below the root.
    """
    if any(part in ("", ".", "..") for part in path.split("/")):
        raise ToolError(f"no path {path}")
    if path not in tree:
        return {**tree, path: Entry("file", f"{text}\n".encode("utf-8", "surrogateescape"))}
    lines = lines_of(tree, path)
    if not 1 <= first <= last <= max(1, len(lines)):
        raise ToolError(f"{path} has {len(lines)} lines")
    old = lines[last - 1] if lines else "\n"
    end = old[len(_bare(old)) :]
    new = text.replace("\n", end) if end == "\r\n" else text
    lines[first - 1 : last] = [new + end] if text else []
    data = "".join(lines).encode("utf-8", "surrogateescape")
    return {**tree, path: Entry("file", data, tree[path].executable)}


def _all(tree: Tree) -> Iterator[Line]:
    for path in sorted(tree):
        try:
            yield from read(tree, path)
        except ToolError:
            continue


def _split(text: str) -> list[str]:
    """Lines end with a line feed alone; a form feed, say, stays inside."""
    lines = text.split("\n")
    return [line + "\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def _bare(line: str) -> str:
    return line.removesuffix("\n").removesuffix("\r")
