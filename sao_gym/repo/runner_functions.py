"""Runs inside a box: module-level `test_*` functions, each in a process of its own.

A worker of `runner_parent.py`, which hands it `tools`. Names are `PATH::FUNCTION`. The worker
compiles the test files before any code under test has run and never imports that code. For each
test it forks a process, which runs the test file, says that it is ready, gets a random token,
calls the function, and sends the token back if the function returned. A test has passed if the
worker heard exactly that and the process then ended with status 0.

So these are failures, and only of their own test: an exit at import or in the test, with whatever
status; an endless loop; a crash; a skip. The functions that the process needs (`os._exit`,
`os.write`, ...) are taken before the code under test is imported, so replacing them changes
nothing. A function defined without a decorator must still be the one in the test file when it is
called. If a test changes a test file on the disk, it and all later ones fail.

Not sealed: code under test runs in the process of its test. It can look through the frames above
it for the token, send it and leave; it can replace what the test calls, or return objects that are
equal to everything. Tests are no defence against code that was written to deceive them in their
own process; here it must at least do so on purpose, in every test, while the test runs.
"""

from __future__ import annotations

import ast
import contextlib
import os
import sys
import time
import types
from typing import Any

tools: Any = globals().get("tools")
_NOT_PLAIN = 0x20 | 0x80 | 0x200
"""Code flags of generators and coroutines, which would return without having run."""


def work(plan: dict[str, Any]) -> dict[str, Any]:
    """Run the tests of a plan.

    `{"root", "modules": test paths, "only": names or None, "watched": paths, "seconds", "each"}` ->
    `{"outcomes": {name: [passed, why]}, "timed_out": bool}`
    """
    root = os.path.abspath(plan["root"])
    deadline = time.monotonic() + plan["seconds"]
    before = tools.stamps(root, plan["watched"])
    outcomes: dict[str, list[Any]] = {}
    compiled = [(path, *_compiled(root, path)) for path in plan["modules"]]
    for path, code, functions, why in compiled:
        for name, original in functions.items():
            full = f"{path}::{name}"
            if plan["only"] is not None and full not in plan["only"]:
                continue
            left = deadline - time.monotonic()
            if left <= 0:
                return {"outcomes": outcomes, "timed_out": True}
            if code is None:
                outcomes[full] = [False, why]
                continue
            limit = min(plan["each"], left)
            outcomes[full] = _attempt(root, path, code, name, original, limit)
            if tools.stamps(root, plan["watched"]) != before:
                outcomes[full] = [False, "a test file was changed while the test ran"]
                return {"outcomes": outcomes, "timed_out": False, "tampered": True}
    return {"outcomes": outcomes, "timed_out": time.monotonic() >= deadline}


def _compiled(root: str, path: str) -> tuple[types.CodeType | None, dict[str, Any], str]:
    """Code of a test file, and its tests in order: name -> code (None if decorated)."""
    try:
        with open(os.path.join(root, path), "rb") as file:
            source = file.read()
        tree = ast.parse(source, path)
        code = compile(source, os.path.join(root, path), "exec", dont_inherit=True)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return None, {}, f"{type(error).__name__}: {error}"
    constants = {c.co_name: c for c in code.co_consts if isinstance(c, types.CodeType)}
    found: dict[str, Any] = {}
    for node in tree.body:
        kinds = ast.FunctionDef | ast.AsyncFunctionDef
        if isinstance(node, kinds) and node.name.startswith("test_"):
            found[node.name] = None if node.decorator_list else constants.get(node.name)
    return code, found, ""


def _attempt(
    root: str, path: str, code: types.CodeType, name: str, original: Any, seconds: float
) -> list[Any]:
    """Whether a test passed, and if not, why."""
    token = os.urandom(16)
    pid, up, down = tools.child()
    if pid == 0:
        leave = os._exit
        try:
            _run(up, down, root, path, code, name, original)
        finally:
            leave(1)
    said = bytearray()

    def heard(data: bytes) -> None:
        if not said and data[:1] == b"R":
            with contextlib.suppress(OSError):  # it may be gone already
                os.write(down, token)
        if len(said) < 4096:
            said.extend(data)

    status = tools.follow(pid, up, seconds, heard)
    os.close(up)
    os.close(down)
    if status is None:
        return [False, f"did not end within {seconds:.3g} s"]
    if status == 0 and bytes(said) == b"R" + token:
        return [True, ""]
    text = bytes(said).removeprefix(b"R")
    if text[:1] == b"F":
        return [False, " ".join(text[1:].decode("utf-8", "replace").split())[:200]]
    return [False, f"the process ended by itself, with exit code {status}"]


def _run(
    down: int, up: int, root: str, path: str, code: types.CodeType, name: str, original: Any
) -> None:
    """In the child: run one test and leave. Everything it needs later is taken at the beginning."""
    write, read, leave, kind = os.write, os.read, os._exit, types.FunctionType
    base, text = BaseException, str
    here = os.path.join(root, path)
    os.chdir(root)
    source = os.path.join(root, "src")
    sys.path[:0] = [root, source] if os.path.isdir(source) else [root]
    sys.path.append(os.path.dirname(here))
    sys.argv = [here]
    module = types.ModuleType(os.path.basename(path)[:-3])
    module.__file__ = here
    sys.modules[module.__name__] = module
    space = module.__dict__
    try:
        exec(code, space)
        function = space[name]
        if original is not None and (
            type(function) is not kind or function.__code__ is not original
        ):
            raise RuntimeError("the test function is not the one in the test file")
        if getattr(getattr(function, "__code__", None), "co_flags", 0) & _NOT_PLAIN:
            raise RuntimeError("only plain functions are run as tests")
        write(up, b"R")
        token = read(down, 16)
        function()
        write(up, token)
        leave(0)
    except base as error:
        said = f"{type(error).__name__}: {text(error)}"
        write(up, b"F" + said.encode("utf-8", "replace")[:2000])
