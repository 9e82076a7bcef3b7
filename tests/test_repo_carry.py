"""What of an agent's tree is graded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from repo_tasks import file, link, size_task

from sao_gym.repo.carry import carry, is_held
from sao_gym.repo.task import RepoTask
from sao_gym.tree import Entry, Patch, apply, write_folder


def task(**changes) -> RepoTask:
    return size_task(
        tree={
            "size/core.py": file("old\n"),
            "size/gone.py": file("gone\n"),
            "setup.cfg": file("[metadata]\n"),
            "tests/helper.py": file("helper of the tree\n"),
            "tests/test_old.py": file("old test\n"),
            "here": link("size/core.py"),
        },
        tests={"tests/test_size.py": file("the grader's\n"), "tests/data/x.bin": file(b"\0\xff")},
        **changes,
    )


def test_source_files_are_carried_as_bytes() -> None:
    odd = {"size/core.py": file(b"a\r\nb\xff"), "size/new.py": file(b"", True), "a b\n": file("c")}
    made, dropped = carry(task(), Patch(odd, ("size/gone.py",)))
    assert dropped == ()
    assert made == {
        "size/core.py": file(b"a\r\nb\xff"),
        "size/new.py": file(b"", True),
        "a b\n": file("c"),
        "setup.cfg": file("[metadata]\n"),
        "tests/helper.py": file("helper of the tree\n"),
        "tests/test_old.py": file("old test\n"),
        "here": link("size/core.py"),
        "tests/test_size.py": file("the grader's\n"),
        "tests/data/x.bin": file(b"\0\xff"),
    }


def test_a_tree_and_its_patch_are_carried_alike() -> None:
    patch = Patch({"size/core.py": file("new"), "conftest.py": file("evil")}, ("size/gone.py",))
    assert carry(task(), apply(task().tree, patch)) == carry(task(), patch)


@pytest.mark.parametrize(
    "path",
    [
        "conftest.py",
        "size/conftest.py",
        "tests/test_size.py",
        "tests/helper.py",
        "tests/new.txt",
        "size/tests/anything",
        "test_more.py",
        "size/more_test.py",
        "pytest.ini",
        ".pytest.toml",
        "tox.ini",
        "setup.cfg",
        "pyproject.toml",
        "sitecustomize.py",
        "deep/er/usercustomize.py",
        "x.pth",
        "size/__pycache__/core.cpython-311.pyc",
        "core.pyc",
        "evil.egg-info/entry_points.txt",
        "evil-1.dist-info/RECORD",
        ".git/hooks/pre-commit",
        "vendor/.git/config",
        "tests",
        "json.py",
        "src/pytest/__init__.py",
        "unittest/__init__.py",
        "../outside",
        "/etc/passwd",
        "size/../../x",
    ],
)
def test_what_belongs_to_the_grader_is_neither_written_nor_removed(path: str) -> None:
    before = task()
    made, dropped = carry(before, Patch({path: file("evil")}, ()))
    assert made == {**before.tree, **before.tests}
    assert dropped == (path,)
    if path in before.tree:
        assert carry(before, Patch({}, (path,))).tree == {**before.tree, **before.tests}


@pytest.mark.parametrize(
    "path",
    ["size/json.py", "contest.py", "latest.py", "src/size/x.py", "copy.txt", "testing/a.py", "tox"],
)
def test_source_files_that_only_look_like_it_are_carried(path: str) -> None:
    assert not is_held(task(), path)
    assert carry(task(), Patch({path: file("x")}, ())).tree[path] == file("x")


def test_a_test_file_may_have_any_name() -> None:
    before = size_task(tests={"size/expected.txt": file("ours")})
    for patch in (Patch({"size/expected.txt": file("evil")}, ()), Patch({}, ())):
        made, dropped = carry(before, patch)
        assert made["size/expected.txt"] == file("ours")
        assert dropped == tuple(patch.written)


def test_a_module_of_the_tree_may_have_the_name_of_one_of_pythons() -> None:
    before = size_task(tree={"calendar.py": file("old"), "src/queue/__init__.py": file("old")})
    fix = Patch({"calendar.py": file("new"), "src/queue/more.py": file("new")}, ())
    assert carry(before, fix).dropped == ()


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("a", "/etc/passwd"),
        ("a", "../outside"),
        ("a", "size/../../outside"),
        ("a", "tests/test_size.py"),
        ("a", "tests"),
        ("size/core.py", "../tests/test_size.py"),
        ("a", "./size/../conftest.py"),
        ("a", "a"),
        ("tests", "size"),
        ("tests/test_size.py", "../size/core.py"),
        ("tests/data", "../size"),
    ],
)
def test_links_that_lead_astray_are_dropped(path: str, target: str) -> None:
    before = task()
    made, dropped = carry(before, Patch({path: link(target)}, ()))
    assert made == {**before.tree, **before.tests}
    assert path in dropped


def test_a_link_to_a_link_out_is_dropped_with_it() -> None:
    made, _ = carry(task(), Patch({"a": link("b/x"), "b": link("/etc"), "c": link("here")}, ()))
    assert "a" not in made
    assert "b" not in made
    assert made["c"] == link("here")


def test_nothing_stands_in_the_way_of_a_test_file() -> None:
    before = size_task(tests={"size/checks/test_a.py": file("t")}, tree={"size/a.py": file("x")})
    for patch in (
        Patch({"size": file("a file")}, ("size/a.py",)),
        Patch({"size/checks": link("../other"), "other/test_a.py": file("evil")}, ()),
        Patch({"size/checks": Entry("dir")}, ()),
        Patch({"size/checks/test_a.py": Entry("dir")}, ()),
    ):
        made = carry(before, patch).tree
        assert made["size/checks/test_a.py"] == file("t")
        assert "size" not in made
        assert "size/checks" not in made


def test_a_held_file_keeps_the_folder_that_the_agent_replaced(tmp_path) -> None:
    before = size_task(tree={"data/conftest.py": file("ours"), "data/x": file("x")})
    made, dropped = carry(before, Patch({"data": file("theirs")}, tuple(before.tree)))
    assert made["data/conftest.py"] == file("ours")
    assert "data" in dropped
    write_folder(made, tmp_path)


def test_a_task_may_declare_exceptions() -> None:
    before = task(extra={"carried": ["pyproject.toml", "size/tests/*"], "held": ["*.lock"]})
    patch = Patch(
        {
            "pyproject.toml": file("p"),
            "size/tests/data.py": file("d"),
            "a.lock": file("l"),
            "tests/test_size.py": file("evil"),
        },
        (),
    )
    made, dropped = carry(before, patch)
    assert made["pyproject.toml"] == file("p")
    assert made["size/tests/data.py"] == file("d")
    assert dropped == ("a.lock", "tests/test_size.py")


names = st.sampled_from(
    ["a", "b.py", "tests", "conftest.py", "test_x.py", "src", "x.pth", ".git", "data", "json.py"]
)
paths = st.lists(names, min_size=1, max_size=3).map("/".join)
entries = st.one_of(
    st.binary(max_size=4).map(lambda data: Entry("file", data)),
    st.lists(
        st.sampled_from(["..", "a", "tests", "b.py", "/", "data"]), min_size=1, max_size=3
    ).map(lambda parts: Entry("link", "/".join(parts).encode())),
)
trees = st.dictionaries(paths, entries, max_size=6)


def possible(tree):
    """Without what lies below a file or link, which no folder can hold."""
    return {
        path: entry
        for path, entry in tree.items()
        if not any("/".join(path.split("/")[:n]) in tree for n in range(1, path.count("/") + 1))
    }


@given(trees.map(possible), trees.map(possible), trees.map(possible))
def test_carry_holds_its_promises(pristine, agent, tests) -> None:
    tests = {path: entry for path, entry in tests.items() if entry.kind == "file"}
    before = size_task(tree=pristine, tests=tests)
    made, dropped = carry(before, agent)
    assert {path: made[path] for path in tests} == tests
    assert possible(made) == made
    expected = {**agent, **tests}
    for path in {*made, *pristine, *agent} - set(tests):
        if is_held(before, path):
            assert made.get(path) in (pristine.get(path), None)
        elif path not in dropped:
            assert made.get(path) == expected.get(path)
        else:
            assert made.get(path) != agent.get(path)
    for path, entry in made.items():
        if entry.kind == "link" and pristine.get(path) != entry:
            assert not entry.data.startswith(b"/")
