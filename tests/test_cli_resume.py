"""Stopping, killing and resuming real processes."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

TINY = str(Path(__file__).parent / "data" / "tiny.yaml")
LONG = ("--set", "timeline.segments.2.length=360", "--set", "checkpoint.every=10")
QUIET = ("--quiet", "--no-report")


def command(*words):
    return [sys.executable, "-m", "sao_gym.run", *words]


def finish(*words, cwd, code=0):
    done = subprocess.run(command(*words), cwd=cwd, capture_output=True, text=True, timeout=300)
    assert done.returncode == code, done.stderr
    return done


def start(*words, cwd):
    return subprocess.Popen(
        command(*words), cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip


def wait_for_updates(running, log, count):
    deadline = time.monotonic() + 120
    while not (log.exists() and log.read_bytes().count(b'"UpdateFinished"') >= count):
        assert running.poll() is None, running.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def group_is_gone(group):
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The run that nobody stops."""
    folder = tmp_path_factory.mktemp("whole")
    finish("scenario", TINY, "--out", "run", *QUIET, *LONG, cwd=folder)
    return folder / "run"


def assert_same(run, whole):
    assert (run / "events.jsonl").read_bytes() == (whole / "events.jsonl").read_bytes()
    assert (run / "timeline.jsonl").read_bytes() == (whole / "timeline.jsonl").read_bytes()
    here, there = (json.loads((d / "summary.json").read_text()) for d in (run, whole))
    assert here["weights_sha256"] == there["weights_sha256"]
    assert here["ended"] == there["ended"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_once_it_tells_how_to_go_on_and_goes_on_exactly(number, whole, tmp_path):
    running = start("scenario", TINY, "--out", "run", *QUIET, *LONG, cwd=tmp_path)
    wait_for_updates(running, tmp_path / "run/events.jsonl", 15)
    os.killpg(running.pid, number)
    _, errors = running.communicate(timeout=60)
    assert running.returncode == 130
    assert group_is_gone(running.pid), "a child is left"
    told = errors.strip().splitlines()[-1]
    assert told.startswith("interrupted; go on with: ")
    last = json.loads((tmp_path / "run/events.jsonl").read_bytes().splitlines()[-1])
    assert (last["event"], last["reason"]) == ("RunEnded", "interrupted")
    if number == signal.SIGINT:
        replayed = finish("replay", "run", cwd=tmp_path)
        assert "identical" in replayed.stdout
    words = shlex.split(told.partition(": ")[2])
    assert words[:3] == ["python", "-m", "sao_gym.run"]
    finish(*words[3:], *QUIET, cwd=tmp_path)
    assert_same(tmp_path / "run", whole)


def test_stopped_twice_it_ends_at_once(tmp_path):
    (tmp_path / "stuck.py").write_text(
        "import time\n"
        "from sao_gym.task import task\n"
        "@task(charset='0123456789=', actions='0123456789')\n"
        "def digit(rng, concept):\n"
        "    time.sleep(3600 if digit_seen.append(0) or len(digit_seen) > 60 else 0)\n"
        "    return '1=', '1'\n"
        "digit_seen = []\n"
    )
    running = start(
        "scenario", TINY, "--out", "run", *QUIET,
        "--set", "environment={name: 'stuck:digit'}",
        "--set", "agent={name: answer, params: {max_new_tokens: 1}}",
        "--set", "timeline.segments=[{concept: {id: A}, length: 1000}]",
        "--set", "evaluation.every=null", cwd=tmp_path,
    )  # fmt: skip
    wait_for_updates(running, tmp_path / "run/events.jsonl", 3)
    time.sleep(1)  # it hangs in an environment by now
    os.killpg(running.pid, signal.SIGINT)
    time.sleep(0.5)
    assert running.poll() is None, "once is not enough: the environment does not return"
    os.killpg(running.pid, signal.SIGINT)
    running.communicate(timeout=20)
    assert running.returncode == 130
    assert group_is_gone(running.pid)


def test_killed_it_leaves_no_child_and_goes_on_exactly(whole, tmp_path):
    running = start("scenario", TINY, "--out", "run", *QUIET, *LONG, cwd=tmp_path)
    wait_for_updates(running, tmp_path / "run/events.jsonl", 25)
    os.kill(running.pid, signal.SIGKILL)  # the launcher alone, not its group
    running.communicate(timeout=20)
    assert group_is_gone(running.pid), "the learner outlived its parent"
    refused = finish("scenario", TINY, "--out", "run", *LONG, cwd=tmp_path, code=2)
    assert "go on with it by --resume" in refused.stderr
    wrong = finish("scenario", TINY, "--out", "run", "--resume", *QUIET, *LONG,
                   "--set", "cluster.slots=13", cwd=tmp_path, code=2)  # fmt: skip
    assert "cluster.slots is 13 now and was 12" in wrong.stderr
    finish("scenario", "--out", "run", "--resume", *QUIET, cwd=tmp_path)
    assert_same(tmp_path / "run", whole)
    again = finish("scenario", "--out", "run", "--resume", *QUIET, cwd=tmp_path)
    assert "already finished" in again.stderr


def test_an_update_can_be_made_again(whole):
    last = json.loads((whole / "summary.json").read_text())["learning"]["updates"]
    for update, origin in ((last, "checkpoint of update"), (3, "beginning")):
        done = finish("replay", str(whole), "--update", str(update), cwd=whole)
        assert origin in done.stdout


def test_a_replay_names_the_first_difference(whole, tmp_path):
    changed = tmp_path / "run"
    changed.mkdir()
    lines = (whole / "events.jsonl").read_bytes().splitlines(keepends=True)
    at = next(i for i, line in enumerate(lines) if b'"TurnSampled"' in line)
    record = json.loads(lines[at])
    record["logprobs"][0] -= 1e-6
    lines[at] = json.dumps(record, separators=(",", ":")).encode() + b"\n"
    (changed / "events.jsonl").write_bytes(b"".join(lines))
    (changed / "scenario.yaml").write_bytes((whole / "scenario.yaml").read_bytes())
    done = finish("replay", str(changed), cwd=tmp_path, code=6)
    assert f"line {at + 1}: TurnSampled" in done.stderr
    assert "logprobs.0 is" in done.stderr


def test_a_run_whose_gradients_stay_not_finite_stops_and_keeps_the_batch(tmp_path):
    done = finish(
        "scenario", TINY, "--out", "run", *QUIET,
        "--set", "faults=[{kind: update_nan, at: [5, 6, 7, 12]}]", cwd=tmp_path, code=5,
    )  # fmt: skip
    assert "failed_batch.json" in done.stderr
    batch = json.loads((tmp_path / "run/failed_batch.json").read_text())
    assert [t["is"] for t in batch] == ["Trajectory"] * 4
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["learning"]["updates"] == 7
    assert summary["faults"] == {"update_nan: skipped": 3}
    assert summary["alarms"]["nonfinite"] == 1
    again = finish("replay", "run", "--update", "7", cwd=tmp_path)
    assert "update 7 on 4 rollouts" in again.stdout


def test_a_learner_that_raises_stops_the_run_and_its_update_can_be_made_again(tmp_path):
    (tmp_path / "breaks.py").write_text(
        "from sao_gym.learners.reinforce import Reinforce\n"
        "class Breaks(Reinforce):\n"
        "    def update(self, batch):\n"
        "        if batch[0].rollout > 20:\n"
        "            raise ArithmeticError('no more')\n"
        "        return super().update(batch)\n"
    )
    done = finish(
        "scenario", TINY, "--out", "run", *QUIET,
        "--set", "learner={name: 'breaks:Breaks', params: {batch_size: 4}}",
        cwd=tmp_path, code=5,
    )  # fmt: skip
    assert "the learner failed: ArithmeticError: no more" in done.stderr
    last = json.loads((tmp_path / "run/events.jsonl").read_bytes().splitlines()[-1])
    assert last["reason"] == "broken"
    updates = (tmp_path / "run/events.jsonl").read_bytes().count(b'"UpdateFinished"')
    again = finish("replay", "run", "--update", str(updates + 1), cwd=tmp_path, code=1)
    assert "ArithmeticError: no more" in again.stderr


def test_an_environment_that_never_returns_is_named_and_the_process_ends(tmp_path):
    (tmp_path / "stuck.py").write_text(
        "import time\n"
        "from sao_gym.task import task\n"
        "seen = []\n"
        "@task(charset='0123456789=', actions='0123456789')\n"
        "def digit(rng, concept):\n"
        "    seen.append(0)\n"
        "    time.sleep(3600 if len(seen) > 40 else 0)\n"
        "    return '1=', '1'\n"
    )
    done = finish(
        "scenario", TINY, "--out", "run", *QUIET,
        "--set", "environment={name: 'stuck:digit'}",
        "--set", "agent={name: answer, params: {max_new_tokens: 1}}",
        "--set", "timeline.segments=[{concept: {id: A}, length: 1000}]",
        "--set", "evaluation.every=null", "--set", "failures.watchdog=3",
        "--set", "failures.environment_timeout=3",
        "--set", "time.environment={kind: constant, value: 0.1}",
        cwd=tmp_path, code=4,
    )  # fmt: skip
    assert "no event for 3 s of real time; under way: environment: rollouts" in done.stderr


@pytest.mark.parametrize(
    ("override", "updates"),
    [("budget.rollouts=0", 0), ("budget.updates=0", 0), ("budget.tasks=10", 2)],
)
def test_empty_and_broken_off_budgets_end_in_order(override, updates, tmp_path):
    """Ten tasks are two batches of four and a rest of two, which is dropped visibly."""
    finish("scenario", TINY, "--out", "run", *QUIET, "--set", override, cwd=tmp_path)
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["learning"]["updates"] == updates
    assert summary["ended"]["reason"] == override.partition("=")[0].partition(".")[2]
    assert summary["rollouts"]["open"] == 0
    assert summary["rollouts"]["dropped"] == ({"run_ended": 2} if updates else {})
    assert summary["events"]["Evaluated"] >= 2


def test_no_slots_are_refused(tmp_path):
    done = finish("scenario", TINY, "--set", "cluster.slots=0", cwd=tmp_path, code=2)
    assert "cluster.slots" in done.stderr
