"""SWE-bench JSONL -> tasks.

Needed of a line: `instance_id`, `problem_statement`, `patch`, `test_patch`, `FAIL_TO_PASS`,
`PASS_TO_PASS` and an `image` that is here. With `eval_script`, `log_parser` and `eval_type` (5.x)
the instance is judged by the harness; without them (classic fields) by pytest, if its test names
are node ids. The repository is read from `/testbed` of the image, and both patches are applied
there by git, so that a task holds bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from sao_gym.errors import InputError, MachineryError
from sao_gym.repo import swe
from sao_gym.repo.task import RepoTask
from sao_gym.sandbox import Box, Sandbox
from sao_gym.tree import Entry, Patch, between

SECONDS = 1800.0
"""Time limit of the tests, as in the harness."""

_LARGEST = 1 << 30
_NEEDED = (
    "instance_id",
    "problem_statement",
    "patch",
    "test_patch",
    "FAIL_TO_PASS",
    "PASS_TO_PASS",
)
_HARNESS = ("eval_script", "log_parser", "eval_type", "repo", "version")


class Imported(NamedTuple):
    """One line, or one directory."""

    where: str
    task: RepoTask | None
    why: str = ""
    """One line, if there is no task."""


def import_swebench(path: Path | str, sandbox: Sandbox) -> Iterator[Imported]:
    """The tasks of a JSONL file, line by line; what is wrong with one stops no other.

    Raises:
        InputError: the file cannot be read.
    """
    try:
        lines = Path(path).read_bytes().split(b"\n")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    for number, line in enumerate(lines, 1):
        if line.strip():
            where = f"{path}, line {number}"
            try:
                yield Imported(where, task_of(parsed(line), sandbox))
            except (InputError, MachineryError) as error:
                yield Imported(where, None, str(error))


def parsed(line: bytes) -> dict[str, Any]:
    """An instance with its lists as lists. Raises InputError."""
    try:
        instance = json.loads(line)
    except ValueError as error:
        raise InputError(f"not JSON ({error})") from None
    if not isinstance(instance, dict):
        raise InputError("not an object")
    if missing := [name for name in _NEEDED if name not in instance]:
        raise InputError(f"no field {missing[0]!r}")
    for name in ("FAIL_TO_PASS", "PASS_TO_PASS"):
        instance[name] = _names(name, instance[name])
    if not instance["FAIL_TO_PASS"]:
        raise InputError("FAIL_TO_PASS is empty; nothing would show a fix")
    if not instance.get("image"):
        raise InputError("no field 'image'; name the image that holds the repository in /testbed")
    return instance


def task_of(instance: Mapping[str, Any], sandbox: Sandbox) -> RepoTask:
    """Raises InputError or MachineryError if the image or a patch cannot be used."""
    ours = [name for name in _HARNESS if not instance.get(name)]
    expected = [*instance["FAIL_TO_PASS"], *instance["PASS_TO_PASS"]]
    if ours and not all("::" in name for name in expected):
        raise InputError(f"no field {ours[0]!r}, and its test names are no pytest node ids")
    box = sandbox.start(swe.as_made(str(instance["image"])))
    try:
        tree = box.get(swe.TESTBED, limit=_LARGEST)
        tests = _changed(box, tree, instance["test_patch"], "test_patch")
        gold = _changed(box, tree, instance["patch"], "patch")
    finally:
        box.close()
    return RepoTask(
        id=str(instance["instance_id"]),
        instruction=str(instance["problem_statement"]),
        tree=tree,
        tests=tests.written,
        fail_to_pass=tuple(instance["FAIL_TO_PASS"]),
        pass_to_pass=tuple(instance["PASS_TO_PASS"]),
        gold=gold,
        runner="pytest" if ours else "swebench",
        image=str(instance["image"]),
        root=swe.TESTBED,
        setup=swe.ACTIVATE,
        seconds=SECONDS,
        extra={"instance": dict(instance)},
    )


def _names(field: str, value: Any) -> list[str]:
    """A list of test names; the data sets hold it as JSON text too."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise InputError(f"{field} is neither a list nor JSON") from None
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise InputError(f"{field} is not a list of test names")
    return value


def _changed(box: Box, before: dict[str, Entry], patch: Any, what: str) -> Patch:
    """What a text patch does to the repository, as bytes; it is taken back afterwards."""
    if not isinstance(patch, str) or not patch.strip():
        raise InputError(f"{what} is empty")
    _git(box, ["apply", "--whitespace=nowarn", "-"], patch, what)
    after = box.get(swe.TESTBED, limit=_LARGEST)
    _git(box, ["apply", "--whitespace=nowarn", "-R", "-"], patch, what)
    return between(before, after)


def _git(box: Box, arguments: list[str], patch: str, what: str) -> None:
    command = ["git", "-c", "safe.directory=*", *arguments]
    ran = box.run(
        command, seconds=120, stdin=patch.encode("utf-8", "surrogateescape"), cwd=swe.TESTBED
    )
    if ran.code in (126, 127):
        raise MachineryError("image", "the image has no git")
    if ran.code:
        said = ran.output.decode("utf-8", "replace").strip().splitlines()[:1]
        raise InputError(f"{what} does not apply ({''.join(said)})")
