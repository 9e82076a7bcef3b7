"""One box for many runs in a row: a start costs more than most commands."""

from __future__ import annotations

from sao_gym.errors import MachineryError
from sao_gym.sandbox import WORK, Box, BoxSpec, Sandbox
from sao_gym.sandboxes.lent import Lent

_SECONDS = 30.0


class KeptSandbox:
    """A `Sandbox` that gives the same box again, with its folders emptied, until it is closed.

    For one user at a time who trusts what came before, such as an agent's own test runs: files
    outside of `WORK` and `spec.empty` stay. A box that cannot be emptied is replaced.
    """

    def __init__(self, sandbox: Sandbox) -> None:
        """The sandbox below stays its owner's to close."""
        self.name, self.isolation = sandbox.name, sandbox.isolation
        self._sandbox = sandbox
        self._box: Box | None = None
        self._spec: BoxSpec | None = None

    def start(self, spec: BoxSpec) -> Box:
        if self._box is None or self._spec != spec or not _emptied(self._box, spec):
            self.close()
            self._box, self._spec = self._sandbox.start(spec), spec
        return Lent(self._box, lambda _: None)

    def close(self) -> None:
        if self._box is not None:
            self._box.close()
            self._box = None


def _emptied(box: Box, spec: BoxSpec) -> bool:
    emptying = ["find", ".", "-mindepth", "1", "-delete"]
    try:
        return not any(
            box.run(emptying, seconds=_SECONDS, cwd=folder).code for folder in (WORK, *spec.empty)
        )
    except MachineryError:
        return False
