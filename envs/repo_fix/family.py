"""The procedural family: tiny Python packages with one injected fault, made from a seed.

    functions.py     what the functions are: name, expression, how it goes wrong, how that is fixed
    family.py        a package and its tests around one faulty function

A task is a pure function of (seed, concept). What is drawn does not depend on what else is drawn,
so two concepts that share a parameter share what comes of it. That the tests named in
`fail_to_pass` fail, and that after the fix everything passes, is checked while a task is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any, Literal, NamedTuple, TypeAlias

from sao_gym import rng
from sao_gym.envs.repo_fix.functions import FAULTS, FUNCTIONS, NAMES, Fault, Function
from sao_gym.envs.repo_fix.symbols import SYMBOLS, changed
from sao_gym.repo.task import RepoTask
from sao_gym.tree import Entry, Patch

Style: TypeAlias = Literal["lambda", "line", "block", "letters"]
Tests: TypeAlias = Literal["assert", "table", "loop"]

STYLES = ("lambda", "line", "block", "letters")
TESTS = ("assert", "table", "loop")
_OWNER = "repo_fix.family"
_TRIES = 64
_LAYOUTS = {
    "lambda": "{name}=lambda {params}:{expression}",
    "letters": "{name}=lambda {params}:{expression}",
    "line": "def {name}({params}):return {expression}",
    "block": "def {name}({params}):\n return {expression}",
}
_DEFINED = {"lambda": "%s=", "letters": "%s=", "line": "def %s(", "block": "def %s("}
"""What to search for to find where a function is defined."""
_LETTERS = "fgh"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """Which tasks are drawn: a checked concept."""

    faults: tuple[tuple[str, float], ...]
    """Kind and weight."""
    style: Style = "lambda"
    tests: Tests = "assert"


class Place(NamedTuple):
    """Where the fault is."""

    path: str
    line: int
    """From 1."""
    symbol: str
    """The compact edit that mends it."""
    gold: str
    """The line as it should be."""


Examples: TypeAlias = tuple[tuple[Any, ...], ...]
"""Arguments of calls."""


def make(seed: int, mix: Mix) -> RepoTask:
    """The task of a seed: sources with one fault, their tests, the fix."""
    kind = _weighted(mix.faults, rng.uniform(seed, _OWNER, "kind"))
    return _built(seed, kind, mix.style, mix.tests)


def task_of(name: str) -> RepoTask | None:
    """The task of an id, made again; None if it is not the id of such a task."""
    kind, _, rest = name.partition("-")
    style, _, rest = rest.partition("-")
    tests, _, seed = rest.partition("-")
    known = kind in FAULTS and style in STYLES and tests in TESTS
    if not known or len(seed) != 8 or set(seed) - set("0123456789abcdef"):
        return None
    return _built(int(seed, 16), kind, style, tests)


def _built(seed: int, kind: str, style: str, tests_style: str) -> RepoTask:
    known = FAULTS[kind]
    fault = known[_below(len(known), seed, "fault")]
    functions = _cast(seed, fault)
    names = _named(functions, style)
    lines = {f.name: _written(f, f.expression, names, style) for f in functions}
    wrong = dict(lines)
    wrong[fault.function] = _written(FUNCTIONS[fault.function], fault.expression, names, style)
    modules = _split(seed, functions, style)
    gold, faulty = _sources(modules, lines), _sources(modules, wrong)
    tests = _tests(seed, fault, modules, names, tests_style)
    before = {path: Entry("file", text.encode()) for path, text in faulty.items()}
    after = {path: Entry("file", text.encode()) for path, text in gold.items()}
    fix = {path: entry for path, entry in after.items() if before[path] != entry}
    (path,) = fix
    place = _place(path, faulty[path], gold[path], fault.symbol)
    broken = [f.name for f in functions if _depends(f, fault)]
    told = names[fault.function]
    named = {f.name: f"test_{_module_of(f, modules)}.py::test_{names[f.name]}" for f in functions}
    return RepoTask(
        id=f"{kind}-{style}-{tests_style}-{seed:08x}",
        instruction=f"Mend {told}: test_{told} fails. Change the source, not the tests.",
        tree=before | tests,
        tests=tests,
        fail_to_pass=tuple(named[name] for name in broken),
        pass_to_pass=tuple(test for name, test in named.items() if name not in broken),
        gold=Patch(fix, ()),
        runner="functions",
        seconds=5.0,
        extra={"kind": kind, "name": told, "word": _DEFINED[style] % told, "place": place},
    )


def _weighted(weights: Sequence[tuple[str, float]], draw: float) -> str:
    total = sum(weight for _, weight in weights)
    for (kind, _), upto in zip(weights, accumulate(w for _, w in weights), strict=True):
        if draw * total < upto:
            return kind
    return [kind for kind, weight in weights if weight][-1]


def _below(limit: int, seed: int, *key: int | str) -> int:
    return int(rng.uniform(seed, _OWNER, *key) * limit)


def _cast(seed: int, fault: Fault) -> list[Function]:
    """The faulty function, what it calls, and others up to two or three, callees first."""
    needed = FUNCTIONS[fault.function]
    cast = [FUNCTIONS[name] for name in needed.calls] + [needed]
    count = 2 + _below(2, seed, "count")
    for turn in range(_TRIES):
        if len(cast) >= count:
            break
        other = FUNCTIONS[NAMES[_below(len(NAMES), seed, "other", turn)]]
        if other in cast or not {f.name for f in cast}.issuperset(other.calls):
            continue
        cast.insert(_below(len(cast) + 1, seed, "at", turn), other)
    # a function that is called comes before its caller
    return sorted(cast, key=lambda f: bool(f.calls))


def _named(functions: Sequence[Function], style: str) -> dict[str, str]:
    if style != "letters":
        return {f.name: f.name for f in functions}
    return {f.name: letter for f, letter in zip(functions, _LETTERS, strict=False)}


def _written(function: Function, expression: str, names: Mapping[str, str], style: str) -> str:
    for called in function.calls:
        expression = expression.replace(f"{called}(", f"{names[called]}(")
    layout = _LAYOUTS[style]
    return layout.format(
        name=names[function.name], params=",".join(function.params), expression=expression
    )


def _split(seed: int, functions: Sequence[Function], style: str) -> dict[str, list[Function]]:
    """One module, or two of which the second knows the first."""
    if style == "block" or rng.uniform(seed, _OWNER, "modules") < 0.7:
        return {"m": list(functions)}
    return {"m": list(functions[:-1]), "n": list(functions[-1:])}


def _sources(modules: Mapping[str, Sequence[Function]], lines: Mapping[str, str]) -> dict[str, str]:
    sources = {}
    for module, functions in modules.items():
        known = [] if module == "m" or not any(f.calls for f in functions) else ["from m import*"]
        text = "\n".join([*known, *(lines[f.name] for f in functions)])
        sources[f"{module}.py"] = text + "\n"
    return sources


def _module_of(function: Function, modules: Mapping[str, Sequence[Function]]) -> str:
    return next(module for module, functions in modules.items() if function in functions)


def _depends(function: Function, fault: Fault) -> bool:
    return function.name == fault.function or fault.function in function.calls


def _place(path: str, faulty: str, gold: str, symbol: str) -> Place:
    pairs = zip(faulty.splitlines(), gold.splitlines(), strict=True)
    ((line, was, now),) = [(i, w, g) for i, (w, g) in enumerate(pairs, start=1) if w != g]
    assert changed(was, symbol) == now, (was, symbol, now)
    return Place(path, line, symbol, now)


# -- tests -----------------------------------------------------------------------------------


def _tests(
    seed: int,
    fault: Fault,
    modules: Mapping[str, Sequence[Function]],
    names: Mapping[str, str],
    style: str,
) -> dict[str, Entry]:
    tests = {}
    for module, functions in modules.items():
        text = [f"from {module} import*"]
        for function in functions:
            cases = _examples(seed, fault, function)
            text.append(_test(names[function.name], cases, style))
        tests[f"test_{module}.py"] = Entry("file", ("\n".join(text) + "\n").encode())
    return tests


def _test(name: str, cases: Sequence[tuple[tuple[Any, ...], Any]], style: str) -> str:
    head = f"def test_{name}():"
    if style == "assert":
        return "\n".join([head, *(f" assert {name}({_args(a)})=={_said(r)}" for a, r in cases)])
    if style == "table":
        rows = ",".join(f"(({_args(a)},),{_said(r)})" for a, r in cases)
        return f"{head}\n for a,r in[{rows}]:assert {name}(*a)==r"
    columns = [
        f"[{','.join(map(_said, column))}][i]"
        for column in zip(*(a for a, _ in cases), strict=True)
    ]
    results = ",".join(_said(r) for _, r in cases)
    call = f"{name}({','.join(columns)})"
    return f"{head}\n for i in range({len(cases)}):\n  assert {call}==[{results}][i]"


def _args(args: Sequence[Any]) -> str:
    return ",".join(map(_said, args))


def _said(value: Any) -> str:
    return repr(value).replace(" ", "")


def _examples(seed: int, fault: Fault, function: Function) -> list[tuple[tuple[Any, ...], Any]]:
    """Calls and their results; those of the faulty function tell every other fix from the right."""
    rivals = _rivals(fault) if function.name == fault.function else ()
    right = _compiled(function.name, function.expression)
    wrong = [_compiled(function.name, text) for text in rivals]
    if _depends(function, fault) and not rivals:
        wrong = [_compiled(function.name, function.expression, fault)]
    for attempt in range(_TRIES):
        cases = [
            _arguments(function, seed, function.name, attempt, number)
            for number in range(2 if attempt < _TRIES // 2 else 3)
        ] + [*function.special]
        told = [(args, right(*args)) for args in cases]
        if all(any(_differs(f, args, r) for args, r in told) for f in wrong):
            return told
    raise AssertionError(f"{function.name}: no examples tell {fault} from the right one")


def _arguments(function: Function, *key: int | str) -> tuple[Any, ...]:
    def number(*more: int | str) -> int:
        return 1 + _below(6, *key, *more)  # type: ignore[arg-type]

    return tuple(
        [number(name, i) for i in range(3)] if name == "x" else number(name)
        for name in function.params
    )


@lru_cache(maxsize=1024)
def _rivals(fault: Fault) -> tuple[str, ...]:
    """What the faulty function is and what one compact edit may make of it, the fix left out."""
    function = FUNCTIONS[fault.function]
    head = f"def f({','.join(function.params)}):return "
    made = {changed(head + fault.expression, symbol) for symbol in SYMBOLS} - {None}
    texts = {str(line).removeprefix(head) for line in made} | {fault.expression}
    return tuple(sorted(texts - {function.expression}))


@lru_cache(maxsize=4096)
def _compiled(name: str, expression: str, fault: Fault | None = None) -> Any:
    """The function itself, with the functions that it calls (one of them faulty, perhaps)."""
    function = FUNCTIONS[name]
    scope: dict[str, Any] = {}
    for called in function.calls:
        text = FUNCTIONS[called].expression
        if fault is not None and fault.function == called:
            text = fault.expression
        scope[called] = _compiled(called, text)
    code = f"lambda {','.join(function.params)}:{expression}"
    return eval(code, scope)  # our own text, never an agent's


def _differs(function: Any, args: tuple[Any, ...], result: Any) -> bool:
    try:
        return bool(function(*args) != result)
    except (ArithmeticError, LookupError, NameError, TypeError, ValueError):
        return True
