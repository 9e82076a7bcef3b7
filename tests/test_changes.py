"""What a change cost and what was remembered, against hand-worked values on tiny logs."""

from __future__ import annotations

import pytest

from sao_gym.metrics import change_reports, collect, memory_report, transitions


def scored(script, points, until=None):
    """Write evaluations {started: {concept: score}} in order."""
    for x, scores in points.items():
        script.until(x)
        script.evaluate(**scores)
    if until is not None:
        script.until(until)
    return script


# Change reports


def two_concepts(script, after, until=200):
    """A at 0.8 for 100 rollouts, B at 0.2 until then; `after` are B's scores from then on."""
    script.change("A")
    flat = {x: {"A": 0.8, "B": 0.2} for x in range(0, 100, 5)}
    scored(script, flat, until=100)
    script.change("B")
    return scored(script, {x: {"A": 0.5, "B": y} for x, y in after.items()}, until=until)


def test_one_change_by_hand(script):
    after = {104: 0.1, 110: 0.4, 120: 0.7, 124: 0.7, 130: 0.75, 160: 0.78, 180: 0.8, 190: 0.6}
    (report,) = change_reports(collect(two_concepts(script, after).records()))
    assert (report.old, report.new, report.tau, report.settled, report.end) == (
        "A",
        "B",
        100,
        100,
        200,
    )
    assert report.before == pytest.approx(0.8)
    assert report.before_slope == pytest.approx(0.0)
    assert report.converged is True
    assert report.unchanged == pytest.approx(0.2)  # P0: the last look at B before the change
    assert report.after == pytest.approx(0.1)
    assert report.drop == pytest.approx(0.6)  # what the world did
    assert report.self_inflicted == pytest.approx(0.1)  # what learning did
    assert report.lowest == pytest.approx(0.1)
    assert report.at_end == pytest.approx((0.8 + 0.6) / 2)  # x in [175, 200]
    assert report.regained == pytest.approx((0.7 - 0.2) / 0.6)
    assert report.recovery["80"]["started"] == 20  # 0.68, held at 120, 124, 130
    assert report.recovery["50"]["started"] == 20  # 0.5
    assert report.censored == {"50": False, "80": False, "90": False}
    assert report.recovery["90"]["started"] == 30  # 0.74, held at 130, 160, 180
    assert report.flush is None
    assert report.undefined["lag_mean"].startswith("no update")


def test_the_evaluation_at_the_change_itself_is_before_and_after(script):
    (report,) = change_reports(collect(two_concepts(script, {100: 0.15, 110: 0.3}).records()))
    assert (report.unchanged, report.after) == (pytest.approx(0.15), pytest.approx(0.15))
    assert report.before == pytest.approx(0.8)  # A's 0.5 at the change is not before it


def test_a_censored_recovery_is_none_on_every_clock(script):
    (report,) = change_reports(collect(two_concepts(script, {110: 0.3, 190: 0.4}).records()))
    assert report.recovery == {"50": None, "80": None, "90": None}
    assert report.censored["80"] is True
    assert "censored" in report.undefined["recovery.80"]


def test_a_concept_never_evaluated_before_is_undefined_not_zero(script):
    script.change("A")
    scored(script, {x: {"A": 0.8} for x in range(0, 100, 5)}, until=100)
    script.change("B")
    scored(script, {110: {"B": 0.5}}, until=200)
    (report,) = change_reports(collect(script.records()))
    for name in ("unchanged", "drop", "regained", "self_inflicted"):
        assert getattr(report, name) is None
        assert "was not evaluated before" in report.undefined[name]
    assert report.recovery["80"] is None
    assert report.censored["80"] is False


def test_evaluations_of_the_next_segment_do_not_count(script):
    two_concepts(script, {110: 0.3, 150: 0.3}, until=200)
    script.change("A")
    scored(script, {205: {"A": 0.1, "B": 0.9}, 220: {"A": 0.8, "B": 0.9}}, until=300)
    first, second = change_reports(collect(script.records()))
    assert first.end == second.tau == 200
    assert first.recovery["80"] is None
    assert first.lowest == pytest.approx(0.3)  # B's 0.2 was before the change
    assert second.lowest == pytest.approx(0.1)


