"""A box that somebody else will use, or close, when its user closes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from sao_gym.sandbox import WORK, Box, Held, Ran
from sao_gym.tree import Entry, Tree


class Lent:
    """`sao_gym.sandbox.Box` whose `close` gives the box below back."""

    def __init__(self, box: Box, back: Callable[[Lent], None]) -> None:
        self.box, self._back = box, back

    def run(
        self,
        command: Sequence[str],
        *,
        seconds: float,
        stdin: bytes = b"",
        cwd: str = WORK,
        environment: Mapping[str, str] | None = None,
    ) -> Ran:
        return self.box.run(command, seconds=seconds, stdin=stdin, cwd=cwd, environment=environment)

    def hold(
        self,
        command: Sequence[str],
        *,
        cwd: str = WORK,
        environment: Mapping[str, str] | None = None,
    ) -> Held:
        return self.box.hold(command, cwd=cwd, environment=environment)

    def put(self, tree: Tree, at: str = WORK) -> None:
        self.box.put(tree, at)

    def get(self, at: str = WORK, *, limit: int = 64 << 20) -> dict[str, Entry]:
        return self.box.get(at, limit=limit)

    def close(self) -> None:
        self._back(self)
