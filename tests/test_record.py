"""The run directory: what is written, what is refused, what survives."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from typing import get_args

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from sao_gym.errors import InputError
from sao_gym.events import EnvironmentStepped, Event, PolicyPublished, UpdateFinished
from sao_gym.log import EventLog, TornLogWarning, encode, encode_header, read_events
from sao_gym.outputs import finish_run, read_summary
from sao_gym.record import (
    file_hash,
    magnitude,
    open_run,
    read_scenario,
    read_timeline,
    resume_run,
    world_hash,
)


def test_two_runs_of_the_same_events_are_the_same_bytes(record_run, drifting):
    one, other = record_run(drifting, "one"), record_run(drifting, "other")
    for name in ("events.jsonl", "timeline.jsonl", "scenario.yaml"):
        assert (one / name).read_bytes() == (other / name).read_bytes()


def test_the_header_names_what_was_run_and_nothing_of_the_machine(record_run, script):
    script.change("A")
    directory = record_run(script)
    line = (directory / "events.jsonl").read_bytes().splitlines()[0]
    assert json.loads(line) == {
        "format": "sao-gym/events",
        "version": 1,
        "scenario_sha256": file_hash(directory / "scenario.yaml"),
        "seed": 3,
        "learner": "sao",
        "time": "virtual",
    }


def test_the_scenario_is_written_as_given(record_run, script, scenario):
    script.change("A")
    directory = record_run(script)
    assert yaml.safe_load((directory / "scenario.yaml").read_text()) == scenario
    assert read_scenario(directory) == scenario


@pytest.mark.parametrize("name", ["events.jsonl", "scenario.yaml", "timeline.jsonl"])
def test_a_directory_with_a_run_is_refused_and_left_as_it_is(tmp_path, scenario, name):
    (tmp_path / name).write_text("precious")
    with pytest.raises(InputError, match=r"already holds a run .*--out"):
        open_run(tmp_path, scenario)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "precious"


def test_a_place_that_cannot_be_written_is_one_line(tmp_path, scenario):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write a run there"):
        open_run(tmp_path / "file" / "run", scenario)


def test_every_event_type_can_be_written_and_read(record_run, drifting):
    kinds = {type(event).__name__ for _, event in drifting.events}
    assert kinds == {kind.__name__ for kind in get_args(Event)}
    records = list(read_events(record_run(drifting)))
    assert records == drifting.records()
    assert [record["event"] for record in records] == [
        type(event).__name__ for _, event in drifting.events
    ]


def test_numbers_json_does_not_know_become_null():
    event = UpdateFinished(
        version=1,
        rollouts=(0,),
        lag_mean=0.0,
        lag_max=0,
        metrics={
            "a": math.nan,
            "b": math.inf,
            "c": np.float32(0.5),
            "d": np.float32("nan"),
            "e": 1,
        },
    )
    line = encode(0.5, event)
    assert json.loads(line, parse_constant=pytest.fail)["metrics"] == {
        "a": None,
        "b": None,
        "c": 0.5,
        "d": None,
        "e": 1,
    }
    assert line.endswith(b"}\n")
    assert b" " not in line


@given(text=st.text(st.characters(exclude_categories=("Cs",)), max_size=40))
@settings(max_examples=60)
def test_any_observation_stays_one_line_and_comes_back(text):
    event = EnvironmentStepped(
        rollout=0,
        turn=0,
        observation=text,
        reward=0.0,
        terminated=False,
        truncated=False,
        seconds=1.0,
    )
    line = encode(0.0, event)
    assert line.count(b"\n") == 1
    assert line.count(b"\n") == 1
    assert json.loads(line)["observation"] == text


def test_a_killed_run_keeps_everything_up_to_its_last_update(tmp_path, scenario, drifting):
    recorder = open_run(tmp_path / "run", scenario)
    last = max(
        k for k, (_, event) in enumerate(drifting.events) if isinstance(event, UpdateFinished)
    )
    for seconds, event in drifting.events[: last + 1]:
        recorder.write(seconds, event)
    assert len(list(read_events(tmp_path / "run"))) == last + 1  # read while it is still open
    recorder.close()


def test_sync_puts_all_on_disk_and_closing_twice_is_harmless(tmp_path, scenario):
    recorder = open_run(tmp_path / "run", scenario)
    recorder.write(0.0, PolicyPublished(version=1))
    assert list(read_events(tmp_path / "run")) == []
    recorder.sync()
    assert len(list(read_events(tmp_path / "run"))) == 1
    recorder.close()
    recorder.close()


@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_resuming_anywhere_gives_the_uninterrupted_files(tmp_path_factory, drifting, data):
    from tempfile import mkdtemp

    scenario = {"seed": 0, "learner": {"name": "sao"}}
    base = tmp_path_factory.getbasetemp()
    events = drifting.events[:400]
    kept = data.draw(st.integers(0, len(events)))
    written = data.draw(st.integers(kept, len(events)))
    torn = data.draw(st.booleans())
    whole, cut = (base / mkdtemp(dir=base) / "run" for _ in range(2))
    with open_run(whole, scenario) as recorder:
        for seconds, event in events:
            recorder.write(seconds, event)
    with open_run(cut, scenario) as recorder:
        for seconds, event in events[:written]:
            recorder.write(seconds, event)
    if torn:
        with (cut / "events.jsonl").open("ab") as file:
            file.write(b'{"t":0.5,"ev')
    with resume_run(cut, events=kept) as recorder:
        assert recorder.written == kept
        for seconds, event in events[kept:]:
            recorder.write(seconds, event)
    for name in ("events.jsonl", "timeline.jsonl"):
        assert (whole / name).read_bytes() == (cut / name).read_bytes()


def test_resuming_past_the_end_is_refused(record_run, script):
    script.change("A")
    directory = record_run(script)
    before = (directory / "events.jsonl").read_bytes()
    with pytest.raises(InputError, match="holds 1 events but the checkpoint was taken after 2"):
        resume_run(directory, events=2)
    assert (directory / "events.jsonl").read_bytes() == before


def test_a_torn_last_line_is_left_out_and_said(record_run, drifting):
    directory = record_run(drifting)
    path = directory / "events.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-10])
    with pytest.warns(TornLogWarning, match=f"line {len(drifting.events) + 1}, the last"):
        records = list(read_events(directory))
    assert records == drifting.records()[:-1]
    log = EventLog(path)
    assert len(list(log)) == len(drifting.events) - 1
    assert "incomplete" in (log.torn or "")
    path.write_bytes(whole)
    assert len(list(log)) == len(drifting.events)
    assert log.torn is None


def test_damage_before_the_last_line_is_an_error_with_its_line(record_run, drifting):
    path = record_run(drifting) / "events.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    lines[4] = lines[4][: len(lines[4]) // 2] + b"\n"
    path.write_bytes(b"".join(lines))
    with pytest.raises(InputError, match="line 5: not JSON"):
        list(read_events(path))


@pytest.mark.parametrize(
    ("first", "message"),
    [
        (b"", "not an event log"),
        (b'{"t":0,"event":"RunEnded"}\n', "not an event log"),
        (b"[1]\n", "not an event log"),
        (b'{"format":"sao-gym/events","version":2}\n', "format version 2"),
    ],
)
def test_other_files_are_refused(tmp_path, first, message):
    path = tmp_path / "events.jsonl"
    path.write_bytes(first)
    with pytest.raises(InputError, match=message):
        list(read_events(path))


def test_a_missing_log_is_an_input_error(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        EventLog(tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (None, {"a": 1}, 0),
        ({"a": 1}, {"a": 1}, 0),
        ({"a": 1, "b": 2}, {"a": 1, "b": 3}, 1),
        ({"a": 1}, {"b": 1}, 2),
        ({"map": [0, 1, 2, 3]}, {"map": [1, 0, 2, 3]}, 2),
        ({"map": [0, 1]}, {"map": [0, 1, 2]}, 1),
        ({"map": "ABCD"}, {"map": "BACD"}, 2),
        ({"style": "cute"}, {"style": "bold"}, 1),
        ({"rules": {"x": 1, "y": 2}}, {"rules": {"x": 1, "y": 3}}, 1),
    ],
)
def test_magnitude_counts_what_differs(old, new, expected):
    assert magnitude(old, new) == expected


def test_the_timeline_holds_changes_with_clocks_and_magnitude(record_run, drifting):
    lines = read_timeline(record_run(drifting))
    seen = [(x["concept"], x["phase"], x["magnitude"], x["clocks"]["started"]) for x in lines]
    assert seen == [
        ("A", "changed", 0, 0),
        ("B", "changed", 2, 40),
        ("C", "window_began", 2, 80),  # [1,0,2] -> [1,2,0]: what is being left is B
        ("C", "window_ended", 2, 90),
    ]


def test_the_world_hash_is_equal_for_arms_and_differs_between_worlds(scenario):
    def lines(seconds: float, concept: str = "B"):
        clocks = {"started": 40, "seconds": seconds}
        return [{"segment": 1, "concept": concept, "params": {}, "clocks": clocks}]

    slow = world_hash(scenario | {"learner": {"name": "grpo"}}, lines(9.0))
    assert slow == world_hash(scenario, lines(4.0))
    assert slow != world_hash(scenario | {"seed": 4}, lines(9.0))
    assert slow != world_hash(scenario, lines(9.0, "C"))
    assert slow != world_hash(scenario, [])


def test_finishing_writes_one_row_a_rollout_with_its_fate(record_run, drifting):
    directory = record_run(drifting)
    finish_run(directory)
    rows = {
        row["rollout"]: row for row in pq.read_table(directory / "trajectories.parquet").to_pylist()
    }
    assert sorted(rows) == list(range(120))
    trained = {
        rollout: event.version
        for _, event in drifting.events
        if isinstance(event, UpdateFinished)
        for rollout in event.rollouts
    }
    assert {k: v["trained_in"] for k, v in rows.items() if v["fate"] == "trained"} == trained
    failed, dropped, good = rows[17], rows[60], rows[25]
    assert (failed["fate"], failed["reward"]) == ("failed", None)
    assert failed["reason"] == "environment: <script>alert('gone')</script>"
    assert failed["turns"][0]["observation_ids"] is None
    assert (dropped["fate"], dropped["reason"], dropped["trained_in"]) == ("dropped", "stale", None)
    assert (good["reward"], good["concept_start"], good["action_tokens"]) == (1.0, "A", 3)
    assert [turn["reward"] for turn in good["turns"]] == [0.0, 1.0]
    assert good["turns"][1]["observation_ids"] == [1, 2]
    assert good["turns"][1]["action_ids"] == [10, 11]
    assert good["turns"][1]["logprobs"] == [-0.5, -0.5]
    assert [span["count"] for span in good["turns"][1]["versions"]] == [1, 1]


def test_the_reward_the_learner_saw_wins_over_the_one_the_environment_gave(record_run, script):
    script.change("A")
    rollout = script.start()
    script.turn(rollout, reward=1.0)
    (turn,) = script.turns[rollout]
    script.turns[rollout] = [replace(turn, reward=0.25)]  # scored anew under another concept
    script.finish(rollout)
    directory = record_run(script)
    finish_run(directory)
    (row,) = pq.read_table(directory / "trajectories.parquet").to_pylist()
    assert row["reward"] == row["turns"][0]["reward"] == 0.25


def test_finishing_writes_one_row_an_update(record_run, drifting):
    directory = record_run(drifting)
    finish_run(directory)
    rows = pq.read_table(directory / "metrics.parquet").to_pylist()
    events = [event for _, event in drifting.events if isinstance(event, UpdateFinished)]
    assert [row["version"] for row in rows] == [event.version for event in events]
    assert [row["lag_mean"] for row in rows] == [event.lag_mean for event in events]
    assert rows[0]["metrics/explained_variance"] is None
    assert rows[-1]["metrics/explained_variance"] == 0.5


def test_a_run_cut_off_in_a_line_can_still_be_finished(record_run, drifting):
    directory = record_run(drifting)
    path = directory / "events.jsonl"
    path.write_bytes(path.read_bytes()[: 2 * path.stat().st_size // 3])
    summary = finish_run(directory)
    assert summary == read_summary(directory)
    assert summary["ended"]["reason"].startswith("cut off")
    assert any("incomplete" in note for note in summary["notes"])
    fates = pq.read_table(directory / "trajectories.parquet")["fate"].to_pylist()
    assert fates.count("open") == summary["rollouts"]["open"] > 0


def test_tensorboard_files_hold_the_scalars_and_are_reproducible(record_run, drifting):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
    from tensorboard.compat.proto.event_pb2 import Event as BoardEvent

    directory = record_run(drifting)
    finish_run(directory)
    (path,) = (directory / "tensorboard").iterdir()
    before = path.read_bytes()
    found: dict[str, list[tuple[int, float]]] = {}
    for raw in RawEventFileLoader(str(path)).Load():
        event = BoardEvent.FromString(raw)
        for value in event.summary.value:
            found.setdefault(value.tag, []).append((event.step, value.simple_value))
    updates = [event for _, event in drifting.events if isinstance(event, UpdateFinished)]
    assert [value for _, value in found["lag/max"]] == [event.lag_max for event in updates]
    assert len(found["learner/explained_variance"]) < len(updates)  # NaN is not drawn as 0
    assert found["evaluation/A"][0] == (0, pytest.approx(0.2))
    assert len(found["reward/prequential"]) == drifting.completed
    finish_run(directory)
    assert path.read_bytes() == before


def test_without_tensorboard_the_summary_says_so(record_run, drifting, monkeypatch):
    import sao_gym.tensorboard

    monkeypatch.setattr(sao_gym.tensorboard, "find_spec", lambda name: None)
    directory = record_run(drifting)
    summary = finish_run(directory)
    assert not (directory / "tensorboard").exists()
    assert any(re.search(r"sao-gym\[tensorboard\]", note) for note in summary["notes"])


def test_wall_time_stands_in_the_summary_only(record_run, drifting):
    directory = record_run(drifting)
    summary = finish_run(directory, weights_sha256="ab", wall_seconds=12.0625)
    assert (summary["wall_seconds"], summary["weights_sha256"]) == (12.0625, "ab")
    assert b"12.0625" not in (directory / "events.jsonl").read_bytes()


def test_the_header_line_alone_is_an_empty_run(tmp_path):
    (tmp_path / "events.jsonl").write_bytes(
        encode_header(scenario_sha256="0", seed=1, learner="sao")
    )
    assert list(read_events(tmp_path)) == []
