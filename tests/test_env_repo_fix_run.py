"""Whole runs on repositories: the bundled scenarios, tiny, with real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from sao_gym.envs.repo_fix.family import task_of
from sao_gym.repo.record import patch_from_json, verdict_from_json
from sao_gym.tree import apply

TINY = [
    *("--set", "warm_start.steps=3"),
    *("--set", "warm_start.batch_size=8"),
    *("--set", "learner.params.batch_size=8"),
    *("--set", "budget.rollouts=48"),
    *("--set", "cluster.slots=8"),
    *("--set", "evaluation.instances=4"),
]


def run(name, folder, out, *more, hash_seed="0"):
    done = subprocess.run(
        [
            *(sys.executable, "-m", "sao_gym.run", "scenario", name, *TINY, *more),
            *("--inline", "--quiet", "--no-report", "--json", "--out", str(out)),
        ],
        cwd=folder,
        env=os.environ
        | {"PYTHONHASHSEED": hash_seed, "SAO_GYM_CACHE": str(folder), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    text = (folder / out / "events.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("repo-fix")


@pytest.fixture(scope="module")
def events(folder):
    return run("repo-fix", folder, "one")


def test_every_rollout_ends_with_a_record_that_says_what_was_rewarded(events):
    kept = {e["rollout"]: e["record"] for e in events if e.get("record")}
    finished = [e for e in events if e.get("event") == "RolloutFinished"]
    assert len(finished) >= 40
    for event in finished:
        if event["outcome"] == "truncated" and event["limit"] == "context":
            continue
        record = kept[event["rollout"]]
        task = task_of(record["task"])
        resolved = record["verdict"] and verdict_from_json(record["verdict"]).resolved
        assert event["reward"] == float(bool(resolved))
        tree = apply(task.tree, patch_from_json(record["patch"]))
        if resolved:
            # one compact edit of one line mends, so the graded tree is the recorded fix
            assert all(tree[path] == entry for path, entry in task.gold.written.items())


def test_a_run_is_the_same_to_the_byte(folder, events):
    run("repo-fix", folder, "two", hash_seed="4711")
    one, two = ((folder / name / "events.jsonl").read_bytes() for name in ("one", "two"))
    assert one == two


def test_a_resumed_run_is_the_uninterrupted_one(folder):
    settings = ("--set", "checkpoint.every=2", "--set", "evaluation.every=null")
    run("repo-fix", folder, "whole", *settings)
    whole = (folder / "whole" / "events.jsonl").read_bytes()
    (folder / "cut").mkdir()
    cut = folder / "cut" / "run"
    subprocess.run(["cp", "-r", str(folder / "whole"), str(cut)], check=True)
    kept = sorted((cut / "checkpoints").iterdir())
    assert len(kept) > 1
    for late in kept[1:]:
        late.unlink()
    for name in ("summary.json", "trajectories.parquet", "metrics.parquet"):
        (cut / name).unlink(missing_ok=True)
    run("repo-fix", folder / "cut", "run", *settings, "--resume")
    assert (cut / "events.jsonl").read_bytes() == whole


def test_the_drifts_are_announced_and_served(folder):
    lengths = [f"timeline.segments.{i}.length=12" for i in (0, 2, 4, 6)]
    words = [word for length in lengths for word in ("--set", length)]
    events = run("repo-fix-drift", folder, "drift", *words)
    changes = [e["concept"] for e in events if e.get("event") == "ConceptChanged"]
    assert [c if isinstance(c, str) else c["id"] for c in changes] == ["A", "B", "C", "D"]
    assert not any(e.get("event") == "RolloutFailed" for e in events)
