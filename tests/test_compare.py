"""Arms against each other: pairing, the held curve, the figure and its words."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from sao_gym.errors import InputError
from sao_gym.report import compare
from sao_gym.report.compare import ArmRun, check_paired, difference_words, pair, read_arm_run


def test_paired_differences_are_those_of_the_paired_t_test():
    a, b = [0.7, 0.8, 0.6, 0.9], [0.6, 0.75, 0.65, 0.7]
    paired = pair(a, b)
    low, high = stats.ttest_rel(a, b).confidence_interval(0.95)
    assert paired.mean == pytest.approx((low + high) / 2)
    assert paired.half_width == pytest.approx((high - low) / 2)
    assert paired.wins == 3
    assert pair([1.0], [0.5]).half_width is None


def arm(record_run, new_script, label, seed, scores, **changes):
    script = new_script()
    script.change("A")
    script.evaluate(A=0.5, B=0.1)
    script.until(50)
    script.change("B")
    for x, y in zip((60, 80, 100), scores, strict=True):
        script.until(x)
        script.evaluate(A=0.5, B=y)
    script.end()
    learner = {"learner": {"name": label}, "seed": seed}
    return record_run(script, f"{label}{seed}", **(learner | changes))


@pytest.fixture
def arms(record_run, new_script):
    def make(label, gain):
        return [
            arm(
                record_run,
                new_script,
                label,
                seed,
                (0.2 + gain, 0.5 + gain, 0.6 + gain + 0.01 * seed),
            )
            for seed in (2, 0, 1)
        ]

    return {"sao": make("sao", 0.2), "grpo": make("grpo", 0.0)}


def test_the_held_curve_is_never_interpolated_over_a_change(arms):
    run = read_arm_run(arms["grpo"][1])
    values = run.on(np.array([0.0, 49.0, 50.0, 55.0, 60.0, 70.0, 100.0]))
    assert values == pytest.approx([0.5, 0.5, 0.1, 0.15, 0.2, 0.35, 0.6])


def test_the_score_is_the_area_since_the_first_change(arms):
    run = read_arm_run(arms["grpo"][1])
    area = 10 * (0.1 + 0.2) / 2 + 20 * (0.2 + 0.5) / 2 + 20 * (0.5 + 0.6) / 2
    assert run.score == pytest.approx(area / 50)


def test_the_comparison_writes_a_figure_and_says_the_difference(arms, tmp_path):
    data = compare(arms, tmp_path / "compare.png").read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    runs = {label: [read_arm_run(path) for path in paths] for label, paths in arms.items()}
    runs = check_paired(runs)
    words = difference_words("sao", "grpo", runs["sao"], runs["grpo"])
    # the piece begins with the same 0.1; from 60 on all is 0.2 higher: (0.1 * 10 + 0.2 * 40) / 50
    assert words.startswith("sao - grpo: +0.180 ± 0.000 (95 % t)")
    assert words.endswith("better on 3 of 3 seeds")


def test_arms_are_paired_by_seed_whatever_the_order(arms):
    runs = {label: [read_arm_run(path) for path in paths] for label, paths in arms.items()}
    ordered = check_paired(runs)
    assert [[run.seed for run in same] for same in ordered.values()] == [[0, 1, 2], [0, 1, 2]]


def run_like(seed, world="w"):
    return ArmRun(seed=seed, world=world, end=10, clock="started", changes=(), pieces=())


@pytest.mark.parametrize(
    ("arms", "message"),
    [
        ({"a": [run_like(0)]}, "at least two arms"),
        ({"a": [run_like(0)], "b": [run_like(1)]}, r"b has the seeds \[1\] but a has \[0\]"),
        ({"a": [run_like(0), run_like(0)], "b": [run_like(0)] * 2}, "one run for each seed"),
        ({"a": [], "b": []}, "one run for each seed"),
        ({"a": [run_like(0)], "b": [run_like(0, "v")]}, "did not see the same world"),
    ],
)
def test_what_cannot_be_paired_is_refused(arms, message):
    with pytest.raises(InputError, match=message):
        check_paired(arms)
