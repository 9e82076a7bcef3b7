"""Runs inside a box: pytest, reporting through a pipe instead of its output.

A worker of `runner_parent.py`, which hands it `tools`. pytest runs in a child of the worker, with
our ini file, without plug-ins that load themselves (`PYTEST_DISABLE_PLUGIN_AUTOLOAD`), without its
cache and without rewritten assertions. Our plug-in tells of each phase of each item whether it
raised, with a token that came through the pipe; what pytest prints is never read. A test has passed
if its setup, call and teardown were told and none raised (a skip and an expected failure raise).
Where all tests are asked for, a file whose tests cannot be collected has failed, under its path.

The code under test is imported into the same process as pytest. So the plug-in notes, before any of
it runs, every function and class of pytest and pluggy, of a few modules that these rely on, and the
methods of the classes; and it looks again before and after each test. A replaced one, a plug-in
that neither pytest nor the task brought, a test function that is not the one in its file, or a test
file that changed on the disk, fails the whole run. So does a process that ends before the session.

Not sealed: as in `runner_functions.py`, code that was written to look for the plug-in's closure in
its own process can find the token and lie.
"""

from __future__ import annotations

import ast
import importlib
import json
import os
import sys
import traceback
import types
from typing import Any

tools: Any = globals().get("tools")
_RELIED_ON = ("os", "posix", "sys", "builtins", "inspect", "functools", "json", "traceback", "ast")
_REPLACED = ("_getini_unknown_type",)
"""What pytest itself replaces when it starts (its plug-in `legacypath`); so it does with hooks of
`sys`, which are left out too."""
_MOST = 64 << 20
"""Bytes of what the plug-in tells. The descriptor is open to the code under test as well."""


def work(plan: dict[str, Any]) -> dict[str, Any]:
    """Run the tests of a plan.

    `{"root", "modules": test paths, "only": names or None, "watched": paths, "ini": path,
    "arguments", "plugins", "seconds"}` ->
    `{"outcomes": {node id: [passed, why]}, "timed_out", "tampered": bool, "why"}`
    """
    root = os.path.abspath(plan["root"])
    known = {
        os.path.join(root, path): _functions(os.path.join(root, path)) for path in plan["watched"]
    }
    token = os.urandom(16).hex()
    before = tools.stamps(root, plan["watched"])
    pid, up, down = tools.child()
    if pid == 0:
        _run(up, down, root, plan, known)
    os.write(down, token.encode())
    status, said = tools.listen(pid, up, down, plan["seconds"], _MOST)
    answer = _judged(said, token)
    if status is None:
        return answer | {"timed_out": True}
    if tools.stamps(root, plan["watched"]) != before:
        answer |= {"tampered": True, "why": "a test file was changed while the tests ran"}
    elif not answer.pop("ended"):
        answer |= {"tampered": True, "why": f"pytest was left before its end, with status {status}"}
    return answer


def _judged(said: bytes, token: str) -> dict[str, Any]:
    """What the plug-in told, line by line."""
    phases: dict[str, dict[str, str]] = {}
    ended, why = False, ""
    for line in said.split(b"\n"):
        try:
            record = json.loads(line)
            if record["token"] != token:
                continue
            if "end" in record:
                ended, why = True, str(record["end"])
                continue
            seen = phases.setdefault(str(record["id"]), {})
            seen[record["when"]] = seen.get(record["when"], "") or str(record["raised"])
        except (ValueError, KeyError, TypeError, RecursionError, MemoryError):
            continue  # whatever the code under test wrote there
    outcomes = {}
    for name, seen in phases.items():
        raised = next((text for text in seen.values() if text), "")
        whole = {"setup", "call", "teardown"} <= set(seen)
        outcomes[name] = [
            whole and not raised,
            raised or ("" if whole else "did not come to its end"),
        ]
    return {
        "outcomes": outcomes,
        "timed_out": False,
        "tampered": bool(why),
        "why": why,
        "ended": ended,
    }


def _functions(path: str) -> dict[str, Any]:
    """Qualified name -> code, and whether nothing is wrapped around it, of a file's functions."""
    try:
        with open(path, "rb") as file:
            source = file.read()
        tree = ast.parse(source)
        code = compile(source, path, "exec", dont_inherit=True)
        return _inside(tree.body, code)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return {}


