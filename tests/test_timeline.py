"""The timeline is a pure function of the clock, and says what it means."""

from __future__ import annotations

import itertools
import json
import math
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy import stats

from sao_gym.events import Clocks, ConceptChanged
from sao_gym.timeline import Timeline, share
from sao_gym.timeline_config import Gradual, TimelineConfig

A = {"id": "A", "params": {"mapping": "AB", "flip": 0.0}}
B = {"id": "B", "params": {"mapping": "BA", "flip": 0.0}}
C = {"id": "C", "params": {"mapping": "AB", "flip": 0.2}}
ABRUPT = {"drift": {"kind": "abrupt"}}


def declared(*segments, **options) -> TimelineConfig:
    text = json.dumps({"segments": segments, **options})
    return TimelineConfig.model_validate_json(text, strict=True)


def made(*segments, **options) -> Timeline:
    return Timeline(declared(*segments, **options))


def concept(spec, length=None):
    return {"concept": spec} | ({} if length is None else {"length": length})


def gradual(length, ramp="linear"):
    return {"drift": {"kind": "gradual", "length": length, "ramp": ramp}}


def incremental(start, to, length, param="flip"):
    drift = {"kind": "incremental", "param": param, "from": start, "to": to, "length": length}
    return {"drift": drift}


def changes(timeline):
    return [(b.position, b.segment, b.concept.id, b.kind, b.phase) for b in timeline.boundaries]


DRIFT_MD = (
    concept(A, 4000),
    gradual(500, "sigmoid"),
    concept(B, 4000),
    ABRUPT,
    concept({"ref": "A"}, 4000),
    incremental(0.0, 0.2, 1000),
)


def test_a_whole_timeline_by_hand():
    timeline = made(*DRIFT_MD)
    assert timeline.length == 13500
    assert [c.id for c in timeline.concepts] == ["A", "B", "A~flip=0.2"]
    assert timeline.concepts[-1].params == {"mapping": "AB", "flip": 0.2}
    assert changes(timeline) == [
        (0, 0, "A", "start", "changed"),
        (4000, 0, "B", "gradual", "window_began"),
        (4500, 1, "B", "gradual", "window_ended"),
        (8500, 2, "A", "abrupt", "changed"),
        (12500, 2, "A~flip=0.2", "incremental", "window_began"),
        (13500, 3, "A~flip=0.2", "incremental", "window_ended"),
    ]
    held = [timeline.dominant_at(v) for v in (0, 3999, 4000, 4249, 4251, 4500, 8499, 8500, 12499)]
    assert [(h.segment, h.concept.id) for h in held] == [
        (0, "A"), (0, "A"), (0, "A"), (0, "A"), (1, "B"), (1, "B"), (1, "B"), (2, "A"), (2, "A"),
    ]  # fmt: skip


def test_defaults_are_the_neutral_ones():
    timeline = made(concept(A, 5))
    assert (timeline.clock, timeline.observability, timeline.inflight) == (
        "started",
        "hidden",
        "pin",
    )


def test_an_abrupt_change_falls_between_two_clock_values():
    timeline = made(concept(A, 10), ABRUPT, concept(B, 10))
    assert [timeline.concept_at(v, 0, 0).id for v in (0, 9, 9.999, 10, 19, 20, 10**9)] == list(
        "AAABBBB"
    )


def test_an_incremental_drift_moves_the_value_for_everybody():
    timeline = made(concept(A, 10), incremental(0.0, 0.2, 4))
    met = {timeline.concept_at(11, entity, 3).params["flip"] for entity in range(50)}
    assert list(met) == [pytest.approx(0.05)]
    values = [timeline.concept_at(10 + i, 0, 0) for i in range(6)]
    assert [v.params["flip"] for v in values] == pytest.approx([0, 0.05, 0.1, 0.15, 0.2, 0.2])
    assert [v.id for v in values] == ["A~flip"] * 4 + ["A~flip=0.2"] * 2
    assert all(v.params["mapping"] == "AB" for v in values)
    assert timeline.concept_at(9, 0, 0).params["flip"] == 0.0


def test_an_incremental_drift_arrives_at_the_concept_that_is_written():
    timeline = made(concept(A, 10), incremental(0.0, 0.2, 4), concept(C, 10))
    assert [c.id for c in timeline.concepts] == ["A", "C"]
    assert timeline.concept_at(14, 0, 0).id == "C"
    assert timeline.length == 24


