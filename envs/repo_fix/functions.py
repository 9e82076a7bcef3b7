"""The functions that the procedural family is made of, and every fault that they can have.

A name says what its function does, so that a policy can learn what is right from the name, and has
to ask the tests where the names say nothing (style `letters`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from sao_gym.envs.repo_fix.symbols import changed


class Function(NamedTuple):
    name: str
    params: str
    """One letter each: `a`, `b` numbers, `x` a list of three numbers."""
    expression: str
    calls: tuple[str, ...] = ()
    """Other functions of this table."""
    special: tuple[tuple[Any, ...], ...] = ()
    """Arguments that its tests always try."""


class Fault(NamedTuple):
    function: str
    expression: str
    """As it is, wrong."""
    symbol: str
    """The compact edit that mends it."""


_PLAIN = (
    Function("add", "ab", "a+b"),
    Function("sub", "ab", "a-b"),
    Function("mul", "ab", "a*b"),
    Function("mod", "ab", "a%b"),
    Function("les", "ab", "a<b", special=((2, 2),)),
    Function("mor", "ab", "a>b", special=((2, 2),)),
    Function("eql", "ab", "a==b", special=((2, 2),)),
    Function("big", "ab", "a if a>b else b"),
    Function("sml", "ab", "a if a<b else b"),
    Function("fst", "ab", "a"),
    Function("snd", "ab", "b"),
    Function("sqa", "ab", "a*a"),
    Function("sqb", "ab", "b*b"),
    Function("dbl", "a", "a*2"),
    Function("tri", "a", "a*3"),
    Function("inc", "a", "a+1"),
    Function("dec", "a", "a-1"),
    Function("tot", "a", "sum(range(a+1))"),
    Function("fir", "x", "x[0]"),
    Function("sec", "x", "x[1]"),
    Function("pen", "x", "x[-2]"),
    Function("dif", "ab", "sub(a,b)", calls=("sub",)),
    Function("rev", "ab", "sub(b,a)", calls=("sub",)),
    Function("pwr", "ab", "pow(a,b)"),
    Function("inv", "a", "6//a if a else 0", special=((0,),)),
    Function("rat", "ab", "b//a if a else 0", special=((0, 2),)),
    Function("lst", "x", "x[-1] if x else 0", special=(([],),)),
    Function("avg", "x", "sum(x)//len(x) if x else 0", special=(([],),)),
)
FUNCTIONS = {function.name: function for function in _PLAIN}
NAMES = tuple(FUNCTIONS)

_WAYS: dict[str, dict[str, tuple[str, str]]] = {
    # kind -> function -> (symbols that break it, symbol that mends it)
    "operator": {
        "add": ("-*%", "+"),
        "sub": ("+*%", "-"),
        "mul": ("+-%", "*"),
        "mod": ("+-*", "%"),
    },
    "comparison": {
        "les": (">=", "<"),
        "mor": ("<=", ">"),
        "eql": ("<>", "="),
        "big": ("<=", ">"),
        "sml": (">=", "<"),
    },
    "wrong_variable": {"fst": ("b", "a"), "snd": ("a", "b"), "sqa": ("b", "a"), "sqb": ("a", "b")},
    "wrong_constant": {
        "dbl": ("13", "2"),
        "tri": ("12", "3"),
        "inc": ("23", "1"),
        "dec": ("23", "1"),
    },
    "off_by_one": {"tot": ("_", "^"), "fir": ("^", "_"), "sec": ("_", "^"), "pen": ("^", "_")},
    "swapped_arguments": {"dif": ("~", "~"), "rev": ("~", "~"), "pwr": ("~", "~")},
}
KINDS = (*_WAYS, "missing_case")


def _faults(kind: str) -> tuple[Fault, ...]:
    if kind == "missing_case":
        guarded = [function for function in _PLAIN if " else 0" in function.expression]
        return tuple(Fault(f.name, f.expression.partition(" if ")[0], "?") for f in guarded)
    found = []
    for name, (breaks, mends) in _WAYS[kind].items():
        for symbol in breaks:
            head = f"def f({FUNCTIONS[name].params}):return "
            line = changed(head + FUNCTIONS[name].expression, symbol)
            assert line is not None, (name, symbol)
            found.append(Fault(name, line.removeprefix(head), mends))
    return tuple(found)


FAULTS = {kind: _faults(kind) for kind in KINDS}
"""Kind -> every fault of that kind."""