def _inside(body: list[ast.stmt], code: types.CodeType) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def visit(body: list[ast.stmt], code: types.CodeType, prefix: str) -> None:
        inner = {c.co_name: c for c in code.co_consts if isinstance(c, types.CodeType)}
        for node in body:
            if isinstance(node, ast.ClassDef) and node.name in inner:
                visit(node.body, inner[node.name], f"{prefix}{node.name}.")
            elif isinstance(node, ast.FunctionDef) and node.name in inner:
                found[prefix + node.name] = (inner[node.name], _plain(node))

    visit(body, code, "")
    return found


def _plain(node: ast.FunctionDef) -> bool:
    """Whether no decorator but a mark of pytest stands before it."""
    return all("mark." in ast.unparse(decorator) for decorator in node.decorator_list)


def _run(down: int, up: int, root: str, plan: dict[str, Any], known: dict[str, Any]) -> None:
    """In the child: run pytest and leave."""
    leave = os._exit
    try:
        for name in [n for n in os.environ if n.startswith(("PYTEST", "PYTHON"))]:
            del os.environ[name]
        os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        import pytest
        from _pytest.config import default_plugins

        for plugin in default_plugins:
            importlib.import_module(f"_pytest.{plugin}")
        for plugin in plan["plugins"]:
            importlib.import_module(plugin)
        ini = os.path.abspath(plan["ini"])
        os.chdir(root)
        source = os.path.join(root, "src")
        guard = _guard(known, set(plan["plugins"]))
        ours = _plugin(os.read(down, 32).decode(), up, guard, plan["only"] is None)
        guard["ours"](ours)
        sys.path[:0] = [root, source] if os.path.isdir(source) else [root]
        arguments = ["-c", ini, "--rootdir", root, "-p", "no:cacheprovider", "--assert=plain", "-q"]
        arguments += ["--color=no", "--tb=line", "--continue-on-collection-errors"]
        arguments += [part for name in plan["plugins"] for part in ("-p", name)]
        paths = [os.path.join(root, path) for path in plan["modules"]] or ["--ignore-glob=*"]
        pytest.main([*arguments, *plan["arguments"], *paths], plugins=[ours])
    except BaseException:  # noqa: BLE001 - told in the output; the worker sees that no end came
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        leave(0)


def _plugin(token: str, up: int, guard: dict[str, Any], everything: bool) -> Any:
    """Our plug-in. What it needs stands in its closure, taken before other code ran.

    `everything`: also tell of what could not be collected.
    """
    import pytest

    write, dumps, text, short = os.write, json.dumps, str, 300
    look, foreign, same = guard["look"], guard["foreign"], guard["same"]
    found: list[str] = []

    def tell(record: dict[str, Any]) -> None:
        data = (dumps(record | {"token": token}) + "\n").encode()
        while data:
            data = data[write(up, data) :]

    def check(where: str, config: Any = None) -> None:
        wrong = look(where) or (foreign(config) if config is not None else "")
        if wrong and not found:
            found.append(wrong)

    def line(error: Any) -> str:
        """What was raised. Never empty, which would say that nothing was."""
        return " ".join(f"{text(type(error).__name__)}: {text(error)}".split())[:short]

    class Plugin:
        @pytest.hookimpl(hookwrapper=True)
        def pytest_make_collect_report(self, collector: Any) -> Any:
            result = yield
            if everything and (error := _uncollected(result, collector)) is not None:
                tell({"id": collector.nodeid, "when": "collect", "raised": line(error)})

        @pytest.hookimpl(trylast=True)
        def pytest_collection_finish(self, session: Any) -> None:
            check("all", session.config)
            for item in session.items:
                if (wrong := same(item)) and not found:
                    found.append(wrong)

        @pytest.hookimpl(tryfirst=True)
        def pytest_runtest_setup(self, item: Any) -> None:
            check("all", item.config)

        @pytest.hookimpl(tryfirst=True, hookwrapper=True)
        def pytest_runtest_makereport(self, item: Any, call: Any) -> Any:
            check("pytest", item.config)
            wrong = same(item)
            if wrong and not found:
                found.append(wrong)
            raised = "" if call.excinfo is None else line(call.excinfo.value)
            tell({"id": item.nodeid, "when": call.when, "raised": raised})
            yield

        @pytest.hookimpl(trylast=True)
        def pytest_sessionfinish(self, session: Any) -> None:
            check("all", session.config)
            tell({"end": found[0] if found else ""})

    return Plugin()


