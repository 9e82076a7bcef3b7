"""The summary as data and in words, and the progress display."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from sao_gym.log import EventLog
from sao_gym.outputs import finish_run, read_summary
from sao_gym.progress import open_progress
from sao_gym.summary import COLUMNS, finding, rows, sentences, summarise, table


def shown(summary, width=100):
    console = Console(file=io.StringIO(), width=width)
    console.print(table(summary))
    return console.file.getvalue()


def costly(script, after, *, until=200):
    """A at 0.8, then B at 0.2, and B's scores `after` the change at 100."""
    script.change("A")
    for x in range(0, 100, 5):
        script.until(x)
        script.evaluate(A=0.8, B=0.2)
    script.until(100)
    script.change("B")
    for x, y in after.items():
        script.until(x)
        script.evaluate(B=y)
    script.until(until)
    script.end()
    return script


RECOVERS = {110: 0.5, 120: 0.7, 130: 0.75, 140: 0.78, 180: 0.8}


def test_every_rollout_has_exactly_one_fate(drifting):
    rollouts = summarise(drifting.records())["rollouts"]
    assert rollouts["started"] == 120
    assert rollouts["finished"] == 119
    assert rollouts["failed"] == {"environment": 1}
    assert rollouts["dropped"] == {"run_ended": 2, "stale": 1}
    assert rollouts["trained"] == 116
    assert rollouts["open"] == 0
    assert rollouts["action_tokens"] == drifting.tokens


def test_open_rollouts_of_a_cut_log_are_counted(drifting):
    summary = summarise(drifting.records()[:105])
    rollouts = summary["rollouts"]
    lost = sum(rollouts["dropped"].values()) + sum(rollouts["failed"].values())
    assert rollouts["open"] == rollouts["started"] - rollouts["trained"] - lost > 0
    assert summary["ended"] == {"reason": "cut off: the log has no end", "clocks": None}


def test_a_failed_rollout_is_no_reward(script):
    script.change("A")
    script.rollout(1.0)
    broken = script.start()
    script.turn(broken, reward=0.0)
    script.fail(broken)
    assert summarise(script.records())["reward"]["mean"] == 1.0


def test_the_clocks_of_the_end_agree_with_the_fold(drifting):
    summary = summarise(drifting.records())
    clocks = summary["ended"]["clocks"]
    assert clocks["started"] == summary["rollouts"]["started"]
    assert clocks["completed"] == summary["rollouts"]["finished"]
    assert clocks["consumed"] == summary["rollouts"]["trained"]
    assert clocks["version"] == summary["learning"]["version"]
    assert clocks["tokens"] == summary["rollouts"]["action_tokens"]
    assert clocks["seconds"] == summary["seconds"]


def test_lag_and_masks_by_hand(script):
    script.change("A")
    script.update([script.rollout(1.0, [(0, 96)])], masked_fraction=0.1)
    script.update([script.rollout(1.0, [(0, 4)])], masked_fraction=float("nan"))
    learning = summarise(script.records())["learning"]
    assert learning["lag_mean"] == pytest.approx(0.04)
    assert (learning["lag_p95"], learning["lag_max"]) == (0, 1)
    assert learning["masked_fraction"] == pytest.approx(0.1)  # the undefined one is left out
    assert (learning["updates"], learning["trained_tokens"]) == (2, 100)


def test_nothing_is_undefined_not_zero(script):
    script.change("A")
    script.end("seconds")
    summary = summarise(script.records())
    assert summary["reward"]["mean"] is None
    assert summary["reward"]["undefined"]["mean"] == "no rollout finished"
    assert summary["learning"]["lag_mean"] is None
    assert summary["learning"]["undefined"]["lag_mean"] == "no update"
    assert summary["ended"]["reason"] == "seconds"
    assert "no rollout" not in shown(summary)


def test_what_is_written_is_what_is_returned_and_is_strict_json(record_run, drifting):
    directory = record_run(drifting)
    summary = finish_run(directory)
    assert read_summary(directory) == summary
    json.loads((directory / "summary.json").read_text(), parse_constant=pytest.fail)


def test_the_summary_is_a_function_of_the_log(record_run, drifting, scenario):
    directory = record_run(drifting)
    written = finish_run(directory, wall_seconds=3.0)
    log = EventLog(directory)
    again = summarise(log, header=log.header, scenario=scenario)
    assert {name: written[name] for name in again} == again
    assert set(written) - set(again) == {"hashes", "notes", "wall_seconds", "checkpoints"}


def test_a_recovered_change_in_words(script):
    summary = summarise(costly(script, RECOVERS).records(), header={"learner": "sao", "seed": 3})
    assert finding(summary) == (
        "Recovered from the one costly change (80 % of the loss won back after 20 rollouts)."
    )
    (row,) = rows(summary)
    assert row == ("100", "A to B", "0.80", "0.50", "0.80", "20", "-", "-")
    assert len(row) == len(COLUMNS)