def test_evaluation_sees_all_concepts_and_the_moving_one_where_it_is():
    timeline = made(concept(A, 10), incremental(0.0, 0.2, 4))
    for value in (0, 9, 14, 99):
        assert timeline.evaluation_concepts(value) == timeline.concepts
    *rest, moving = timeline.evaluation_concepts(12)
    assert tuple(rest) == timeline.concepts
    assert moving.params["flip"] == pytest.approx(0.1)


def test_a_gradual_window_adds_no_concept_to_the_evaluation():
    timeline = made(concept(A, 10), gradual(10), concept(B, 10))
    assert [c.id for c in timeline.evaluation_concepts(15)] == ["A", "B"]


def test_repeat_writes_the_cycle_out():
    cycle = (concept(A, 10), ABRUPT, concept(B, 5), gradual(2))
    repeated = made(*cycle, repeat=2)
    written = made(
        concept(A, 10), ABRUPT, concept(B, 5), gradual(2), concept({"ref": "A"}, 10), ABRUPT,
        concept({"ref": "B"}, 5),
    )  # fmt: skip
    assert repeated.length == written.length == 32
    assert repeated.boundaries == written.boundaries
    assert repeated.digest() == written.digest()
    assert [c.id for c in repeated.concepts] == ["A", "B"]


def test_an_open_end():
    timeline = made(concept(A, 10), ABRUPT, concept(B))
    assert timeline.length is None
    assert timeline.realised(0, 12)[-1].end == math.inf


def test_seconds_need_not_be_whole():
    timeline = made(concept(A, 0.5), gradual(0.25), concept(B, 1), clock="seconds")
    assert timeline.length == 1.75
    assert timeline.concept_at(0.49, 0, 0).id == "A"
    assert timeline.concept_at(0.75, 0, 0).id == "B"


def test_a_clock_never_shows_less_than_nothing():
    with pytest.raises(ValueError, match="at least 0"):
        made(concept(A, 5)).concept_at(-1, 0, 0)


def test_boundaries_are_concept_changed_events_to_be():
    for b in made(*DRIFT_MD).boundaries:
        event = ConceptChanged(
            segment=b.segment, concept=b.concept, kind=b.kind, phase=b.phase, clocks=Clocks()
        )
        assert pickle.loads(pickle.dumps(event)) == event


def test_the_realised_world_counts_every_entity_once_where_it_stood():
    rows = made(concept(A, 100), gradual(200), concept(B, 50)).realised(seed=5, n=350)
    assert [(r.segment, r.kind, r.start, r.end) for r in rows] == [
        (0, "concept", 0, 100),
        (0, "gradual", 100, 300),
        (1, "concept", 300, 350),
    ]
    assert rows[0].counts == {"A": 100}
    assert rows[2].counts == {"B": 50}
    assert sum(rows[1].counts.values()) == 200
    # A linear ramp: 99.5 expected, at most sqrt(200) / 2 of spread.
    assert abs(rows[1].counts["B"] - 99.5) < 4 * math.sqrt(200) / 2


def test_realised_can_spread_the_entities():
    rows = made(concept(A, 0.5), ABRUPT, concept(B, 1.5), clock="seconds").realised(0, 8, 0.25)
    assert [r.counts for r in rows] == [{"A": 2}, {"B": 6}]


def test_every_concept_is_reached_from_every_seed():
    """No draw is shared by windows in such a way that a seed never leaves its first concept."""
    timeline = made(
        concept(A, 1), gradual(40), concept(B, 1), gradual(40), concept({"ref": "A"}, 1)
    )
    for seed in range(20):
        rows = timeline.realised(seed, 83)
        assert all(set(row.counts) == {"A", "B"} for row in rows if row.kind == "gradual")


# --- ramps ---------------------------------------------------------------------------------------

ramps = st.sampled_from(["linear", "sigmoid"])


@given(ramp=ramps, x=st.floats(0, 1), y=st.floats(0, 1))
def test_a_ramp_rises_from_0_to_1_and_is_symmetric(ramp, x, y):
    drift = Gradual(kind="gradual", length=10, ramp=ramp)
    assert (share(drift, 0.0), share(drift, 1.0)) == pytest.approx((0.0, 1.0))
    assert share(drift, min(x, y)) <= share(drift, max(x, y))
    assert share(drift, x) + share(drift, 1 - x) == pytest.approx(1)


