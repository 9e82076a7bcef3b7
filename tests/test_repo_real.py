"""Real fixes of small packages: what is recorded of them, and how tasks are built from it."""

from __future__ import annotations

import ast
import hashlib
import io
import os
import sys
import zipfile
from pathlib import Path

import pytest

from sao_gym.envs.repo_fix.real import build as real
from sao_gym.envs.repo_fix.real.fixes import Fix, Release, fixes
from sao_gym.errors import InputError, RunError
from sao_gym.repo.grade import EMPTY, grade
from sao_gym.sandboxes import bubblewrap, open_sandbox
from sao_gym.tree import Entry
from sao_gym.validation import check
from sao_gym.yaml_source import parse

FOLDER = Path(real.__file__).parent
FIXES = fixes()
PERMISSIVE = {"MIT", "BSD-2-Clause", "BSD-3-Clause", "Apache-2.0"}
every_fix = pytest.mark.parametrize("fix", FIXES, ids=[fix.id for fix in FIXES])


# -- what is recorded ------------------------------------------------------------------------


def test_there_are_at_least_ten_and_each_has_its_file():
    assert len(FIXES) >= 10
    assert len({fix.package for fix in FIXES}) >= 10
    written = {file.stem for file in FOLDER.glob("*.yaml")}
    assert {fix.id.replace("-", "_") for fix in FIXES} == written
    assert len(FIXES) == len(written)


def test_a_wheel_has_one_hash_and_a_hash_one_wheel():
    pins = {pin for fix in FIXES for pin in real._pins(fix)}
    assert len({(pin.package, pin.version) for pin in pins}) == len(pins)
    assert len({pin.sha256 for pin in pins}) == len(pins)


@every_fix
def test_metadata_is_sound(fix: Fix):
    assert fix.licence in PERMISSIVE
    before, after = (
        tuple(map(int, release.version.split("."))) for release in (fix.before, fix.after)
    )
    assert before < after
    assert fix.id.startswith(f"{fix.package}-")
    assert len(fix.instruction) > 200
    assert all(path.endswith(".py") and not path.startswith("/") for path in fix.files)
    # the next release is the answer
    assert fix.after.version not in fix.instruction


@every_fix
def test_named_tests_are_those_of_the_file(fix: Fix):
    body = ast.parse(fix.test).body
    functions = [node for node in body if isinstance(node, ast.FunctionDef)]
    tests = [node for node in functions if node.name.startswith("test_")]
    named = [*fix.fail_to_pass, *fix.pass_to_pass]
    assert sorted(named) == sorted(node.name for node in tests)
    assert len(named) == len(set(named))
    assert not any(node.decorator_list or node.args.args for node in tests)


@every_fix
def test_tests_need_only_the_package(fix: Fix):
    imported = set()
    for node in ast.walk(ast.parse(fix.test)):
        if isinstance(node, ast.Import):
            imported |= {name.name.split(".")[0] for name in node.names}
        if isinstance(node, ast.ImportFrom):
            imported.add((node.module or "").split(".")[0])
    own = {path.split("/")[0].removesuffix(".py") for path in fix.files}
    assert own <= imported
    assert imported - own <= sys.stdlib_module_names


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("  sha256: ", "  sha256: abc"),
        ("licence: ", "licence: GPL-3.0"),
        ("  version: ", "  version: latest"),
        ("files: ", "files: []"),
        ("id: ", "id: Two Words"),
    ],
)
def test_wrong_metadata_is_refused_by_line(line: str, wrong: str):
    good = [
        *("id: a-b", "package: a", "licence: MIT", "before:", "  version: '1.0'"),
        *(f"  sha256: {'a' * 64}", f"after: {{version: '1.1', sha256: {'b' * 64}}}"),
        *("files: [a.py]", "instruction: x", "fail_to_pass: [test_a]", "pass_to_pass: [test_b]"),
        "test: x",
    ]
    assert check(Fix, parse("\n".join(good), name="a.yaml")).package == "a"
    at = next(n for n, text in enumerate(good) if text.startswith(line))
    bad = parse("\n".join([*good[:at], wrong, *good[at + 1 :]]), name="a.yaml")
    with pytest.raises(InputError, match=rf"^a\.yaml:{at + 1}: "):
        check(Fix, bad)


# -- from wheels to a task -------------------------------------------------------------------


def wheel(files: dict[str, str], version: str = "1.0") -> bytes:
    """A wheel of the made-up package `small-thing`."""
    info = f"small_thing-{version}.dist-info"
    files = files | {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: small-thing\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": "",
        f"{info}/licenses/LICENSE": "free",
    }
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for path, text in files.items():
            archive.writestr(zipfile.ZipInfo(path), text)
    return out.getvalue()


def small_fix(before: bytes = b"", after: bytes = b"") -> Fix:
    return Fix(
        id="small-thing",
        package="small-thing",
        licence="MIT",
        before=Release(version="1.0", sha256=hashlib.sha256(before).hexdigest()),
        after=Release(version="1.1", sha256=hashlib.sha256(after).hexdigest()),
        files=("small.py",),
        instruction="wrong",
        fail_to_pass=("test_x",),
        pass_to_pass=("test_y",),
        test="def test_x(): ...\ndef test_y(): ...\n",
    )