def test_recovery_is_given_on_every_clock(script):
    script.change("A")
    scored(script, {x: {"A": 0.8, "B": 0.2} for x in range(0, 40, 2)}, until=40)
    script.change("B")
    script.update([script.rollout(1.0), script.rollout(1.0)])  # 42 started
    script.rollout(1.0, [(1, 7)])  # 43
    scored(script, {x: {"B": 0.8} for x in (44, 46, 48, 50)}, until=60)
    (report,) = change_reports(collect(script.records()))
    assert report.recovery["80"] == {
        "started": 4,
        "completed": 3,
        "consumed": 2,
        "version": 1,
        "tokens": 9,
        "seconds": pytest.approx(3 * 1.25 + 1.0),
    }


def test_a_drift_window_is_one_change_with_begin_and_end(script):
    script.change("A")
    scored(script, {x: {"A": 0.8, "B": 0.2} for x in range(0, 100, 5)}, until=100)
    script.change("B", "gradual", "window_began")
    scored(script, {110: {"B": 0.3}}, until=140)
    script.change("B", "gradual", "window_ended")
    scored(script, {x: {"B": 0.7} for x in (150, 160, 170, 190)}, until=200)
    facts = collect(script.records())
    (move,) = transitions(facts)
    assert (move.old, move.new, move.kind) == ("A", "B", "gradual")
    assert (move.previous, move.tau, move.settled, move.end) == (0, 100, 140, 200)
    (report,) = change_reports(facts)
    assert report.recovery["80"]["started"] == 50  # from the begin of the window


def test_a_run_that_ends_inside_a_window_has_no_end_level(script):
    two_concepts(script, {110: 0.5}, until=150)
    script.change("C", "gradual", "window_began")
    scored(script, {160: {"C": 0.4}})
    report = change_reports(collect(script.records()))[-1]
    assert report.settled is None
    assert report.at_end is None
    assert "inside the drift window" in report.undefined["at_end"]


def test_no_change_no_report(script):
    script.change("A")
    scored(script, {0: {"A": 0.3}}, until=50)
    assert change_reports(collect(script.records())) == ()


def test_what_flowed_between_two_changes(script):
    script.change("A")
    script.update([script.rollout(1.0)], masked_fraction=0.8)  # before: counts for no change
    old = [script.rollout(1.0, [(1, 1)]), script.rollout(1.0, [(1, 1)])]
    slow = script.start()
    script.change("B")
    script.turn(slow, reward=-9.0)
    script.finish(slow)  # started before: served under A
    script.update(old, masked_fraction=0.4)  # all of it old
    mixed = [script.rollout(0.0, [(1, 1)]), script.rollout(1.0, [(2, 3)])]
    script.update(mixed, masked_fraction=0.2)  # all of it new, learner 2: lags 1, 0, 0, 0
    script.change("C")
    script.update([script.rollout(1.0, [(3, 1)])], masked_fraction=0.9)
    first, second = change_reports(collect(script.records()))
    assert first.served == pytest.approx(0.5)
    assert first.lag_mean == pytest.approx(1 / 6)  # 2 tokens at lag 0, 4 with sum 1
    assert first.lag_max == 1
    assert first.masked_fraction == pytest.approx(0.3)
    assert first.flush == 2  # the second update, when 6 rollouts had started; tau was 4
    assert second.masked_fraction == pytest.approx(0.9)


def test_a_learner_without_masks_has_no_masked_fraction(script):
    script.change("A")
    script.rollout(1.0)
    script.change("B")
    script.update([script.rollout(1.0)], loss=1.0)
    (report,) = change_reports(collect(script.records()))
    assert report.masked_fraction is None
    assert report.undefined["masked_fraction"] == "the learner reports no masked_fraction"


def test_savings_compare_two_visits_through_a_change(script):
    def visit(concept, other, slow):
        begin = script.started
        script.change(concept)
        for x in range(begin, begin + 100, 5):
            script.until(x)
            script.evaluate(
                **{concept: 0.2 if x - begin < slow else 0.8, other: 0.8 if x == begin else 0.2}
            )
        script.until(begin + 100)

    for concept, other, slow in (("A", "B", 0), ("B", "A", 40), ("A", "B", 30), ("B", "A", 10)):
        visit(concept, other, slow)
    first, home, again = change_reports(collect(script.records()))
    assert first.recovery["80"]["started"] == 40
    assert again.recovery["80"]["started"] == 10
    assert again.savings == pytest.approx(0.75)
    assert first.savings is home.savings is None
    assert "first visit" in first.undefined["savings"]


