"""The procedural family: faults that fail, fixes that pass and nothing else that does."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import closing

import pytest

from sao_gym.envs.repo_fix import bench, family, functions
from sao_gym.envs.repo_fix.family import STYLES, TESTS, Mix, make, task_of
from sao_gym.envs.repo_fix.symbols import SYMBOLS, changed
from sao_gym.repo.fast import FastGrader
from sao_gym.repo.task import RepoTask
from sao_gym.sandboxes import open_sandbox
from sao_gym.tree import Entry, Patch, apply


@pytest.fixture(scope="module")
def runs():
    with_tests = bench.Bench("auto")
    yield with_tests
    with_tests.close()


def mix(*kinds, **styles):
    return Mix(faults=tuple((kind, 1.0) for kind in kinds), **styles)


def outcomes(runs, task, tree):
    return {outcome.test: outcome.passed for outcome in runs.tests(task).run(tree)}


@pytest.mark.parametrize("kind", functions.KINDS)
def test_tests_fail_before_and_pass_after_the_fix_and_only_the_named_ones(runs, kind):
    for seed in range(50):
        style, tests = STYLES[seed % 4], TESTS[seed % 3]
        task = make(seed, mix(kind, style=style, tests=tests))
        expected = dict.fromkeys(task.fail_to_pass, False)
        expected |= dict.fromkeys(task.pass_to_pass, True)
        assert task.fail_to_pass
        assert outcomes(runs, task, task.tree) == expected, task.id
        mended = apply(task.tree, task.gold)
        assert outcomes(runs, task, mended) == dict.fromkeys(expected, True), task.id


def test_the_grader_says_the_same():
    with closing(open_sandbox()) as sandbox, FastGrader(sandbox) as grader:
        for seed, kind in enumerate(functions.KINDS):
            task = make(seed, mix(kind))
            assert grader.grade(task, task.gold).resolved
            verdict = grader.grade(task, Patch({}, ()))
            assert not verdict.resolved
            assert set(verdict.failed) == set(task.fail_to_pass)
            assert set(verdict.passed) == set(task.pass_to_pass)


def test_no_other_compact_edit_of_the_line_mends_it(runs):
    for seed in range(12):
        task = make(seed, mix(functions.KINDS[seed % 7], style=STYLES[seed % 4]))
        place = family.Place(*task.extra["place"])
        lines = task.tree[place.path].data.decode().splitlines()
        for symbol in SYMBOLS:
            new = changed(lines[place.line - 1], symbol)
            if new is None or new == place.gold:
                continue
            text = "\n".join([*lines[: place.line - 1], new, *lines[place.line :]]) + "\n"
            tree = {**task.tree, place.path: Entry("file", text.encode())}
            found = outcomes(runs, task, tree)
            assert not all(found[name] for name in task.fail_to_pass), (task.id, symbol)


def test_packages_are_tiny_and_have_no_history():
    for seed in range(200):
        task = make(seed, mix(*functions.KINDS, style=STYLES[seed % 4]))
        sources = {p: e.data.decode() for p, e in task.tree.items() if p not in task.tests}
        assert set(sources) <= ({"m.py"} if STYLES[seed % 4] == "block" else {"m.py", "n.py"})
        assert 2 <= sum(text.count("\n") for text in sources.values()) <= 7
        assert max(len(line) for text in sources.values() for line in text.split("\n")) <= 50
        assert {p for p in task.tree if p.startswith("test_")} == set(task.tests)
        assert all("/" not in path for path in task.tree)


def test_a_task_is_known_by_its_id():
    for seed in (0, 1, 2**32 - 1):
        for style in STYLES:
            task = make(seed, mix("comparison", style=style, tests="loop"))
            assert task_of(task.id) == task
    for name in ("", "comparison", "comparison-lambda-assert-1", "x-lambda-assert-00000001"):
        assert task_of(name) is None
    json.dumps(dict(task.extra))


def test_weights_are_the_shares_of_kinds():
    weights = Mix(faults=(("operator", 3.0), ("comparison", 1.0), ("off_by_one", 0.0)))
    seen = Counter(make(seed, weights).extra["kind"] for seed in range(2000))
    assert set(seen) == {"operator", "comparison"}
    assert abs(seen["operator"] / 2000 - 0.75) < 0.03  # three standard deviations


def test_every_fault_of_every_kind_comes_up():
    for kind in functions.KINDS:
        names = {make(seed, mix(kind)).extra["name"] for seed in range(300)}
        assert names == {fault.function for fault in functions.FAULTS[kind]}


def test_a_package_by_hand():
    task = task_of("swapped_arguments-block-table-00000005")
    assert isinstance(task, RepoTask)
    text = task.tree["m.py"].data.decode()
    wrong, right = {"dif": ("b,a", "a,b"), "rev": ("a,b", "b,a")}[task.extra["name"]]
    assert f"def {task.extra['name']}(a,b):\n return sub({wrong})\n" in text
    assert f" return sub({right})\n" in task.gold.written["m.py"].data.decode()
    assert text.index("def sub(") < text.index(f"def {task.extra['name']}(")
    assert b":assert sub(*a)==r" in task.tests["test_m.py"].data
    assert task.extra["word"] == f"def {task.extra['name']}("


@pytest.mark.parametrize(
    ("line", "symbol", "expected"),
    [
        ("f=lambda a,b:a-b", "+", "f=lambda a,b:a+b"),
        ("f=lambda a,b:b//a", "%", "f=lambda a,b:b%a"),
        ("def f(a,b):return a if a<b else b", "=", "def f(a,b):return a if a==b else b"),
        (" return a<=b", ">", " return a>b"),
        ("f=lambda a:a*3", "2", "f=lambda a:a*2"),
        ("f=lambda x:x[-1]", "2", "f=lambda x:x[-2]"),
        ("f=lambda a,b:a*b", "b", "f=lambda a,b:b*b"),
        ("f=lambda a,b:pow(b,a)", "~", "f=lambda a,b:pow(a,b)"),
        ("f=lambda a:sum(range(a))", "^", "f=lambda a:sum(range(a+1))"),
        ("f=lambda a:sum(range(a+1))", "_", "f=lambda a:sum(range(a))"),
        ("f=lambda a:sum(range(a))", "_", "f=lambda a:sum(range(a-1))"),
        ("f=lambda x:x[0]", "^", "f=lambda x:x[1]"),
        ("f=lambda x:x[-1]", "_", "f=lambda x:x[-2]"),
        ("f=lambda a:6//a", "?", "f=lambda a:6//a if a else 0"),
        ("f=lambda x:sum(x)//len(x)", "?", "f=lambda x:sum(x)//len(x) if x else 0"),
        # what it could mean is not there, or the line holds no expression
        ("f=lambda a:a", "+", None),
        ("f=lambda x:x[-1]", "-", None),
        ("f=lambda a,b:a+b", "<", None),
        ("f=lambda a,b:a+b", "1", None),
        ("f=lambda x:x[0]", "~", None),
        ("f=lambda a:6//a if a else 0", "?", None),
        ("def f(a,b):", "a", None),
        ("from m import*", "*", None),
        ("f=lambda a,b:a+b", "z", None),
        ("f=lambda a,b:a+b", "", None),
        ("f=lambda a,b:a+b", "+-", None),
    ],
)
def test_compact_edits(line, symbol, expected):
    assert changed(line, symbol) == expected
