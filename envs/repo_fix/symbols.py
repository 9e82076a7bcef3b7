"""Compact edits: one symbol says what becomes of the expression on a line.

    + - * %     the first arithmetic operator becomes this one
    < > =       the first comparison becomes this one
    1 2 3       the first number becomes this one
    a b         the first variable becomes this one
    ~           the first call's two arguments change places
    ^ _         the bound of a range, or the first index, goes up or down by one
    ?           the case that the last variable is 0 or empty is added

A symbol is a shorthand for a whole new line, nothing more: what it says can be typed as well.
"""

from __future__ import annotations

import re
from functools import lru_cache

OPERATORS, COMPARISONS, DIGITS, VARIABLES = "+-*%", "<>=", "123", "ab"
SWAP, UP, DOWN, GUARD = "~", "^", "_", "?"
SYMBOLS = OPERATORS + COMPARISONS + DIGITS + VARIABLES + SWAP + UP + DOWN + GUARD

_HEAD = re.compile(r"\w+=lambda [\w,]+:|def \w+\([\w,]+\):return |\s+return ")
_ARITHMETIC = re.compile(r"(?<=[\w)\]])(//|[-+*%])")
_COMPARISON = re.compile(r"[<>=]=?")
_NUMBER = re.compile(r"(?<!\w)\d+")
_VARIABLE = re.compile(r"(?<!\w)[abx](?!\w)")
_PAIR = re.compile(r"\((\w+),(\w+)\)")
_RANGE = re.compile(r"range\(([a-z])(?:([+-]\d+))?\)")
_INDEX = re.compile(r"\[(-?\d+)(?=[]:])")


@lru_cache(maxsize=1 << 14)
def changed(line: str, symbol: str) -> str | None:
    """The line as `symbol` makes it; None if there is nothing on it that the symbol could mean."""
    head = _HEAD.match(line)
    if head is None or len(symbol) != 1 or symbol not in SYMBOLS:
        return None
    made = _expression(line[head.end() :], symbol)
    return None if made is None else line[: head.end()] + made


def _expression(text: str, symbol: str) -> str | None:
    for kind, pattern in (
        (OPERATORS, _ARITHMETIC),
        (COMPARISONS, _COMPARISON),
        (DIGITS, _NUMBER),
        (VARIABLES, _VARIABLE),
    ):
        if symbol in kind:
            new = "==" if symbol == "=" else symbol
            return _first(pattern, new, text)
    if symbol == SWAP:
        return _first(_PAIR, r"(\2,\1)", text)
    if symbol == GUARD:
        asked = _VARIABLE.findall(text)
        return f"{text} if {asked[-1]} else 0" if asked and " if " not in text else None
    return _bound(text, 1 if symbol == UP else -1)


def _first(pattern: re.Pattern[str], new: str, text: str) -> str | None:
    return pattern.sub(new, text, count=1) if pattern.search(text) else None


def _bound(text: str, by: int) -> str | None:
    if (match := _RANGE.search(text)) is not None:
        offset = int(match[2] or 0) + by
        new = f"range({match[1]}{offset:+d})" if offset else f"range({match[1]})"
        return text[: match.start()] + new + text[match.end() :]
    if (match := _INDEX.search(text)) is not None:
        return f"{text[: match.start(1)]}{int(match[1]) + by}{text[match.end(1) :]}"
    return None
