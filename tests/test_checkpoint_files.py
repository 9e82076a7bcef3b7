"""Checkpoint files: whole or not there, refused if they are not this run's."""

from __future__ import annotations

import errno
import json
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scripted import A, B, simulate, timeline

from sao_gym import checkpoint
from sao_gym.checkpoint import Checkpoints, DamagedError, difference, newest_first, read
from sao_gym.errors import InputError, RunError
from sao_gym.events import CheckpointTaken, RolloutDropped
from sao_gym.faults import FaultRule, Faults
from sao_gym.record import open_run, resume_run
from sao_gym.resume import find


def taken(update, state=b"the state"):
    return CheckpointTaken(update=update, scheduled=True, state=state)


def files(directory):
    return sorted(path.name for path in (directory / "checkpoints").iterdir())


@pytest.fixture
def written(tmp_path, scenario):
    """A directory with a log of two events and a checkpoint after each."""
    with open_run(
        tmp_path / "run", scenario, checkpoints=Checkpoints(tmp_path / "run", scenario=scenario)
    ) as recorder:
        for number in (1, 2):
            recorder.write(0.0, RolloutDropped(rollout=number, reason="stale", lag=1))
            recorder.write(0.0, taken(number, state=f"state {number}".encode()))
    return tmp_path / "run"


def test_the_last_few_are_kept_with_the_length_of_the_log(tmp_path, scenario):
    tmp_path.joinpath("checkpoints").mkdir()
    kept = Checkpoints(tmp_path, scenario=scenario, keep=3)
    for update in range(1, 8):
        kept.save(taken(update), events=10 * update)
    assert kept.written == 7
    assert [read(path).update for path in newest_first(tmp_path)] == [7, 6, 5]
    assert [read(path).events for path in newest_first(tmp_path)] == [70, 60, 50]


def test_the_newest_one_is_found_and_its_line_is_in_the_log(written, scenario):
    found = find(written, scenario, mode="virtual")
    assert (found.events, found.state, found.notes) == (4, b"state 2", [])


def test_an_interrupted_run_has_a_checkpoint_but_no_line(written, scenario):
    recorder = resume_run(
        written, events=3, checkpoints=Checkpoints(written, scenario=scenario, keep=5)
    )
    with recorder:
        event = CheckpointTaken(update=9, scheduled=False, state=b"here")
        recorder.write(0.0, event)
        recorder.write(0.0, RolloutDropped(rollout=3, reason="run_ended", lag=0))
    assert b"CheckpointTaken" not in (written / "events.jsonl").read_bytes().splitlines()[-2]
    newest = read(next(p for p in newest_first(written) if read(p).update == 9))
    assert (newest.events, newest.state) == (3, b"here")


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damage_is_never_accepted(tmp_path, scenario, data):
    tmp_path.joinpath("checkpoints").mkdir(exist_ok=True)
    state = bytes(range(256))
    Checkpoints(tmp_path, scenario=scenario).save(taken(1, state), events=5)
    path = next(newest_first(tmp_path))
    whole = path.read_bytes()
    start = whole.index(b"\n") + 1
    if data.draw(st.booleans()):
        broken = whole[: data.draw(st.integers(0, len(whole) - 1))]
    else:
        at = data.draw(st.integers(start, len(whole) - 1))
        flipped = whole[at] ^ data.draw(st.integers(1, 255))
        broken = whole[:at] + bytes([flipped]) + whole[at + 1 :]
    path.write_bytes(broken)
    with pytest.raises(DamagedError, match=str(path)):
        read(path)


def test_a_damaged_one_is_passed_over_and_said(written, scenario):
    newest = next(newest_first(written))
    newest.write_bytes(newest.read_bytes()[:-1])
    found = find(written, scenario, mode="virtual")
    assert found.state == b"state 1"
    assert "holds 6 of 7 bytes" in found.notes[0]


def test_one_that_the_log_does_not_reach_is_passed_over(written, scenario):
    log = written / "events.jsonl"
    log.write_bytes(log.read_bytes()[:-5])  # torn in the line of the second checkpoint
    found = find(written, scenario, mode="virtual")
    assert (found.events, found.state) == (2, b"state 1")
    assert "the log holds 3 of its 4 events" in found.notes[0]


def test_without_any_the_run_begins_anew(tmp_path, scenario):
    found = find(tmp_path / "nowhere", scenario, mode="virtual")
    assert (found.events, found.state) == (0, None)


def test_another_scenario_is_refused_with_the_first_difference(written, scenario):
    other = json.loads(json.dumps(scenario)) | {"seed": 4}
    with pytest.raises(InputError, match=r"another scenario: seed is 4 now and was 3"):
        find(written, other, mode="virtual")


