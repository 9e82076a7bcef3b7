"""Tasks on disk, their admission, and patches and verdicts in event logs."""

from __future__ import annotations

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from repo_tasks import ASKED, KEPT, RIGHT, TESTS, file, link, patch, size_task

from sao_gym.errors import InputError
from sao_gym.log import encode_json
from sao_gym.repo.admission import Admission, check_task
from sao_gym.repo.record import (
    patch_from_json,
    patch_to_json,
    record,
    verdict_from_json,
    verdict_to_json,
)
from sao_gym.repo.regrade import regrade
from sao_gym.repo.store import (
    load_admission,
    load_task,
    load_tasks,
    save_admission,
    save_task,
)
from sao_gym.repo.task import Verdict
from sao_gym.sandboxes.process import ProcessSandbox
from sao_gym.tree import Entry, Patch


@pytest.fixture(scope="module")
def sandbox():
    made = ProcessSandbox()
    yield made
    made.close()


NAMES = st.one_of(
    st.sampled_from(
        ["a b", "ü/日本", "base64:a", "new\nline", '"', "\\", os.fsdecode(b"\xff/\xe9")]
    ),
    st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), min_size=1),
)
ENTRIES = st.builds(
    Entry, st.sampled_from(["file", "link", "dir"]), st.binary(max_size=20), st.booleans()
)


@given(st.dictionaries(NAMES, ENTRIES, max_size=5), st.lists(NAMES, max_size=3))
def test_patches_survive_the_event_log(written, removed) -> None:
    before = Patch(written, tuple(removed))
    assert patch_from_json(json.loads(encode_json(patch_to_json(before)))) == before


def test_the_encoding_of_a_patch() -> None:
    fix = Patch({os.fsdecode(b"\xe9"): file(b"\xff\n", True), "l": link("x")}, ("base64:",))
    assert patch_to_json(fix) == {
        "written": {"l": ["link", "eA==", False], "base64:6Q==": ["file", "/wo=", True]},
        "removed": ["base64:YmFzZTY0Og=="],
    }


@pytest.mark.parametrize(
    "value",
    [
        None,
        {},
        {"written": {}},
        {"written": {"a": ["file", "!", False]}, "removed": []},
        {"written": {"a": ["socket", "", False]}, "removed": []},
        {"written": {"a": ["file"]}, "removed": []},
        {"written": [], "removed": []},
    ],
)
def test_what_is_no_patch_is_refused(value) -> None:
    with pytest.raises(InputError, match="not a stored"):
        patch_from_json(value)


def test_verdicts_survive_the_event_log() -> None:
    before = Verdict(resolved=False, passed=("a[b c]",), failed=("x",), missing=("y",), detail="d")
    assert verdict_from_json(json.loads(encode_json(verdict_to_json(before)))) == before
    with pytest.raises(InputError):
        verdict_from_json({"resolved": True})


def odd_task(**changes):
    tree = {
        "size/core.py": file(b"a\r\nb\xff"),
        "run.sh": file("#!/bin/sh\n", True),
        "to": link("size/core.py"),
        "empty": Entry("dir"),
        os.fsdecode(b"latin-\xe9 \n"): file("x"),
    }
    gold = Patch({os.fsdecode(b"\xff"): file(b"\0"), "size/new": link("core.py")}, ("run.sh",))
    return size_task(tree=tree, gold=gold, extra={"carried": ["x"], "n": 1.5}, **changes)


@pytest.mark.parametrize(
    "changes",
    [{}, {"runner": "pytest", "image": "some:image", "seconds": 1.5, "id": "a/../b c"}],
)
def test_a_task_on_disk_is_the_task(tmp_path, changes) -> None:
    before = odd_task(**changes)
    folder = save_task(before, tmp_path)
    assert folder.parent == tmp_path
    assert load_task(folder) == before
    assert load_tasks(tmp_path) == load_tasks(folder) == [before]
    save_task(before, tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == [folder.name]


def test_a_task_may_have_no_gold_or_one_that_only_removes(tmp_path) -> None:
    for gold in (None, Patch({}, ("size/core.py",))):
        before = size_task(gold=gold)
        assert load_task(save_task(before, tmp_path)) == before


def test_a_task_that_was_changed_on_disk_is_refused(tmp_path) -> None:
    folder = save_task(size_task(), tmp_path)
    (folder / "tests" / TESTS).write_text("def test_larger(): pass\n")
    with pytest.raises(InputError, match="tests: changed since"):
        load_tasks(tmp_path)


def test_a_folder_without_tasks_is_refused(tmp_path) -> None:
    with pytest.raises(InputError, match="no tasks here"):
        load_tasks(tmp_path)
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "task.json").write_text("{")
    with pytest.raises(InputError, match="not JSON"):
        load_tasks(tmp_path)


