"""What a case of the suite is given."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TypeAlias

from sao_gym.sandbox import Box, BoxLimits, BoxSpec, Ran, Sandbox

Wrong: TypeAlias = str | None
"""What is wrong, in one line; None if nothing is."""


class Trial:
    """The boxes of a run of the suite."""

    def __init__(self, sandbox: Sandbox, image: str) -> None:
        self.sandbox, self.image = sandbox, image
        self._shared: Box | None = None

    def box(self) -> Box:
        """One that harmless cases share."""
        if self._shared is None:
            self._shared = self.sandbox.start(BoxSpec(image=self.image))
        return self._shared

    def renew(self) -> None:
        """Close what is shared."""
        if self._shared is not None:
            self._shared.close()
            self._shared = None

    @contextlib.contextmanager
    def own(self, limits: BoxLimits | None = None) -> Iterator[Box]:
        """One for a case that is not harmless."""
        box = self.sandbox.start(BoxSpec(image=self.image, limits=limits or BoxLimits()))
        try:
            yield box
        finally:
            box.close()

    def python(
        self, code: str, *arguments: str, box: Box | None = None, seconds: float = 20
    ) -> Ran:
        """Run a program inside."""
        return (box or self.box()).run(["python3", "-c", code, *arguments], seconds=seconds)


def short(output: bytes) -> str:
    """Its last lines, in one."""
    lines = output.decode("utf-8", "replace").strip().splitlines()
    return "; ".join(lines[-3:])[:200]