# Memory


def remembered(script, rows):
    """Segments of 10 rollouts; `rows` = [(concept held, {concept: score at its end})]."""
    for number, (concept, scores) in enumerate(rows):
        script.change(concept)
        script.until(10 * number + 9)
        script.evaluate(**scores)
        script.until(10 * number + 10)
    return memory_report(collect(script.records()))


def test_memory_by_hand(script):
    script.change("A")
    script.evaluate(A=0.1, B=0.2, C=0.3)  # untrained
    script.until(9)
    script.evaluate(A=0.9, B=0.25, C=0.3)
    script.until(10)
    script.change("B")
    script.until(19)
    script.evaluate(A=0.5, B=0.8, C=0.4)
    script.until(20)
    script.change("C")
    script.until(29)
    script.evaluate(A=0.4, B=0.6, C=0.7)
    memory = memory_report(collect(script.records()))
    assert memory.scores == ((0.9, 0.25, 0.3), (0.5, 0.8, 0.4), (0.4, 0.6, 0.7))
    assert memory.accuracy == pytest.approx((0.4 + 0.6 + 0.7) / 3)
    assert memory.backward == pytest.approx(((0.4 - 0.9) + (0.6 - 0.8)) / 2)
    assert memory.forgetting == pytest.approx((0.5 + 0.2) / 2)
    assert memory.forward == pytest.approx(((0.25 - 0.2) + (0.4 - 0.3)) / 2)


def test_total_forgetting_is_the_score_that_was_lost_not_one(script):
    rows = [("A", {"A": 0.6, "B": 0.1}), ("B", {"A": 0.0, "B": 0.9})]
    assert remembered(script, rows).forgetting == pytest.approx(0.6)


def test_forgetting_counts_the_best_score_up_to_the_row_before_the_last(script):
    rows = [("A", {"A": 0.6, "B": 0}), ("B", {"A": 0.9, "B": 0.9}), ("C", {"A": 0.5, "B": 0.9})]
    assert remembered(script, rows).forgetting == pytest.approx(((0.9 - 0.5) + 0.0) / 2)


def test_what_got_better_later_is_negative_forgetting(script):
    rows = [("A", {"A": 0.5, "B": 0.1}), ("B", {"A": 0.7, "B": 0.9})]
    assert remembered(script, rows).forgetting == pytest.approx(-0.2)


def test_a_score_before_the_first_visit_cannot_be_forgotten(script):
    rows = [("A", {"A": 0.5, "B": 0.8}), ("B", {"A": 0.5, "B": 0.6}), ("C", {"A": 0.5, "B": 0.6})]
    assert remembered(script, rows).forgetting == pytest.approx(0.0)


def test_the_concept_that_holds_at_the_end_is_not_a_memory(script):
    rows = [("A", {"A": 0.9, "B": 0}), ("B", {"A": 0.1, "B": 0.8}), ("A", {"A": 0.9, "B": 0.2})]
    memory = remembered(script, rows)
    assert memory.concepts == ("A", "B")
    assert memory.segments == ("A", "B", "A")
    assert memory.forgetting == pytest.approx(0.6)


def test_undefined_cells_stay_undefined(script):
    one = remembered(script, [("A", {"A": 0.9})])
    assert (one.backward, one.forward, one.forgetting) == (None, None, None)
    assert one.undefined["forgetting"] == "only one concept was visited"
    assert one.accuracy == pytest.approx(0.9)


def test_a_cell_that_was_not_evaluated_makes_the_mean_undefined(script):
    memory = remembered(script, [("A", {"A": 0.9}), ("B", {"A": 0.4})])
    assert memory.scores == ((0.9, None), (0.4, None))
    assert memory.accuracy is None
    assert "not evaluated" in memory.undefined["accuracy"]
    assert memory.forgetting == pytest.approx(0.5)