def test_a_censored_change_is_said_and_has_no_number(script):
    summary = summarise(costly(script, {110: 0.3, 180: 0.4}).records())
    assert finding(summary) == "Did not recover from the one costly change."
    assert rows(summary)[0][5] == "> 100"
    assert any("not recovered" in line for line in sentences(summary))


def test_no_median_is_given_when_some_did_not_recover(script):
    costly(script, RECOVERS)
    script.change("A")
    script.until(300)
    script.evaluate(A=0.2, B=0.8)
    summary = summarise(script.records())
    summary["changes"].append(
        summary["changes"][0] | {"recovery": {"80": None}, "censored": {"80": True}}
    )
    assert finding(summary) == "Recovered from 1 of 2 costly changes."


def test_a_change_that_cost_nothing_is_not_a_recovery(script):
    script.change("A")
    for x in range(0, 40, 2):
        script.until(x)
        script.evaluate(A=0.8, B=0.8)
    script.until(40)
    script.change("B")
    script.until(50)
    script.evaluate(B=0.8)
    summary = summarise(script.records())
    assert finding(summary) == "No change of the world cost a measurable amount of reward."
    assert rows(summary)[0][5] == "nothing lost"


def test_an_unconverged_start_is_marked(script):
    script.change("A")
    for x in range(0, 100, 5):
        script.until(x)
        script.evaluate(A=x / 100 + (0.001 if x % 2 else 0), B=0.2)
    script.until(100)
    script.change("B")
    script.until(150)
    summary = summarise(script.records())
    assert rows(summary)[0][2].endswith("*")
    assert "not converged" in shown(summary)


def test_the_table_names_the_clock_and_all_losses(drifting, scenario):
    text = shown(summarise(drifting.records(), scenario=scenario))
    assert "Clock: started" in text
    assert "Dropped: 2 run ended, 1 stale." in text
    assert "Failed: 1 environment." in text
    assert "80-90" in text
    assert "B to C (gradual)" in text


def test_the_table_fits_a_narrow_terminal(drifting, scenario):
    text = shown(summarise(drifting.records(), scenario=scenario), width=80)
    (line,) = [line for line in text.splitlines() if "A to B" in line]
    assert line.split()[0] == "40"
    assert line.rstrip().endswith("%")


def test_markup_in_names_is_shown_not_obeyed(script):
    script.change("[red]A[/red]")
    script.rollout(1.0)
    script.change("[bold]B")
    text = shown(summarise(script.records()))
    assert "[red]A[/red] to [bold]B" in text


# Progress


def follow(script, console, **options):
    with open_progress({"rollouts": 240}, console=console, **options) as progress:
        for seconds, event in script.events:
            progress.update(seconds, event)
        return progress.fraction, progress.describe()


def test_progress_says_where_the_run_is(drifting):
    fraction, words = follow(drifting, Console(file=io.StringIO()))
    assert fraction == 0.5
    assert words.startswith("120 of 240 rollouts, version 29, reward ")
    assert words.endswith("concept C")


def test_progress_is_silent_when_quiet(drifting, monkeypatch):
    import sao_gym.progress

    monkeypatch.setattr(sao_gym.progress, "LINE_SECONDS", 0.0)
    for terminal in (True, False):
        console = Console(file=io.StringIO(), force_terminal=terminal)
        follow(drifting, console, quiet=True)
        assert console.file.getvalue() == ""


def test_progress_writes_a_line_now_and_then_without_a_terminal(drifting, monkeypatch):
    import sao_gym.progress

    clock = iter(range(100_000))
    monkeypatch.setattr(sao_gym.progress.clock, "monotonic", lambda: 0.05 * next(clock))
    console = Console(file=io.StringIO(), force_terminal=False, width=200)
    follow(drifting, console)
    lines = console.file.getvalue().splitlines()
    events = len([1 for _, event in drifting.events if "Step" not in type(event).__name__])
    assert 1 <= len(lines) <= 0.05 * events / 10 + 1  # a look every 0.05 s, a line every 10 s
    assert all("rollouts, version" in line for line in lines)


def test_progress_draws_a_bar_in_a_terminal_and_leaves_nothing_behind(drifting):
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    with open_progress({"updates": 29}, console=console) as progress:
        for seconds, event in drifting.events:
            progress.update(seconds, event)
        assert progress.fraction == 1.0
    assert "120 rollouts" in console.file.getvalue()


def test_the_budget_used_up_first_counts():
    with open_progress({"rollouts": 10, "seconds": 4.0}, console=Console(file=io.StringIO())) as p:
        from sao_gym.events import PolicyPublished

        p.update(3.0, PolicyPublished(version=1))
        assert p.fraction == 0.75
        p.update(9.0, PolicyPublished(version=2))
        assert p.fraction == 1.0
