"""What a command printed, without what differs from run to run.

Durations, addresses, process numbers, dates, temporary paths, colours and the order of printed sets
become the same text every time, so that a simulated run stays the same to the byte. Source text
that is read to be edited never goes through this.
"""

from __future__ import annotations

import ast
import re

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_OVERWRITTEN = re.compile(r"[^\n]*\r(?=[^\n])")
_CONTROL = re.compile(r"[^\S\n\t ]|[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")
_SET = re.compile(r"\{[^{}:\n]{1,400}\}")
_RULES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), new)
    for pattern, new in (
        (r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?:Z|[+-]\d\d:?\d\d)?", "<time>"),
        (r"(?<![\d:])\d\d:\d\d:\d\d(?:[.,]\d+)?(?![\d:])", "<time>"),
        (r"\b0x[0-9a-fA-F]{5,}", "<address>"),
        (r"\b\d+(?:\.\d+)?(?:e-?\d+)? ?(?:ns|us|µs|ms|sec(?:ond)?s?|minutes?)\b", "<duration>"),
        (r"\b\d+\.\d+ ?s\b", "<duration>"),
        (r"(?<=\bin )\d+ ?s\b", "<duration>"),
        (r"\b(pid|PID|process)([ =:]+)\d+", r"\1\2<pid>"),
        (r"/(?:var/tmp|tmp|dev/shm)/[^\s'\":,)\]}]+", "<tmp>"),
        (r"\bpytest-of-\w+/pytest-\d+", "<tmp>"),
        (r"\b(SAO_GYM_BOX=)\S+", r"\1<box>"),
        (r"(?<=\bseed[ =:])\d+|(?<=\bPYTHONHASHSEED=)\d+", "<seed>"),
    )
)


def normalise(text: str) -> str:
    """The same text for the same outcome."""
    text = _ESCAPES.sub("", text).replace("\r\n", "\n")
    text = _CONTROL.sub("", _OVERWRITTEN.sub("", text))
    for pattern, new in _RULES:
        text = pattern.sub(new, text)
    return _SET.sub(_sorted, text)


def _sorted(match: re.Match[str]) -> str:
    """A printed set of constants, its members in order; anything else as it is."""
    text = match[0]
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text
    if not isinstance(value, set):
        return text
    return "{" + ", ".join(sorted(map(repr, value))) + "}"
