"""Reference solutions and their neighbours: what warm starts, the oracle and gold checks follow.

A family task is mended as an agent should: look, edit, run the tests, submit. Of any other task the
recorded fix is written, by edits or by commands, and submitted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sao_gym.envs.repo_fix import tools
from sao_gym.envs.repo_fix.family import Place
from sao_gym.envs.repo_fix.schema import TOOLS, Compact, Full
from sao_gym.envs.repo_fix.stored import mending, next_edit
from sao_gym.envs.repo_fix.symbols import SYMBOLS, changed
from sao_gym.envs.repo_fix.tools import Line
from sao_gym.repo.task import RepoTask
from sao_gym.tree import Tree, apply


@dataclass(frozen=True, slots=True, kw_only=True)
class Solver:
    """Knows the fix; looks at nothing but the state of the episode."""

    task: RepoTask
    tree: Tree
    names: Mapping[str, str]
    """Of the tools."""
    form: Compact | Full
    seen: bool
    """The agent has looked where the function is."""
    green: bool
    """The tests passed on this very tree."""

    def right(self) -> str:
        """The next call that leads to the solution."""
        if not self.seen:
            return self._called("search")
        wrong = self._wrong()
        if wrong is not None:
            return self._edit(wrong, self._mending(wrong))
        return self._called("submit" if self.green else "run")

    def valid(self) -> tuple[str, ...]:
        """The right call and its neighbours: another tool, another line, another symbol."""
        right = self.right()
        wrong = self._wrong() if self.seen else None
        place = self._place
        others = [line for line in self._sources() if line[:2] != place[:2]]
        if wrong is None:
            found = [self._called(tool) for tool in ("search", "run", "submit")]
            found += [self._read(place), *(self._edit(line, place.symbol) for line in others)]
        else:
            symbol = self._mending(wrong)
            found = [self._edit(wrong, s) for s in SYMBOLS if self._harmless(wrong, s)]
            found += [self._edit(line, symbol) for line in others]
            found += self._renamed(wrong, symbol)
        return tuple(dict.fromkeys([right, *found]))

    # -- the state ---------------------------------------------------------------------------

    @property
    def _place(self) -> Place:
        return Place(*self.task.extra["place"])

    def _sources(self) -> list[Line]:
        """The lines of the sources, as they were at the beginning."""
        paths = sorted(path for path in self.task.tree if path not in self.task.tests)
        return [line for path in paths for line in tools.read(self.task.tree, path)]

    def _wrong(self) -> Line | None:
        """A line that is not as it should be, that of the fault before any other."""
        assert self.task.gold is not None
        gold = apply(self.task.tree, self.task.gold)
        place = self._place
        lines = sorted(self._sources(), key=lambda line: line[:2] != place[:2])
        for line in lines:
            now = tools.read(self.tree, line.path)
            if line.number > len(now) or now[line.number - 1] != self._gold(gold, line):
                return line
        return None

    def _gold(self, gold: Tree, line: Line) -> Line:
        return tools.read(gold, line.path, line.number)[0]

    def _mending(self, line: Line) -> str:
        """The symbol that makes a line what it should be; none takes an edit back."""
        place = self._place
        return place.symbol if line[:2] == place[:2] else ""

    def _harmless(self, line: Line, symbol: str) -> bool:
        """Whether there is such an edit, and it does not happen to be the fix."""
        place, made = self._place, changed(line.text, symbol)
        return made is not None and (line[:2] != place[:2] or made != place.gold)

    # -- calls -------------------------------------------------------------------------------

    def _called(self, tool: str) -> str:
        name = self._name(tool)
        if tool == "search" and isinstance(self.form, Full):
            return f"{name} {self.task.extra['word']}"
        return name

    def _read(self, place: Place) -> str:
        if isinstance(self.form, Compact):
            return f"{self._name('read')}{self.form.number(place.path, place.line)}"
        return f"{self._name('read')} {place.path} {place.line}"

    def _edit(self, line: Line, symbol: str) -> str:
        if isinstance(self.form, Compact):
            return f"{self._name('edit')}{self.form.number(line.path, line.number)}{symbol}"
        text = changed(line.text, symbol)
        return (
            f"{self._name('edit')} {line.path} {line.number} {line.text if text is None else text}"
        )

    def _renamed(self, line: Line, symbol: str) -> list[str]:
        """The same arguments for every other tool."""
        others = [tool for tool in TOOLS if tool != "edit"]
        if isinstance(self.form, Full):
            return [self._called(tool) for tool in others[1:]] + [
                f"{self._name('read')} {line.path}"
            ]
        arguments = f"{self.form.number(line.path, line.number)}{symbol}"
        return [f"{self._name(tool)}{arguments}" for tool in others]

    def _name(self, tool: str) -> str:
        return self.names[tool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """Writes the recorded fix of any task."""

    task: RepoTask
    tree: Tree
    names: Mapping[str, str]
    """Of the tools."""
    shell: bool
    """An action is a block of commands."""
    mended: bool
    """The commands that write the fix were the last."""

    def right(self) -> str:
        """The next action that leads to the solution."""
        if self.shell:
            return self.names["submit"] if self.mended else mending(self.task)
        return next_edit(self.task, self.tree, self.names["edit"]) or self.names["submit"]

    def valid(self) -> tuple[str, ...]:
        """The right action and a few that do no harm."""
        others = ["ls", "true"] if self.shell else [self.names["run"]]
        return tuple(dict.fromkeys([self.right(), *others, self.names["submit"]]))
