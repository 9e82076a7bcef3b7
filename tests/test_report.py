"""The report: one safe file that says what the log says; figures; the comparison of arms."""

from __future__ import annotations

import json
import math
import re
import struct
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sao_gym.errors import InputError
from sao_gym.metrics import Curve, collect
from sao_gym.outputs import finish_run
from sao_gym.report import write_report
from sao_gym.report.build import series_of
from sao_gym.report.series import thin
from sao_gym.report.trajectories import choose, read_trajectories
from sao_gym.report.viewer import render_viewer
from sao_gym.summary import summarise

VOID = {"meta", "br", "link", "input", "img"}


class Page(HTMLParser):
    """Checks nesting while it collects tags, attributes and text."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.words = [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        if not self.open or self.open[-1] not in ("script", "style"):
            self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


def spell(ids):
    return "".join(f"<{i}>" for i in ids)


@pytest.fixture(scope="module")
def drifting_dir(tmp_path_factory, drifting):
    from sao_gym.record import open_run

    directory = tmp_path_factory.mktemp("report") / "run"
    scenario = {
        "name": "scripted & more",
        "summary": "<b>bold</b>",
        "seed": 3,
        "learner": {"name": "sao"},
        "timeline": {"clock": "started"},
        "note": "</script><script>alert(1)</script>",
    }
    with open_run(directory, scenario) as recorder:
        for seconds, event in drifting.events:
            recorder.write(seconds, event)
    finish_run(directory)
    return directory


@pytest.fixture(scope="module")
def html(drifting_dir):
    return write_report(drifting_dir, decode=spell).html.read_text(encoding="utf-8")


def test_the_page_is_well_formed_small_and_needs_nothing_else(html):
    page = Page(html)
    assert len(html) < 1_000_000
    assert "http://" not in html
    assert "https://" not in html
    assert not re.search(r"""(?:src|href|url|@import)\s*[=(]\s*["']?\s*(?:\w+:)?//""", html)
    assert {"link", "img", "iframe", "object", "embed"}.isdisjoint(tag for tag, _ in page.tags)
    for tag, attrs in page.tags:
        assert "src" not in attrs, tag
        assert not attrs.get("href", "#").startswith(("/", "http")), tag
        assert not any(name.startswith("on") for name in attrs), tag
    assert ("meta", {"charset": "utf-8"}) in page.tags
    assert any(a.get("name") == "viewport" for tag, a in page.tags if tag == "meta")


def test_nothing_from_the_run_becomes_markup(html):
    page = Page(html)
    scripts = [attrs for tag, attrs in page.tags if tag == "script"]
    assert scripts == [{"type": "application/json", "id": "series"}, {}]
    assert "alert('gone')" in page.text  # the failure's words are shown as words
    assert "<b>bold</b>" in page.text
    assert "</script><script>alert(1)</script>" in page.text
    assert "a<0>" in page.text  # an observation
    assert "<10>" in page.text  # a decoded action token
    assert ("10", {}) not in page.tags


def test_a_hostile_concept_name_cannot_leave_the_data_block(record_run, script):
    name = "</script><img src=x onerror=alert(1)>"
    script.change(name)
    script.evaluate(**{name: 0.5})
    script.rollout(1.0)
    script.evaluate(**{name: 0.7})
    script.change('"><x>')
    script.rollout(1.0)
    text = write_report(record_run(script)).html.read_text(encoding="utf-8")
    tags = [tag for tag, _ in Page(text).tags]
    assert "img" not in tags
    assert "x" not in tags
    block = re.search(r'id="series">(.*?)</script>', text, re.DOTALL)
    assert not set(block.group(1)) & set("<>&")
    assert json.loads(block.group(1))["series"][0]["name"] == f"on {name}"


def test_both_charts_are_valid_svg_inside_their_frame(html):
    charts = re.findall(r"<svg class=\"chart.*?</svg>", html, re.DOTALL)
    assert len(charts) == 2
    for chart in charts:
        root = ET.fromstring(chart)
        _, _, width, height = map(float, root.attrib["viewBox"].split())
        for path in root.iter("path"):
            if path.attrib["class"].startswith("bracket"):
                continue  # drawn with relative moves
            numbers = [float(n) for n in re.findall(r"-?\d+\.?\d*", path.attrib["d"])]
            assert all(math.isfinite(n) and -1 <= n <= max(width, height) for n in numbers)
        for rect in root.iter("rect"):
            assert float(rect.attrib["width"]) >= 0
        assert "drift clock: started" in "".join(root.itertext())


def test_the_chart_places_values_where_the_axis_says(html):
    chart = ET.fromstring(re.search(r"<svg class=\"chart wide.*?</svg>", html, re.DOTALL)[0])
    left, right = float(chart.attrib["data-left"]), float(chart.attrib["data-right"])
    ticks = {e.text: e.attrib for e in chart.iter("text") if e.attrib["class"] == "tick middle"}
    assert float(ticks["0"]["x"]) == left
    assert float(ticks["120"]["x"]) == right
    marks = {float(e.attrib["x1"]) for e in chart.iter("line") if e.attrib["class"] == "mark"}
    assert list(marks) == pytest.approx([left + (right - left) * 40 / 120], abs=0.1)
    (window,) = {e.attrib["x"] for e in chart.iter("rect") if e.get("class") == "window"}
    assert float(window) == pytest.approx(left + (right - left) * 80 / 120, abs=0.1)
    scores = {
        e.text: float(e.attrib["y"]) - 4 for e in chart.iter("text") if "end" in e.attrib["class"]
    }
    thick = next(e for e in chart.iter("path") if "c1 thick" in e.attrib["class"])
    x, y = map(float, re.match(r"M([\d.]+) ([\d.]+)", thick.attrib["d"]).groups())
    # concept B, first look after the change at 40: 41 had started, score 0.2
    assert x == pytest.approx(left + (right - left) * 41 / 120, abs=0.1)
    assert y == pytest.approx(scores["0.0"] + 0.2 * (scores["1.0"] - scores["0.0"]), abs=0.3)


def test_the_readout_data_are_the_evaluations(html, drifting):
    block = re.search(r'id="series">(.*?)</script>', html, re.DOTALL)
    lines = {line["name"]: line for line in json.loads(block.group(1))["series"]}
    said = [e for _, e in drifting.events if type(e).__name__ == "Evaluated" and e.concept == "B"]
    assert lines["on B"]["x"] == [e.started for e in said]
    assert lines["on B"]["y"] == pytest.approx([e.score for e in said], abs=1e-4)
    assert lines["masked"]["percent"] is True


def test_the_page_tells_what_the_summary_tells(html, drifting):
    text = Page(html).text
    for words in ("A to B", "80-90", "Clock: started", "run ended", "stale", "environment"):
        assert words in text
    assert "on A on B on C" in text  # the memory matrix
    assert "world_sha256" in text
    assert f"{drifting.started}" in text


def test_the_report_can_be_made_again_and_is_the_same(drifting_dir, html):
    png = (drifting_dir / "adaptation.png").read_bytes()
    paths = write_report(drifting_dir, decode=spell)
    assert paths.html.read_text(encoding="utf-8") == html
    assert paths.png.read_bytes() == png


def test_the_png_has_the_size_of_a_readme_figure(drifting_dir, html):
    data = (drifting_dir / "adaptation.png").read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    assert (width, height) == (1664, 1184)


def test_a_cut_off_run_still_gets_a_report(record_run, drifting):
    directory = record_run(drifting)
    path = directory / "events.jsonl"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    text = Page(write_report(directory).html.read_text(encoding="utf-8")).text
    assert "cut off" in text
    assert "incomplete" in text


def test_a_run_of_nothing_still_gets_a_report(record_run, script):
    script.change("A")
    script.end()
    text = Page(write_report(record_run(script)).html.read_text(encoding="utf-8")).text
    assert "The world did not change." in text


def test_a_directory_without_a_run_is_refused(tmp_path):
    with pytest.raises(InputError):
        write_report(tmp_path)


# Series


@given(st.lists(st.floats(0, 1), min_size=1, max_size=300), st.integers(1, 40))
def test_thinning_keeps_order_ends_and_peaks(ys, points):
    xs = tuple(float(k // 2) for k in range(len(ys)))  # every x twice
    small = thin(Curve(xs, tuple(ys)), max, points)
    assert len(small.xs) <= max(1, points)
    assert list(small.xs) == sorted(set(small.xs))
    assert small.xs[-1] == xs[-1]
    assert max(small.ys) == max(ys)


def test_only_the_concept_that_holds_is_drawn_thick(drifting):
    series = series_of(collect(drifting.records()), summarise(drifting.records()))
    spans = {name: [(c.xs[0], c.xs[-1]) for c in series.held(name)] for name in "ABC"}
    ((a0, a1),), ((b0, b1),), ((c0, c1),) = spans["A"], spans["B"], spans["C"]
    assert (a0, b1) >= (0, 40)
    assert a1 <= 40 <= b0
    assert b1 <= 90  # B is still drawn while it is being left
    assert 80 <= c0 < 90
    assert c1 == 118  # the last look


def test_updates_after_the_last_start_keep_their_largest_lag(script):
    script.change("A")
    first, second = script.rollout(0.0, [(0, 1)]), script.rollout(0.0, [(0, 1)])
    script.update([first])
    script.update([second])  # lag 1, as many started
    third = script.rollout(0.0, [(2, 1)])
    fourth = script.rollout(0.0, [(0, 1)])
    script.update([fourth])  # lag 2
    script.update([third])  # lag 1
    series = series_of(collect(script.records()), summarise(script.records()))
    assert series.lag_max == Curve((2, 4), (1.0, 2.0))
    assert series.lag_mean == Curve((2, 4), (0.5, 1.5))


# Trajectories


def test_sampled_rollouts_lie_around_every_change_and_hold_all_kinds(drifting):
    facts = collect(drifting.records())
    shown = choose(facts)
    assert {17, 60} <= set(shown)  # failed, dropped
    assert len(shown) == len(set(shown)) <= 50
    for begin, end in ((0, 40), (40, 80), (80, 120)):
        assert len([r for r in shown if begin <= r < end]) >= 4
    assert 40 in shown  # the first after a change
    assert shown == choose(facts)


def test_a_trajectory_is_read_back_as_it_happened(drifting):
    facts = collect(drifting.records())
    shown = {item.rollout: item for item in read_trajectories(drifting.records(), facts, spell)}
    first = shown[40]
    assert (first.prompt, first.concept, first.reward) == ("a<40>", "B", 0.0)
    assert [[piece.text for piece in turn.pieces] for turn in first.turns] == [
        ["<10>"],
        ["<10>", "<11>"],
    ]
    assert first.turns[0].answer == "!b"
    assert first.fate == "trained"
    assert shown[17].fate == "failed"
    assert shown[17].reward is None
    assert (shown[60].fate, shown[60].reason) == ("dropped", "stale")


def test_without_a_decoder_the_ids_are_shown(drifting):
    facts = collect(drifting.records())
    shown = read_trajectories(drifting.records(), facts, None)
    assert shown[0].turns[1].pieces[1].text.strip() == "11"


def test_tokens_are_coloured_by_their_age_in_training(script):
    script.change("A")
    for _ in range(4):
        script.update([script.rollout(0.0, [(script.version, 1)])])
    old = script.rollout(1.0, [(0, 1), (4, 1)])
    script.update([old])  # learner version 4: ages 4 and 0
    facts = collect(script.records())
    page = render_viewer(
        [x for x in read_trajectories(script.records(), facts, spell) if x.rollout == old]
    )
    tokens = re.findall(r'class="tok (\w+)" title="([^"]*)"', page)
    assert [style for style, _ in tokens] == ["l2", "l0"]
    assert tokens[0][1] == "version 0, 4 versions old in training, probability 0.607"
    assert "lag 0 to 4" in page


def test_a_rollout_that_was_not_trained_on_has_no_age(script):
    script.change("A")
    gone = script.rollout(1.0)
    script.drop(gone)
    facts = collect(script.records())
    page = render_viewer(read_trajectories(script.records(), facts, spell))
    assert re.findall(r'class="tok (\w+)" title', page) == ["none"]
    assert "dropped: stale" in page


def test_a_long_text_is_clipped_and_the_page_stays_small(script):
    script.change("A")
    for _ in range(60):
        rollout = script.start()
        for _ in range(3):
            script.turn(rollout, [(0, 50)], observation="x" * 50_000, answer="y" * 50_000)
        script.finish(rollout)
    facts = collect(script.records())
    page = render_viewer(read_trajectories(script.records(), facts, lambda ids: "word " * len(ids)))
    assert len(page) < 500_000
    assert "46,000 more characters" in page
    assert re.search(r"\d+ more do not fit on this page", page)


def test_long_actions_are_cut_by_version_and_lose_no_token(script):
    script.change("A")
    script.update([script.rollout(0.0)])
    long = script.rollout(1.0, [(0, 70), (1, 30)])
    facts = collect(script.records())
    (item,) = [x for x in read_trajectories(script.records(), facts, spell) if x.rollout == long]
    pieces = item.turns[0].pieces
    assert [(p.version, p.tokens) for p in pieces] == [(0, 70), (1, 30)]
    assert "".join(p.text for p in pieces) == spell(range(10, 110))
    assert pieces[0].logprob == pytest.approx(-35.0)