def test_a_task_that_cannot_be_kept_leaves_nothing(tmp_path) -> None:
    with pytest.raises(InputError, match="cannot be written"):
        save_task(size_task(extra={"x": object()}), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_good_task_is_admitted(sandbox, tmp_path) -> None:
    found = check_task(size_task(), sandbox, times=2)
    assert found == Admission(task="size", admitted=True, gold=(True, True), empty=(False, False))
    assert found.flake_rate == 0.0
    save_admission(found, tmp_path)
    assert load_admission(tmp_path) == found
    assert load_admission(tmp_path / "other") is None


FLAKY = """import pathlib
from size.core import larger

COUNT = pathlib.Path({count!r})


def test_larger():
    runs = len(COUNT.read_text()) if COUNT.exists() else 0
    if larger(1, 2) == 2:
        COUNT.write_text("x" * (runs + 1))
    assert larger(1, 2) == 2 and runs % 3 != 1
"""


def test_a_flaky_task_is_quarantined_with_its_rate(sandbox, tmp_path) -> None:
    text = FLAKY.format(count=str(tmp_path / "count"))
    found = check_task(size_task(tests={TESTS: file(text)}, pass_to_pass=()), sandbox, times=3)
    assert not found.admitted
    assert found.gold == (True, False, True)
    assert found.flake_rate == pytest.approx(1 / 3)
    assert found.why.startswith("gold resolved 2 of 3 times: 1 of 1 failed")


def test_other_reasons_for_quarantine(sandbox) -> None:
    assert check_task(size_task(gold=None), sandbox).why == "it has no gold patch"
    solved = size_task(fail_to_pass=(KEPT,), pass_to_pass=())
    assert check_task(solved, sandbox, times=2).why == "resolved 2 of 2 times without a fix"
    wrong = size_task(gold=patch(size__core="def larger(a, b):\n    return a\n"))
    found = check_task(wrong, sandbox, times=2)
    assert (found.gold, found.flake_rate) == ((False, False), 0.0)
    gone = check_task(size_task(image="no-such-image"), sandbox)
    assert gone.why.startswith("image: ")


def events(*kept):
    return [
        {"event": "RolloutStarted", "rollout": 0},
        *({"event": "EnvironmentStepped", "rollout": n, "record": r} for n, r in enumerate(kept)),
        {"event": "EnvironmentStepped", "rollout": 9, "record": {"something": "else"}},
    ]


def test_verdicts_are_given_again(sandbox) -> None:
    task = size_task()
    good = Verdict(resolved=True, passed=(ASKED, KEPT), failed=(), missing=())
    bad = Verdict(resolved=False, passed=(KEPT,), failed=(ASKED,), missing=())
    wrong = patch(size__core=RIGHT.replace(">", "<"))
    kept = [
        record("size", task.gold, good),
        record("size", task.gold, bad),
        record("size", wrong, bad),
        record("size", wrong, None),
        record("other", wrong, bad),
    ]
    logged = json.loads(encode_json(events(*kept)))
    found = list(regrade(logged, {"size": task}.get, sandbox))
    assert [one.rollout for one in found] == [0, 1, 2, 3, 4]
    assert [one.differs for one in found] == [False, True, False, False, False]
    assert [one.now.resolved if one.now else None for one in found] == [
        *(True, True, False, False, None)
    ]
    assert found[4].why == "unknown task"


def test_the_same_fix_is_judged_once() -> None:
    class Never:
        def start(self, spec):
            self.started = getattr(self, "started", 0) + 1
            return ProcessSandbox().start(spec)

    counting, task = Never(), size_task()
    logged = events(*[record("size", task.gold, None)] * 5)
    assert all(one.now.resolved for one in regrade(logged, {"size": task}.get, counting))
    assert counting.started == 1
