"""The command line, in subprocesses: what is printed, what is written, how it exits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from sao_gym.run import main

TINY = Path(__file__).parent / "data" / "tiny.yaml"


def command(*words):
    return [sys.executable, "-m", "sao_gym.run", *map(str, words)]


def sao_gym(*words, cwd, code=0):
    done = subprocess.run(command(*words), cwd=cwd, capture_output=True, text=True, timeout=180)
    assert done.returncode == code, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A finished run: (directory, summary)."""
    folder = tmp_path_factory.mktemp("run")
    printed = sao_gym("scenario", TINY, "--json", "--inline", "--out", "here", cwd=folder).stdout
    return folder / "here", json.loads(printed)


def test_a_run_leaves_everything_behind(done):
    directory, summary = done
    names = {path.name for path in directory.iterdir()}
    assert names >= {
        "scenario.yaml",
        "events.jsonl",
        "timeline.jsonl",
        "trajectories.parquet",
        "metrics.parquet",
        "summary.json",
        "report.html",
    }
    assert Path(directory.parent / summary["figure"]).stat().st_size > 10_000
    assert len(summary["weights_sha256"]) == 64
    assert json.loads((directory / "summary.json").read_text())["weights_sha256"]


def test_nothing_is_written_over(done):
    directory, _ = done
    before = (directory / "events.jsonl").read_bytes()
    failed = sao_gym("scenario", TINY, "--out", directory, cwd=directory.parent, code=2)
    assert "already holds a run" in failed.stderr
    assert (directory / "events.jsonl").read_bytes() == before


def test_the_recorded_scenario_makes_the_same_run_again(done, tmp_path):
    directory, summary = done
    again = sao_gym(
        "scenario", directory / "scenario.yaml", "--json", "--no-report", "--out", "b",
        cwd=tmp_path,
    )  # fmt: skip
    assert (tmp_path / "b" / "events.jsonl").read_bytes() == (
        directory / "events.jsonl"
    ).read_bytes()
    assert json.loads(again.stdout)["weights_sha256"] == summary["weights_sha256"]


def test_the_report_can_be_made_again(done):
    directory, _ = done
    (directory / "report.html").unlink()
    printed = sao_gym("report", directory, cwd=directory.parent).stdout
    assert "report.html" in printed
    assert (directory / "report.html").is_file()


def test_runs_of_one_scenario_get_directories_of_their_own(tmp_path):
    words = ("scenario", TINY, "--inline", "--no-report", "--quiet", "--seed", 3,
             "--set", "budget.rollouts=8")  # fmt: skip
    first, second = (sao_gym(*words, cwd=tmp_path).stdout for _ in range(2))
    assert "runs/tiny/sao/3" in first
    assert "runs/tiny/sao/3-2" in second


def test_list_describe_check_and_dry_run_write_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def say(*words):
        done = CliRunner().invoke(main, [str(word) for word in words])
        assert done.exit_code == 0, done.output
        return done.stdout

    listed = say("list")
    for name in ("default", "operators", "tool_use", "answer", "tools", "sao", "grpo", "oracle"):
        assert name in listed
    assert "B 40" in say("describe", TINY)
    counts = json.loads(say("describe", "default", "--json"))
    assert sum(sum(s["counts"].values()) for s in counts["stretches"]) > 1000
    assert "ok" in say("check", TINY)
    plan = say("scenario", TINY, "--dry-run", "--learner", "grpo", "--set", "cluster.slots=5")
    assert "slots: 5" in plan
    assert "group_size: 2" in plan
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["scenario", TINY, "--set", "cluster.slot=3"], "did you mean 'slots'"),
        (["scenario", TINY, "--set", "cluster.slots=many"], "cluster.slots"),
        (["scenario", "defualt"], "did you mean 'default'"),
        (["scenario", TINY, "--learner", "sap"], "did you mean 'sao'"),
        (["scenario", TINY, "--set", "model.symbols=abc"], "no token for"),
        (["scenario", TINY, "--set", "model={path: missing}"], "missing is not a directory"),
        (["check", "missing.yaml"], "no such file"),
        (["report", "missing"], "missing"),
    ],
)
def test_wrong_input_is_one_line_and_code_2_and_writes_nothing(words, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    failed = CliRunner().invoke(main, [str(word) for word in words])
    assert failed.exit_code == 2, failed.output
    assert says in failed.stderr
    assert failed.stderr.startswith("error: ")
    assert failed.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_wrong_input_in_a_process_of_its_own(tmp_path):
    failed = sao_gym("check", "missing.yaml", cwd=tmp_path, code=2)
    assert failed.stderr.startswith("error: missing.yaml: no such file")


BROKEN = """
import gymnasium as gym
from sao_gym.envs.tool_use import ToolUse

class Raises(ToolUse):
    def step(self, action):
        if self.np_random.random() < 0.5:
            raise OSError("the disk is full")
        return super().step(action)
"""


def test_an_environment_that_raises_stops_the_run_with_code_3(tmp_path):
    (tmp_path / "broken.py").write_text(BROKEN)
    failed = sao_gym(
        "scenario", TINY, "--inline", "--no-report", "--out", "run",
        "--set", "environment={name: 'broken:Raises', params: {kinds: 3, tools: 3}}",
        "--set", "failures={stop_above: 0.3, after: 20}",
        cwd=tmp_path, code=3,
    )  # fmt: skip
    assert "OSError: the disk is full" in failed.stderr
    lines = (tmp_path / "run/events.jsonl").read_text().splitlines()
    _, *events = map(json.loads, lines)  # the first is a header
    failures = [e for e in events if e["event"] == "RolloutFailed"]
    assert {e["kind"] for e in failures} == {"environment"}
    assert events[-1]["reason"] == "failures"
    trained = {r for e in events if e["event"] == "UpdateFinished" for r in e["rollouts"]}
    assert not trained & {e["rollout"] for e in failures}


def _group_is_gone(group):
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False


@pytest.mark.parametrize("mode", [["--live"], []])
def test_an_interrupt_ends_cleanly_with_code_130(mode, tmp_path):
    running = subprocess.Popen(
        command("scenario", TINY, "--out", "run", "--quiet", "--no-report", *mode,
                "--set", "budget.rollouts=1000000"),
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    log = tmp_path / "run/events.jsonl"
    deadline = time.monotonic() + 120
    while not (log.exists() and log.read_bytes().count(b"UpdateFinished") > 2):
        assert running.poll() is None, running.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)
    os.killpg(running.pid, signal.SIGINT)  # as a terminal does: the whole group
    _, errors = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "interrupted" in errors
    last = json.loads(log.read_bytes().splitlines()[-1])
    assert (last["event"], last["reason"]) == ("RunEnded", "interrupted")
    assert _group_is_gone(running.pid), "a child is left"
