"""What is known of a real fix before anything is downloaded: one YAML file each, beside this one.

Instructions and tests are our own words and code, written from what the releases do. The packages
are pure Python without dependencies, under a permissive licence.
"""

from __future__ import annotations

import importlib.resources
from typing import Annotated, Literal

from pydantic import Field

from sao_gym.validation import Section, check
from sao_gym.yaml_source import parse

Licence = Literal["MIT", "BSD-2-Clause", "BSD-3-Clause", "Apache-2.0"]
Name = Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]
Test = Annotated[str, Field(pattern=r"^test_[a-z0-9_]+$")]


class Release(Section):
    """One release of a package: its wheel, which is the same for every platform."""

    version: Annotated[str, Field(pattern=r"^\d+(\.\d+)+$")]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Fix(Section):
    """One fault of a release, and the next release, which mends it."""

    id: Name
    package: Name
    licence: Licence
    before: Release
    after: Release
    files: Annotated[tuple[str, ...], Field(min_length=1)]
    """The source files that the fix changes; the gold patch is these as they are in `after`."""
    instruction: str
    fail_to_pass: Annotated[tuple[Test, ...], Field(min_length=1)]
    pass_to_pass: Annotated[tuple[Test, ...], Field(min_length=1)]
    test: str
    """A test file: module-level functions that need nothing but the package."""

    @property
    def test_path(self) -> str:
        """Where the grader puts the test file."""
        return f"tests/test_{self.id.replace('-', '_')}.py"


def fixes() -> tuple[Fix, ...]:
    """All of them, by id.

    Raises:
        InputError: a file is not what `Fix` says; names file and line.
    """
    found = []
    for file in importlib.resources.files(__package__).iterdir():
        if file.name.endswith(".yaml"):
            found.append(check(Fix, parse(file.read_text(encoding="utf-8"), name=file.name)))
    return tuple(sorted(found, key=lambda fix: fix.id))