def _uncollected(result: Any, collector: Any) -> BaseException | None:
    """What was raised where tests were collected."""
    call = None if result.excinfo else getattr(result.get_result(), "call", None)
    info = call.excinfo if call else None
    error = result.excinfo[1] if result.excinfo else info and info.value
    if isinstance(error, collector.CollectError):  # pytest's own, around an ImportError
        error = error.__cause__ or error
    return error


Kept = dict[str, list[tuple[Any, str, Any, Any]]]


def _note(owner: Any, into: list[tuple[Any, str, Any, Any]]) -> None:
    """Keep what a module or class holds in functions, classes and methods."""
    kinds = (types.FunctionType, types.BuiltinFunctionType, type, property)
    for name, value in list(vars(owner).items()):
        if name in _REPLACED or name.endswith("hook"):
            continue
        if isinstance(value, kinds) or hasattr(value, "__func__"):
            into.append((vars(owner), name, value, getattr(value, "__code__", None)))
            if isinstance(value, type) and value.__module__ == getattr(owner, "__name__", None):
                _note(value, into)


def _snapshot(plugins: set[str]) -> tuple[Kept, set[int]]:
    """What pytest and what it relies on are made of, and the ids of plug-ins that may be."""
    kept: Kept = {"pytest": [], "other": []}
    brought: set[int] = set()
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in ("_pytest", "pytest", "pluggy") or name in plugins:
            _note(module, kept["pytest"])
            brought.add(id(module))
            brought.update(id(kind) for kind in vars(module).values() if isinstance(kind, type))
        elif name in _RELIED_ON:
            _note(module, kept["other"])
    return kept, brought


def _guard(known: dict[str, Any], plugins: set[str]) -> dict[str, Any]:
    """Functions that tell what is no longer as it was before code under test ran; "" if nothing."""
    kept, brought = _snapshot(plugins)
    function, module, fetch, nothing = types.FunctionType, types.ModuleType, getattr, object()

    def look(where: str) -> str:
        for group in ("pytest", "other") if where == "all" else ("pytest",):
            for space, name, value, code in kept[group]:
                now = space.get(name, nothing)
                if now is not value or (
                    code is not None and type(value) is function and value.__code__ is not code
                ):
                    return f"the code under test replaced {name} of the test runner"
        return ""

    def foreign(config: Any) -> str:
        for plugin in config.pluginmanager.get_plugins():
            if id(plugin) in brought or id(type(plugin)) in brought:
                continue
            if type(plugin) is not module or not from_its_file(plugin):
                name = fetch(plugin, "__name__", type(plugin).__name__)
                return f"a plug-in came from the code under test: {name}"
        return ""

    def from_its_file(plugin: Any) -> bool:
        """Whether a module is one of the task's own files, with the hooks that stand there."""
        written = known.get(fetch(plugin, "__file__", ""))
        return written is not None and all(
            name in written and fetch(value, "__code__", None) == written[name][0]
            for name, value in vars(plugin).items()
            if name.startswith("pytest_") and name != "pytest_plugins"
        )

    def same(item: Any) -> str:
        here, inner = str(item.path), item.nodeid.split("[")[0].split("::")[1:]
        code, plain = known.get(here, {}).get(".".join(inner), (None, False))
        called = fetch(fetch(item, "obj", None), "__func__", fetch(item, "obj", None))
        if plain and fetch(called, "__code__", None) != code:
            return f"the test function of {item.nodeid} is not the one in the test file"
        return ""

    def ours(plugin: Any) -> None:
        _note(type(plugin), kept["pytest"])
        brought.add(id(plugin))

    return {"look": look, "foreign": foreign, "same": same, "ours": ours}