def test_the_sigmoid_is_the_stretched_logistic_curve():
    def logistic(x):
        return 1 / (1 + math.exp(-10 * (x - 0.5)))

    drift = Gradual(kind="gradual", length=10, ramp="sigmoid")
    for x in (0.1, 0.3, 0.5, 0.9):
        expected = (logistic(x) - logistic(0)) / (logistic(1) - logistic(0))
        assert share(drift, x) == pytest.approx(expected)


@settings(max_examples=20, deadline=None)
@given(ramp=ramps, progress=st.sampled_from([0.1, 0.25, 0.5, 0.75, 0.9]), seed=st.integers(0, 9))
def test_the_mixture_follows_the_ramp(ramp, progress, seed):
    timeline = made(concept(A, 10), gradual(1000, ramp), concept(B, 10))
    value = 10 + 1000 * progress
    n = 2000
    entered = sum(timeline.concept_at(value, entity, seed).id == "B" for entity in range(n))
    expected = share(Gradual(kind="gradual", length=1, ramp=ramp), progress)
    assert stats.binomtest(entered, n, expected).pvalue > 1e-6


# --- properties of any timeline ------------------------------------------------------------------


@st.composite
def worlds(draw):
    """Valid timelines of up to six concept segments, with what holds outside of windows."""
    letters = draw(st.lists(st.sampled_from("ABCDE"), min_size=1, max_size=6))
    letters = [k for k, _ in itertools.groupby(letters)]
    lengths = st.integers(1, 50)
    segments, seen, held, clock = [], set(), [], 0
    for letter in letters:
        if segments:
            kind = draw(st.sampled_from(["abrupt", "linear", "sigmoid"]))
            if kind == "abrupt":
                segments.append(ABRUPT)
            else:
                segments.append(gradual(draw(lengths), kind))
                clock += segments[-1]["drift"]["length"]
        spec = {"ref": letter} if letter in seen else {"id": letter, "params": {"x": letter}}
        seen.add(letter)
        length = draw(lengths)
        segments.append(concept(spec, length))
        held.append((clock, clock + length, letter))
        clock += length
    return declared(*segments), held, clock


@given(world=worlds(), data=st.data())
def test_concept_at_is_pure(world, data):
    config, _, length = world
    one, other = Timeline(config), Timeline(config)
    asked = st.tuples(st.floats(0, length + 5), st.integers(0, 30), st.integers(0, 3))
    questions = data.draw(st.lists(asked, min_size=1, max_size=30))
    answers = [one.concept_at(*question) for question in questions]
    one.realised(0, 20)
    one.evaluation_concepts(questions[0][0])
    again = [one.concept_at(*question) for question in reversed(questions)]
    assert again[::-1] == answers == [other.concept_at(*question) for question in questions]


@given(
    world=worlds(), entity=st.integers(0, 1000), seed=st.integers(0, 100), at=st.floats(0, 0.999)
)
def test_outside_of_windows_there_is_no_mixture(world, entity, seed, at):
    config, held, _ = world
    timeline = Timeline(config)
    for index, (start, end, letter) in enumerate(held):
        value = start + at * (end - start)
        assert timeline.concept_at(value, entity, seed).id == letter
        assert timeline.dominant_at(value) == (index, timeline.concept_at(value, entity, seed))


@given(world=worlds(), entity=st.integers(0, 1000), seed=st.integers(0, 100))
def test_an_entity_crosses_a_window_once_at_most(world, entity, seed):
    config, held, _ = world
    timeline = Timeline(config)
    for (_, start, before), (end, _, after) in itertools.pairwise(held):
        met = [timeline.concept_at(v, entity, seed).id for v in range(start, end)]
        assert [k for k, _ in itertools.groupby(met)] in ([], [before], [after], [before, after])


@given(world=worlds())
def test_boundaries_are_sorted_and_say_what_dominates(world):
    config, held, length = world
    timeline = Timeline(config)
    positions = [b.position for b in timeline.boundaries]
    assert positions == sorted(positions)
    assert positions[0] == 0
    assert timeline.length == length
    for b in timeline.boundaries:
        if b.phase != "window_began":
            assert timeline.dominant_at(b.position) == (b.segment, b.concept)
    entered = [b.position for b in timeline.boundaries if b.phase != "window_began"]
    assert entered == [start for start, _, _ in held]
    assert [c.id for c in timeline.concepts] == list(dict.fromkeys(k for _, _, k in held))


