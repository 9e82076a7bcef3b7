"""The tools on trees of files, what they print, and how it is made reproducible."""

from __future__ import annotations

import pytest

from sao_gym.envs.repo_fix.normalise import normalise
from sao_gym.envs.repo_fix.schema import Full, words
from sao_gym.envs.repo_fix.tools import Line, ToolError, edit, read, search
from sao_gym.errors import InputError
from sao_gym.tree import Entry

TREE = {
    "a.py": Entry("file", b"one\ntwo\nthree\n"),
    "b/c.txt": Entry("file", b"x\r\ny\r\nlast"),
    "empty": Entry("file", b""),
    "raw": Entry("file", b"\xff\xfe"),
    "link": Entry("link", b"a.py"),
    "run.sh": Entry("file", b"echo two\n", executable=True),
}


def test_read_gives_lines_without_their_ends():
    assert read(TREE, "b/c.txt") == [
        Line("b/c.txt", 1, "x"),
        Line("b/c.txt", 2, "y"),
        Line("b/c.txt", 3, "last"),
    ]
    assert read(TREE, "a.py", 2) == [Line("a.py", 2, "two")]
    assert read(TREE, "empty") == []


@pytest.mark.parametrize(
    ("path", "number", "message"),
    [
        ("none", None, "no file none"),
        ("link", None, "no file link"),
        ("raw", None, "raw is no text"),
        ("a.py", 0, "a.py has 3 lines"),
        ("a.py", 4, "a.py has 3 lines"),
    ],
)
def test_what_cannot_be_read_is_said(path, number, message):
    with pytest.raises(ToolError, match=message):
        read(TREE, path, number)


def test_search_finds_in_the_order_of_paths_and_passes_over_what_is_no_text():
    assert search(TREE, "two") == [Line("a.py", 2, "two"), Line("run.sh", 1, "echo two")]
    with pytest.raises(ToolError, match="nothing found: four"):
        search(TREE, "four")


@pytest.mark.parametrize(
    ("path", "first", "last", "text", "data"),
    [
        ("a.py", 2, 2, "TWO", b"one\nTWO\nthree\n"),
        ("a.py", 1, 3, "all", b"all\n"),
        ("a.py", 2, 3, "", b"one\n"),
        ("a.py", 3, 3, "3\n4", b"one\ntwo\n3\n4\n"),
        ("b/c.txt", 1, 1, "X", b"X\r\ny\r\nlast"),
        ("b/c.txt", 1, 1, "X\nZ", b"X\r\nZ\r\ny\r\nlast"),
        ("b/c.txt", 3, 3, "end", b"x\r\ny\r\nend"),
        ("empty", 1, 1, "x", b"x\n"),
        ("new/file", 1, 1, "x\ny", b"x\ny\n"),
    ],
)
def test_edit_keeps_every_other_byte(path, first, last, text, data):
    before = dict(TREE)
    made = edit(TREE, path, first, last, text)
    assert made[path].data == data
    assert {p: e for p, e in made.items() if p != path} == {
        p: e for p, e in TREE.items() if p != path
    }
    assert before == TREE


def test_edit_keeps_the_mode():
    assert edit(TREE, "run.sh", 1, 1, "echo 2")["run.sh"].executable


@pytest.mark.parametrize(
    ("path", "first", "last"),
    [("a.py", 0, 1), ("a.py", 3, 2), ("a.py", 1, 4), ("empty", 1, 2), ("raw", 1, 1)],
)
def test_edits_out_of_the_file_are_refused(path, first, last):
    with pytest.raises(ToolError):
        edit(TREE, path, first, last, "x")


@pytest.mark.parametrize("path", ["../x", "/x", "a//b", "", ".", "a/./b"])
def test_edits_out_of_the_tree_are_refused(path):
    with pytest.raises(ToolError, match="no path"):
        edit(TREE, path, 1, 1, "x")


NAMES = ("read", "search", "edit", "run", "submit")


@pytest.mark.parametrize(
    ("action", "call"),
    [
        ("read a.py", ("read", "a.py", None, "", None)),
        ("read a.py 12\n", ("read", "a.py", 12, "", None)),
        ("search two words", ("search", "", None, "two words", None)),
        ("edit a.py 3  x = 1 ", ("edit", "a.py", 3, " x = 1 ", None)),
        ("edit a.py 3-5 x\ny", ("edit", "a.py", 3, "x\ny", 5)),
        ("run", ("run", "", None, "", None)),
    ],
)
def test_full_calls(action, call):
    assert tuple(Full().parse(action, NAMES)) == call


@pytest.mark.parametrize("action", ["", "READ a", "read a x", "search", "edit a", "edit a 1-x y"])
def test_full_calls_that_are_none(action):
    with pytest.raises(ToolError, match="."):
        Full().parse(action, NAMES)


def test_names_of_tools():
    assert words("rfets", compact=True, owner="x") == ("r", "f", "e", "t", "s")
    assert words("a bc d e f", compact=False, owner="x") == ("a", "bc", "d", "e", "f")
    for wrong in ("a b c d", "a b c d d", "a  b c d", "a b c d E", "rfets"):
        with pytest.raises(InputError, match="five different words"):
            words(wrong, compact=False, owner="x")


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        ("2 passed in 0.03s", "2 passed in <duration>"),
        ("took 1.5e-05 seconds, then 12 ms", "took <duration>, then <duration>"),
        ("finished in 3 s", "finished in <duration>"),
        ("<object at 0x7f2a1c003d90>", "<object at <address>>"),
        ("mask 0xff", "mask 0xff"),
        ("at 2024-05-01T10:20:30.123Z ok", "at <time> ok"),
        ("10:20:30 done", "<time> done"),
        ("File '/tmp/abc-123/x.py', line 2", "File '<tmp>', line 2"),
        ("/tmpfile stays", "/tmpfile stays"),
        ("pid 4711 and process=12", "pid <pid> and process=<pid>"),
        ("\x1b[31mred\x1b[0m \x1b]0;title\x07plain", "red plain"),
        ("10%\r50%\r100%\nok\r\n", "100%\nok\n"),
        ("{'b', 'a', 'c'}", "{'a', 'b', 'c'}"),
        ("{3, 1, 2} and {'k': 1}", "{1, 2, 3} and {'k': 1}"),
        ("f-string {name, other}", "f-string {name, other}"),
        ("a\x00b\x07\ud800", "ab"),
        ("assert 3 == 4, 12s and 5 items", "assert 3 == 4, 12s and 5 items"),
        ("tab\tand  spaces stay\n", "tab\tand  spaces stay\n"),
    ],
)
def test_what_differs_from_run_to_run_is_normalised(printed, expected):
    assert normalise(printed) == expected
    assert normalise(expected) == expected
