"""The simulation tester: it passes, it is deterministic, and it finds what is planted."""

from __future__ import annotations

import builtins
import re

import pytest
from click.testing import CliRunner

from sao_gym.errors import InputError, InvariantError, StalledError
from sao_gym.faults import FaultRule
from sao_gym.invariants import Hang, Violation
from sao_gym.latency import Constant
from sao_gym.loop import _Loop
from sao_gym.run import main
from sao_gym.soak import case as player
from sao_gym.soak import driver
from sao_gym.soak.case import Played, load, play
from sao_gym.soak.declared import Bound, Case, World
from sao_gym.stream import TaskStream
from sao_gym.waiting import Waiting
from sao_gym.yaml_source import dump


def drawn(seed, size=30):
    """The cases of a seed; none is played."""
    found = []

    def note(case):
        found.append(case)
        return Played(runs=1)

    driver.batch(seed, size, player=note)
    return found


def test_fifty_runs_keep_every_promise(tmp_path):
    done = CliRunner().invoke(
        main, ["soak", "--runs", "50", "--seed", "11", "--out", str(tmp_path)]
    )
    assert done.exit_code == 0, done.output
    (total,) = re.findall(
        r"soak: 50 runs, 0 violations, 0 hangs, ([\d,]+) events, ([\d,]+) rollouts, "
        r"([\d,]+) faults handled, ([\d,]+) resumes; seed 11\n",
        done.output,
    )
    events, rollouts, _, resumes = (int(number.replace(",", "")) for number in total)
    assert events > rollouts > 300
    assert resumes > 40
    assert list(tmp_path.iterdir()) == []


def test_the_same_seed_gives_the_same_cases():
    assert drawn(3) == drawn(3)
    assert drawn(3) != drawn(4)


def test_the_cases_are_not_all_alike():
    cases = [case for seed in range(5) for case in drawn(seed, size=100)]
    assert len(cases) == 500
    assert {case.parts for case in cases} == {"scripted", "real"}
    assert {case.world.inflight for case in cases} == {"pin", "live", "abort", "reward_late"}
    assert len({rule.kind for case in cases for rule in case.faults}) == 13
    assert any(case.recorded for case in cases)


def test_a_case_is_read_back_as_it_was_written(tmp_path):
    for number, case in enumerate(drawn(5, size=40)):
        path = tmp_path / f"{number}.yaml"
        path.write_text(dump(case.model_dump(mode="json", by_alias=True, round_trip=True)))
        assert load(path) == case


def test_a_file_that_is_no_case_is_one_line(tmp_path):
    (tmp_path / "case.yaml").write_text("seed: 1\nslot: 3\n")
    with pytest.raises(InputError, match=r"case.yaml:2: slot: unknown key; did you mean 'slots'"):
        load(tmp_path / "case.yaml")
    with pytest.raises(InputError, match="cannot be read"):
        load(tmp_path / "none.yaml")


def found_and_reproduced(folder, what, seed=0):
    """Soak until the planted bug shows; the smallest case shows it again."""
    with pytest.raises(InvariantError, match=what) as found:
        driver.soak(runs=1000, minutes=None, seed=seed, out=str(folder))
    (path,) = folder.iterdir()
    assert str(found.value).endswith(f"python -m sao_gym.run replay {path}")
    case = load(path)
    with pytest.raises(Violation, match=what):
        play(case)
    return case


def test_a_failed_rollout_that_is_kept_in_the_count_is_found(tmp_path, monkeypatch):
    """It takes its place in the pacing with it, until nothing can start any more."""

    def forgetful(self, event):
        rollout = self.acting.close(event.rollout)
        self.failures.add(event.failure)
        self._lose(rollout.task, rollout.concept_start)

    monkeypatch.setattr(_Loop, "_failed", forgetful)
    case = found_and_reproduced(tmp_path, "stalled; StalledError")
    assert case.faults or case.fails or case.environment_timeout < 300
    assert (case.batch_size, case.turns, case.parts) == (1, 1, "scripted"), "shrunk"
    monkeypatch.undo()
    play(case)


def test_a_checkpoint_that_forgets_the_queue_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(
        Waiting,
        "state_dict",
        lambda self: {"queue": [], "fresh": self.fresh, "aged": self._aged},
    )
    found_and_reproduced(tmp_path, "resumed")


def test_a_stall_of_a_group_that_was_given_up_is_found(monkeypatch):
    case = Case(
        slots=8,
        max_lag=0,
        batch_size=4,
        group_size=2,
        turns=2,
        faults=(FaultRule(kind="environment_raises", rate=0.35),),
        budget=Bound(rollouts=150),
        world=World(drift="abrupt", length=10, inflight="abort"),
        update=Constant(value=0.0),
    )
    play(case)
    monkeypatch.setattr(TaskStream, "given_up", lambda self, task: False)
    monkeypatch.setattr(TaskStream, "lose", _lose_as_before)
    with pytest.raises(Violation, match="stalled; StalledError"):
        play(case)


def _lose_as_before(self, task, concept):
    self._lost[task.index] += 1
    if self._lost[task.index] > 2 * self._group_size:
        return False
    self._again.append((task, concept))
    return True


def test_the_exit_code_is_7_and_the_line_says_how_to_replay(tmp_path, monkeypatch):
    def broken(self, rollouts):
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(_Loop, "_train", broken)
    done = CliRunner().invoke(main, ["soak", "--runs", "20", "--out", str(tmp_path)])
    assert done.exit_code == 7
    assert "1 violations, 0 hangs" in done.output
    assert "the run raised" in done.output
    assert f"python -m sao_gym.run replay {tmp_path}/soak-failure-0.yaml" in done.output


def test_a_run_that_does_not_end_is_a_hang(tmp_path, monkeypatch):
    monkeypatch.setattr(player, "MOST_EVENTS", 40)
    with pytest.raises(Hang, match="the run does not end"):
        play(Case())
    done = CliRunner().invoke(main, ["soak", "--runs", "20", "--out", str(tmp_path)])
    assert done.exit_code == 7
    assert "0 violations, 1 hangs" in done.output


def test_a_stall_is_never_an_allowed_end(monkeypatch):
    def stalled(self):
        raise StalledError("planted")

    monkeypatch.setattr(_Loop, "_admit", stalled)
    with pytest.raises(Violation, match="the run ended: stalled; StalledError: planted"):
        play(Case())


def test_real_parts():
    case = Case(
        parts="real",
        learner="grpo",
        batch_size=4,
        group_size=2,
        world=World(drift="gradual", clock="consumed", observability="context"),
        evaluate_every=2,
        faults=(FaultRule(kind="engine_stale", at=(1, 2)), FaultRule(kind="update_nan", at=(2,))),
        recorded=True,
        torn=0.6,
    )
    played = play(case)
    assert (played.rollouts, played.resumes) == (40, 3)
    assert played.faults == 3


def test_without_hypothesis_it_says_what_to_install(monkeypatch):
    imported = builtins.__import__

    def refuse(name, *rest):
        if name.split(".")[0] == "hypothesis":
            raise ModuleNotFoundError("No module named 'hypothesis'", name="hypothesis")
        return imported(name, *rest)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(InputError, match=r"pip install 'sao-gym\[soak\]'"):
        driver.batch(0, 1)


def test_minutes_end_it(capsys, monkeypatch):
    monkeypatch.setattr(driver, "BATCH", 5)
    driver.soak(runs=None, minutes=0.0001, seed=2, out=None)
    assert re.match(r"soak: \d+ runs, 0 violations, .*; seed 2\n", capsys.readouterr().out)