@given(world=worlds(), seed=st.integers(0, 100))
def test_realised_counts_add_up(world, seed):
    config, _, length = world
    rows = Timeline(config).realised(seed, length)
    assert sum(sum(row.counts.values()) for row in rows) == length
    assert all(sum(row.counts.values()) == row.end - row.start for row in rows)


@given(world=worlds())
def test_the_declaration_survives_being_written_out(world):
    config, _, _ = world
    text = json.dumps(config.model_dump(mode="json", by_alias=True))
    assert TimelineConfig.model_validate_json(text, strict=True) == config


def test_the_digest_tells_worlds_apart():
    base = (concept(A, 10), gradual(5), concept(B, 10))
    twice = (concept(A, 10), gradual(5), concept(B, 10), ABRUPT, concept(A, 3))
    returned = (concept(A, 10), gradual(5), concept(B, 10), ABRUPT, concept({"ref": "A"}, 3))
    assert made(*twice).digest() == made(*returned).digest()
    assert made(concept(A, 10.0), gradual(5.0), concept(B, 10)).digest() == made(*base).digest()
    others = [
        made(concept(A, 11), gradual(5), concept(B, 10)),
        made(concept(A, 10), gradual(6), concept(B, 10)),
        made(concept(A, 10), gradual(5, "sigmoid"), concept(B, 10)),
        made(concept(A, 10), gradual(5), concept(B | {"id": "D"}, 10)),
        made(concept(A, 10), gradual(5), concept(C, 10)),
        made(concept(A, 10), gradual(5), concept(B)),
        made(*base, clock="version"),
        made(*base, inflight="abort"),
        made(*base, observability="flag"),
        made(*returned),
        made(*base),
    ]
    assert len({timeline.digest() for timeline in others}) == len(others)


# --- what is refused -----------------------------------------------------------------------------

REFUSED = {
    "begins with a concept": ((ABRUPT, concept(A, 5)), {}),
    "two concepts in a row": ((concept(A, 5), concept(B, 5)), {}),
    "two drifts in a row": ((concept(A, 5), gradual(5), gradual(5), concept(B, 5)), {}),
    "leads to a concept; add one": ((concept(A, 5), gradual(5)), {}),
    "length is missing": ((concept(A), ABRUPT, concept(B, 5)), {}),
    "no concept 'Z' is defined further up": (
        (concept(A, 5), ABRUPT, concept({"ref": "Z"}, 5)),
        {},
    ),
    "defined further up with other params": (
        (concept(A, 5), ABRUPT, concept(B | {"id": "A"}, 5)),
        {},
    ),
    "either id (with params) or ref": ((concept(A | {"ref": "B"}, 5),), {}),
    "remove params": (
        (concept(A, 5), ABRUPT, concept({"ref": "A", "params": {}}, 5)),
        {},
    ),
    "nothing changes: A and A": ((concept(A, 5), ABRUPT, concept({"ref": "A"}, 5)), {}),
    "nothing changes: A and D": ((concept(A, 5), gradual(5), concept(A | {"id": "D"}, 5)), {}),
    "nothing changes: from and to": ((concept(A, 5), incremental(0.0, 0.0, 5)), {}),
    "A has flip: 0.0; begin there": ((concept(A, 5), incremental(0.1, 0.2, 5)), {}),
    "but B differs": ((concept(A, 5), incremental(0.0, 0.2, 5), concept(B, 5)), {}),
    "with repeat the segments end with the drift": (
        (concept(A, 5), ABRUPT, concept(B, 5)),
        {"repeat": 2},
    ),
    "nothing changes: B and B": (
        (concept(B, 5), ABRUPT, concept(A, 5), ABRUPT, concept({"ref": "B"}, 5), ABRUPT),
        {"repeat": 2},
    ),
    "the clock 'version' counts": ((concept(A, 5.5),), {"clock": "version"}),
    "the clock 'started' counts": ((concept(A, 5), gradual(2.5), concept(B, 5)), {}),
    "no position is written": ((concept(A, 5) | {"at": 0},), {}),
    "a segment is either": ((concept(A, 5) | ABRUPT,), {}),
    "greater than 0": ((concept(A, 0),), {}),
    "letters, digits": ((concept({"id": "a/b"}, 5),), {}),
    "at least 1 item": ((), {}),
    "Extra inputs": ((concept(A, 5), ABRUPT | {"length": 5}, concept(B, 5)), {}),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_is_refused(message):
    segments, options = REFUSED[message]
    with pytest.raises(ValidationError) as caught:
        declared(*segments, **options)
    assert message in str(caught.value)