OLD = wheel({"small.py": "x = 1\n", "other.py": "a\n"})
NEW = wheel({"small.py": "x = 2\n", "other.py": "b\n"}, "1.1")


def test_of_a_wheel_source_metadata_and_licence_are_kept():
    files = dict.fromkeys(
        [
            *("small.py", "small/data.txt", "small/testing.py", "small/history_of.py"),
            *("tests/test_a.py", "small/tests/test_b.py", "small/test/c.py", "CHANGELOG.md"),
            *("small/CHANGES.rst", "small_thing-1.0.data/scripts/run", "HISTORY"),
        ],
        "",
    )
    info = "small_thing-1.0.dist-info"
    assert sorted(real.unpack(wheel(files))) == [
        *("small.py", "small/data.txt", "small/testing.py"),
        *(f"{info}/METADATA", f"{info}/licenses/LICENSE"),
    ]


@pytest.mark.parametrize("path", ["../small.py", "/small.py", "small/../../x.py"])
def test_a_path_out_of_the_wheel_is_refused(path: str):
    with pytest.raises(RunError, match="not a path below the root"):
        real.unpack(wheel({path: ""}))


def test_the_gold_patch_is_the_named_files_alone():
    task = real.make(small_fix(), OLD, NEW)
    assert task.tree["small.py"] == Entry("file", b"x = 1\n")
    assert task.tree["other.py"] == Entry("file", b"a\n")
    assert task.gold is not None
    assert task.gold.written == {"small.py": Entry("file", b"x = 2\n")}
    assert task.gold.removed == ()
    assert list(task.tests) == ["tests/test_small_thing.py"]
    assert task.fail_to_pass == ("tests/test_small_thing.py::test_x",)
    assert task.pass_to_pass == ("tests/test_small_thing.py::test_y",)
    assert task.extra["licence"] == "MIT"


def test_releases_without_the_fix_are_refused():
    with pytest.raises(RunError, match=r"small-thing: the releases do not differ in small\.py"):
        real.make(small_fix(), OLD, OLD)
    with pytest.raises(RunError, match=r"small-thing: the releases hold no small\.py"):
        real.make(small_fix(), OLD, wheel({"large.py": ""}))


# -- downloads, by pip itself ----------------------------------------------------------------


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all that pip knows; both releases lie in it."""
    folder = tmp_path / "index"
    folder.mkdir()
    (folder / "small_thing-1.0-py3-none-any.whl").write_bytes(OLD)
    (folder / "small_thing-1.1-py3-none-any.whl").write_bytes(NEW)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_what_is_cached_is_not_downloaded_again_unless_it_is_damaged(index: Path, tmp_path: Path):
    fix = small_fix(OLD, NEW)
    old, new = (real._wheel(tmp_path / "cache", pin) for pin in real._pins(fix))
    old.parent.mkdir()
    old.write_bytes(OLD)
    new.write_bytes(b"damaged")
    (index / "small_thing-1.0-py3-none-any.whl").unlink()
    first = real.build(old.parent, [fix])
    assert new.read_bytes() == NEW
    (index / "small_thing-1.1-py3-none-any.whl").unlink()
    assert real.build(old.parent, [fix]) == first
    assert sorted(old.parent.iterdir()) == [old, new]


def test_another_file_than_the_recorded_one_is_refused(index: Path, tmp_path: Path):
    (index / "small_thing-1.0-py3-none-any.whl").write_bytes(wheel({"small.py": "evil"}))
    with pytest.raises(RunError) as caught:
        real.fetch(tmp_path / "cache", real._pins(small_fix(OLD, NEW))[:1])
    assert str(caught.value) == (
        "small-thing==1.0: the index has a file with another SHA-256 than the recorded one"
    )
    assert list((tmp_path / "cache").iterdir()) == []


def test_no_index_is_one_clear_line(index: Path, tmp_path: Path):
    for file in index.iterdir():
        file.unlink()
    with pytest.raises(RunError) as caught:
        real.build(tmp_path / "cache", [small_fix(OLD, NEW)])
    said = str(caught.value)
    assert "is a package index reachable?" in said
    assert "small-thing==1." in said
    assert "\n" not in said


def test_a_real_fix_is_built_and_graded(tmp_path: Path):
    fix = next(fix for fix in FIXES if fix.id == "tinydb-stale-cache")
    try:
        (task,) = real.build(tmp_path, [fix])
    except RunError as error:
        if "is a package index reachable?" in str(error):
            pytest.skip(str(error))
        raise
    sandbox = open_sandbox("process" if bubblewrap.unusable() else "bubblewrap")
    try:
        assert task.gold is not None
        assert grade(task, task.gold, sandbox=sandbox).resolved
        empty = grade(task, EMPTY, sandbox=sandbox)
    finally:
        sandbox.close()
    assert sorted(empty.failed) == sorted(task.fail_to_pass)
    assert sorted(empty.passed) == sorted(task.pass_to_pass)
