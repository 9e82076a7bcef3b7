"""Patches and verdicts as JSON, for event logs. Bytes are base64, so nothing is mangled.

    {"task": id, "patch": {"written": {path: [kind, data, executable]}, "removed": [path]},
     "verdict": {"resolved", "passed", "failed", "missing", "detail"}}

Names that are no UTF-8 cannot stand in JSON; such a path is written as `base64:` and its bytes. A
path that begins with `base64:` itself is written the same way.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from typing import Any

from sao_gym.errors import InputError
from sao_gym.repo.task import Verdict
from sao_gym.tree import Entry, Patch, Tree

_CODED = "base64:"


def record(task: str, patch: Patch, verdict: Verdict | None) -> dict[str, Any]:
    """What an environment leaves in `info["record"]` at the end of an episode."""
    judged = None if verdict is None else verdict_to_json(verdict)
    return {"task": task, "patch": patch_to_json(patch), "verdict": judged}


def patch_to_json(patch: Patch) -> dict[str, Any]:
    return {
        "written": tree_to_json(patch.written),
        "removed": [_name(path) for path in patch.removed],
    }


def patch_from_json(value: Any) -> Patch:
    """Raises InputError if `value` is no patch."""
    try:
        removed = tuple(_path(path) for path in value["removed"])
        return Patch(tree_from_json(value["written"]), removed)
    except (TypeError, KeyError, AttributeError):
        raise InputError("not a stored patch: it has no `written` and `removed`") from None


def tree_to_json(tree: Tree) -> dict[str, Any]:
    return {
        _name(path): [e.kind, base64.b64encode(e.data).decode(), e.executable]
        for path, e in sorted(tree.items())
    }


def tree_from_json(value: Mapping[str, Any]) -> dict[str, Entry]:
    """Raises InputError if `value` is no tree."""
    tree = {}
    for name, parts in value.items():
        try:
            kind, data, executable = parts
            if kind not in ("file", "link", "dir"):
                raise ValueError
            tree[_path(name)] = Entry(kind, base64.b64decode(data, validate=True), bool(executable))
        except (TypeError, ValueError):
            raise InputError(f"not a stored file: {name!r}") from None
    return tree


def verdict_to_json(verdict: Verdict) -> dict[str, Any]:
    return {
        "resolved": verdict.resolved,
        "passed": list(verdict.passed),
        "failed": list(verdict.failed),
        "missing": list(verdict.missing),
        "detail": verdict.detail,
    }


def verdict_from_json(value: Mapping[str, Any]) -> Verdict:
    """Raises InputError if `value` is no verdict."""
    try:
        return Verdict(
            resolved=bool(value["resolved"]),
            passed=tuple(value["passed"]),
            failed=tuple(value["failed"]),
            missing=tuple(value["missing"]),
            detail=str(value.get("detail", "")),
        )
    except (TypeError, KeyError):
        raise InputError("not a stored verdict") from None


def _name(path: str) -> str:
    raw = os.fsencode(path)
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError:
        return _CODED + base64.b64encode(raw).decode()
    return _CODED + base64.b64encode(raw).decode() if path.startswith(_CODED) else path


def _path(name: str) -> str:
    if name.startswith(_CODED):
        return os.fsdecode(base64.b64decode(name.removeprefix(_CODED), validate=True))
    return name
