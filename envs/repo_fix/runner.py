"""Runs inside a box: the tests of the agent's own tree, for the agent to read.

A worker of `sao_gym.repo.runner_parent`, which hands it `tools`. One process runs every `test_*`
function of every `test_*.py` and tells how each ended and, if it failed, what failed: the asserted
expression, or the kind of error and its message. Nothing here decides a reward: that is the
grader's business, which trusts no tree of an agent's.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
import types
from typing import Any

tools: Any = globals().get("tools")
_MOST = 1 << 20
_LONGEST = 500


def work(plan: dict[str, Any]) -> dict[str, Any]:
    """`{"folder", "modules": test files, "seconds"}` -> `{"outcomes": [[name, passed, why]]}`.

    With `"why"` instead if there is no whole report: the tests took too long, ended the process or
    wrote something else where the report goes.
    """
    folder = os.path.abspath(plan["folder"])
    pid, up, down = tools.child()
    if pid == 0:
        _tell(down, _all(folder, plan["modules"]))
    status, said = tools.listen(pid, up, down, plan["seconds"], _MOST)
    if status is None:
        return {"why": f"the tests did not end within {plan['seconds']:g} s"}
    try:
        outcomes = json.loads(said)
    except (ValueError, RecursionError, MemoryError):
        outcomes = None
    if isinstance(outcomes, list) and all(map(_is_row, outcomes)):
        return {"outcomes": outcomes}
    return {"why": f"the tests ended their process, with exit code {status}"}


def _is_row(row: Any) -> bool:
    return isinstance(row, list) and [*map(type, row)] == [str, bool, str]


def _tell(out: int, outcomes: list[list[Any]]) -> None:
    data = json.dumps(outcomes).encode()
    while data:
        data = data[os.write(out, data) :]
    os._exit(0)


def _all(folder: str, paths: list[str]) -> list[list[Any]]:
    os.chdir(folder)
    source = os.path.join(folder, "src")
    sys.path[:0] = [folder, source] if os.path.isdir(source) else [folder]
    outcomes: list[list[Any]] = []
    for path in paths:
        try:
            outcomes += _file(os.path.join(folder, path), path)
        except BaseException as error:  # noqa: BLE001  whatever code under test raises
            outcomes.append([path, False, _why(error, "", [])])
    return outcomes


def _file(here: str, path: str) -> list[list[Any]]:
    with open(here, encoding="utf-8") as file:
        text = file.read()
    module = types.ModuleType(os.path.basename(path)[:-3])
    module.__file__ = here
    exec(compile(text, path, "exec", dont_inherit=True), module.__dict__)
    outcomes: list[list[Any]] = []
    for name, test in list(vars(module).items()):
        if not name.startswith("test_") or not callable(test):
            continue
        try:
            test()
            outcomes.append([f"{path}::{name}", True, ""])
        except BaseException as error:  # noqa: BLE001  whatever code under test raises
            outcomes.append([f"{path}::{name}", False, _why(error, path, text.splitlines())])
    return outcomes


def _why(error: BaseException, path: str, lines: list[str]) -> str:
    """What failed, in one line."""
    message = str(error)
    if isinstance(error, AssertionError) and not message:
        at = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == path]
        if at and at[-1] is not None and at[-1] <= len(lines):
            message = lines[at[-1] - 1].partition("assert ")[2]
            return " ".join(message.split())[:_LONGEST]
    text = f"{type(error).__name__}: {message}" if message else type(error).__name__
    return " ".join(text.split())[:_LONGEST]