def test_a_checkpoint_of_another_run_is_refused(written, tmp_path, scenario):
    other = dict(scenario) | {"name": "other"}
    foreign = Checkpoints(written, scenario=other, keep=9)
    foreign.save(taken(5), events=4)
    with pytest.raises(InputError, match=r"\.ckpt: of another scenario: name is 'scripted' now"):
        find(written, scenario, mode="virtual")


def test_another_format_version_is_refused(written, scenario):
    path = next(newest_first(written))
    head, _, rest = path.read_bytes().partition(b"\n")
    path.write_bytes(json.dumps(json.loads(head) | {"version": 9}).encode() + b"\n" + rest)
    with pytest.raises(InputError, match="format version 9, but this sao-gym reads version 2"):
        find(written, scenario, mode="virtual")


def test_a_virtual_run_does_not_go_on_live(written, scenario):
    with pytest.raises(InputError, match="of a virtual run, .* leave out --live"):
        find(written, scenario, mode="live")


def test_other_software_is_said(written, scenario, monkeypatch):
    monkeypatch.setattr(checkpoint, "software", lambda: {"torch": "9.9"})
    assert "torch" in find(written, scenario, mode="virtual").notes[-1]


@pytest.mark.parametrize(
    ("given", "kept", "words"),
    [
        ({"a": {"b": 1}}, {"a": {"b": 2}}, "a.b is 1 now and was 2"),
        ({"a": [1, {"x": 2}]}, {"a": [1, {"x": 3}]}, "a.1.x is 2 now and was 3"),
        ({}, {"a": 1}, "a is missing now"),
        ({"a": 1}, {}, "a is new now"),
        ({"a": [1]}, {"a": [1, 2]}, "a is [1] now and was [1, 2]"),
        ({"a": 1.0}, {"a": 1}, None),
    ],
)
def test_differences_in_words(given, kept, words):
    assert difference(given, kept) == words


def test_a_full_disk_costs_a_checkpoint_not_the_run(tmp_path, scenario, monkeypatch):
    tmp_path.joinpath("checkpoints").mkdir()
    kept = Checkpoints(tmp_path, scenario=scenario)
    kept.save(taken(1), events=10)

    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        kept.save(taken(2), events=20)
    assert (kept.written, len(kept.failed)) == (1, 1)
    assert "after update 2 could not be written (No space left" in kept.failed[0]
    assert files(tmp_path) == ["000000000010.ckpt"]
    kept.save(taken(3), events=30)
    assert [read(path).update for path in newest_first(tmp_path)] == [3, 1]


def test_the_declared_fault_of_a_full_disk(tmp_path, scenario):
    faults = Faults([FaultRule(kind="disk_full", at=(2,))])
    kept = Checkpoints(tmp_path, scenario=scenario, faults=faults)
    for update in (1, 2, 3):
        kept.save(taken(update), events=update)
    assert (kept.written, len(kept.failed)) == (2, 1)


def test_drafts_of_a_killed_process_are_swept(tmp_path, scenario):
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    (folder / "000000000007.tmp").write_bytes(b"half")
    Checkpoints(tmp_path, scenario=scenario).save(taken(1), events=10)
    assert files(tmp_path) == ["000000000010.ckpt"]


def test_a_full_disk_under_the_log_ends_the_run_with_one_line(tmp_path, scenario):
    with (
        open_run(tmp_path / "run", scenario) as recorder,
        open("/dev/full", "wb", buffering=0) as full,
    ):
        recorder._events.close()
        recorder._events = full
        with pytest.raises(RunError, match="cannot be written .No space left.*--resume"):
            recorder.write(0.0, RolloutDropped(rollout=1, reason="stale", lag=1))


def test_a_second_writer_is_refused(written, scenario):
    with (
        resume_run(written, events=4),
        pytest.raises(InputError, match="another process is writing this run"),
    ):
        resume_run(written, events=4)
    assert len((written / "events.jsonl").read_bytes().splitlines()) == 5


def test_the_size_does_not_grow_with_the_run():
    sizes = [
        len(event.state)
        for _, event in simulate(
            world=timeline(A | {"length": 500}, {"drift": {"kind": "abrupt"}}, B),
            checkpoint_every=20,
            slots=8,
            max_lag=2,
            rollouts=4000,
        )
        if isinstance(event, CheckpointTaken)
    ]
    assert len(sizes) > 40
    assert max(sizes[30:]) < 1.5 * max(sizes[:10])
