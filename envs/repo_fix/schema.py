"""How a tool call is written, and how what it found is shown: one set of tools, two ways to say it.

    full      read PATH [LINE]    search WORD    edit PATH LINE[-LAST] NEW-LINES    run    submit
    compact   rL                  f              eLS                                t      s

In compact form a call is one to three symbols: the tool, a line, what becomes of it (`symbols.py`).
Lines are numbered through all source files; `f` looks for the function that the instruction names;
an edit starts from the line as it was at the beginning, so that a second try replaces the first,
and one without a symbol takes the first back;
arguments that a tool has no use for are ignored. Which symbol or word is which tool is the schema,
`rfets` or `read search edit run submit`: a concept parameter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sao_gym.envs.repo_fix import tools
from sao_gym.envs.repo_fix.symbols import changed
from sao_gym.envs.repo_fix.tools import Line, ToolError
from sao_gym.errors import InputError
from sao_gym.repo.task import RepoTask
from sao_gym.tree import Tree

TOOLS = ("read", "search", "edit", "run", "submit")
COMPACT = "rfets"
FULL = " ".join(TOOLS)


class Call(NamedTuple):
    """One call of one tool."""

    tool: str
    path: str = ""
    line: int | None = None
    text: str = ""
    """What to search for, or the new lines."""
    last: int | None = None
    """Of the lines that are edited; None: `line`."""


def words(schema: Any, *, compact: bool, owner: str) -> tuple[str, ...]:
    """The names of the tools, in the order of `TOOLS`.

    Raises:
        InputError: not five different names.
    """
    said = schema if isinstance(schema, str) else ""
    names = tuple(said) if compact else tuple(said.split(" "))
    letters = all(name.isascii() and name.isalpha() and name.islower() for name in names)
    if not letters or len(set(names)) != len(TOOLS) or len(names) != len(TOOLS):
        example = COMPACT if compact else FULL
        raise InputError(
            f"{owner}: tools must name {', '.join(TOOLS)} in this order by five different "
            f"{'letters' if compact else 'words'}, e.g. {example!r}, not {schema!r}"
        )
    return names


class Compact:
    """The compact way, over the source files of one task."""

    def __init__(self, task: RepoTask) -> None:
        self._word = str(task.extra["word"])
        self._sources: Tree = {p: e for p, e in task.tree.items() if p not in task.tests}
        self.lines = [
            line for path in sorted(self._sources) for line in tools.read(task.tree, path)
        ]
        """Every line of the sources as it was at the beginning."""
        self._numbers = {(line.path, line.number): n for n, line in enumerate(self.lines, start=1)}

    def parse(self, action: str, names: Sequence[str]) -> Call:
        """The call that an action spells.

        Raises:
            ToolError: none.
        """
        tool, rest = action[:1], action[1:]
        if tool not in names or len(rest) > 2:
            raise ToolError
        name = TOOLS[names.index(tool)]
        if name == "search":
            return Call(name, text=self._word)
        if name in ("run", "submit"):
            return Call(name)
        line = self._line(rest)
        if name == "read":
            return Call(name, line.path, line.number)
        new = changed(line.text, rest[1:]) if rest[1:] else line.text
        if new is None:
            raise ToolError
        return Call(name, line.path, line.number, new)

    def number(self, path: str, line: int) -> int:
        """The number of a line among all lines."""
        return self._numbers[path, line]

    def shown(self, call: Call, found: Sequence[Line]) -> str:
        """What a tool found."""
        if call.tool == "search":
            mine = [line for line in found if (line.path, line.number) in self._numbers]
            return "".join(f"{self.number(path, n)}{text}\n" for path, n, text in mine)
        return "".join(f"{line.text}\n" for line in found)

    def _line(self, rest: str) -> Line:
        if not rest[:1].isdecimal() or not 1 <= int(rest[0]) <= len(self.lines):
            raise ToolError
        return self.lines[int(rest[0]) - 1]


class Full:
    """The full way: paths, numbers and text as they are."""

    def parse(self, action: str, names: Sequence[str]) -> Call:
        """The call that an action spells.

        Raises:
            ToolError: none; the message says what is wrong.
        """
        tool, _, rest = action.strip("\n").partition(" ")
        if tool not in names:
            raise ToolError(f"no tool {tool[:40]!r}; there are {', '.join(names)}")
        name = TOOLS[names.index(tool)]
        match name:
            case "search":
                if not rest:
                    raise ToolError(f"{tool} WORD")
                return Call(name, text=rest)
            case "read":
                path, _, line = rest.partition(" ")
                return Call(name, path, _number(line, f"{tool} PATH [LINE]") if line else None)
            case "edit":
                path, _, rest = rest.partition(" ")
                line, _, text = rest.partition(" ")
                first, dash, last = line.partition("-")
                usage = f"{tool} PATH LINE[-LAST] NEW-LINES"
                start = _number(first, usage)
                return Call(name, path, start, text, _number(last, usage) if dash else None)
        return Call(name)

    def shown(self, call: Call, found: Sequence[Line]) -> str:
        """What a tool found."""
        if call.tool == "search":
            return "".join(f"{line.path}:{line.number}:{line.text}\n" for line in found)
        return "".join(f"{line.number} {line.text}\n" for line in found)


def _number(text: str, usage: str) -> int:
    if not (text.isascii() and text.isdecimal()) or len(text) > 9:
        raise ToolError(usage)
    return int(text)
