"""YAML is read with the place of every key, strictly, and written so that it reads back equal."""

from __future__ import annotations

import math

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from sao_gym.errors import InputError
from sao_gym.yaml_source import dump, parse


def data(text):
    return parse(text, name="f.yaml").data


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("1.0e-3", 0.001),
        ("1_000", 1000),
        ("-7", -7),
        ("0x1f", 31),
        ("0o17", 15),
        ("007", 7),
        (".5", 0.5),
        ("-.inf", -math.inf),
        ("true", True),
        ("~", None),
        ("", None),
        ("yes", "yes"),
        ("on", "on"),
        ("1:30", "1:30"),
        ("2026-01-02", "2026-01-02"),
        ("1.2.3", "1.2.3"),
        ("1_", "1_"),
        ("'1'", "1"),
        ("e5", "e5"),
        ("٣", "٣"),
    ],
)
def test_scalars(text, value):
    read = data(f"k: {text}")["k"]
    assert read == value
    assert type(read) is type(value)


def test_not_a_number():
    assert math.isnan(data("k: .nan")["k"])


def test_places_of_keys_and_items():
    source = parse("a: 1\nb:\n  c: [x,\n      y]\n  d:\n  - e: 2\n", name="f.yaml")
    assert source.origins == {
        (): "f.yaml:1",
        ("a",): "f.yaml:1",
        ("b",): "f.yaml:2",
        ("b", "c"): "f.yaml:3",
        ("b", "c", 0): "f.yaml:3",
        ("b", "c", 1): "f.yaml:4",
        ("b", "d"): "f.yaml:5",
        ("b", "d", 0): "f.yaml:6",
        ("b", "d", 0, "e"): "f.yaml:6",
    }
    assert str(source.error(("b", "d", 0, "new"), "wrong")) == "f.yaml:6: b.d.0.new: wrong"


MERGES = """\
base: &base {x: 1, y: 2}
other: &other {x: 7, z: 8}
one: {<<: *base, y: 3}
two: {y: 3, <<: [*base, *other]}
again: *base
"""


def test_anchors_and_merges():
    read = data(MERGES)
    assert read["one"] == {"x": 1, "y": 3}
    assert read["two"] == {"x": 1, "y": 3, "z": 8}
    assert read["again"] == {"x": 1, "y": 2}
    assert read["again"] is not read["base"]
    reference = yaml.safe_load(MERGES)
    assert read == reference


def test_what_is_merged_in_stands_where_it_was_written():
    origins = parse(MERGES, name="f.yaml").origins
    assert origins[("one", "x")] == "f.yaml:1"
    assert origins[("one", "y")] == "f.yaml:3"
    assert origins[("two", "z")] == "f.yaml:2"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a:\n  b: 1\n  b: 2\n", "f.yaml:3: a.b: key written twice, first in line 2; keep one"),
        (
            "a: [1\nb: 2\n",
            (
                "f.yaml:2: invalid YAML: while parsing a flow sequence expected ',' or ']', "
                "but got ':'"
            ),
        ),
        ("a: 1\n\tb: 2\n", "f.yaml:2: invalid YAML"),
        ("a: !!python/name:os.system ''\n", "f.yaml:1: invalid YAML: the tag"),
        ("a: 1\nb: !!set {x}\n", "f.yaml:2: invalid YAML: the tag"),
        ("a: &a [1, *a]\n", "f.yaml:1: invalid YAML: an anchor holds itself"),
        ("a: 1\nb: &b\n  <<: *b\n", "f.yaml:2: invalid YAML: an anchor holds itself"),
        ("a: 1\nb: {<<: 3}\n", "f.yaml:2: invalid YAML: << merges a mapping"),
        ("a: 1\nb: *nowhere\n", "f.yaml:2: invalid YAML: found undefined alias 'nowhere'"),
        ("a: 1\n? [x]\n: 2\n", "f.yaml:2: invalid YAML: a key is text"),
        ("a: 1\nb: '\x01'\n", "f.yaml:2: invalid YAML: the character '\\x01' is not allowed"),
        ("a: 1\n---\nb: 2\n", "f.yaml:2: invalid YAML: expected a single document"),
    ],
)
def test_what_is_refused(text, message):
    with pytest.raises(InputError) as caught:
        data(text)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


keys = st.text(min_size=1, max_size=6)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(max_size=12),
    st.sampled_from(
        [
            "1e-3",
            "yes",
            "null",
            "~",
            "1_000",
            "0o7",
            "1:30",
            "<<",
            ".inf",
            "",
            "- a",
            "\x85",
            "a\u2028b",
        ]
    ),
)
trees = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3)
)


@settings(max_examples=50, deadline=None)
@given(tree=st.dictionaries(keys, trees, max_size=4))
def test_what_is_written_reads_back_equal(tree):
    assert data(dump(tree)) == tree


@given(text=st.text(max_size=12))
def test_other_readers_find_text_to_be_text(text):
    assert yaml.safe_load(dump({"k": text})) == {"k": text}


# --- changes -------------------------------------------------------------------------------------

BASE = "seed: 0\noff: null\nlist:\n- {a: 1}\n- {a: 2}\n"


@pytest.mark.parametrize(
    ("option", "path", "value"),
    [
        ("seed=3", ("seed",), 3),
        ("seed=", ("seed",), None),
        ("list.1.a=[1, x]", ("list", 1, "a"), [1, "x"]),
        ("list.0={b: 1e2}", ("list", 0), {"b": 100.0}),
        ("off.every=5", ("off", "every"), 5),
        ("new.deep.key=a=b", ("new", "deep", "key"), "a=b"),
        ("new.0=1", ("new", "0"), 1),
    ],
)
def test_an_override_changes_one_place(option, path, value):
    source = parse(BASE, name="f.yaml")
    changed = source.overridden(option)
    assert changed.get(path) == value
    assert changed.origin(path) == f"--set {option}"
    assert changed.origin((*path, "inside")) == f"--set {option}"
    assert source.data == data(BASE)
    assert changed.origin(("list", 0, "x")) in ("f.yaml:4", f"--set {option}")


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("seed", "--set seed: not an assignment; write --set path.to.key=value"),
        ("=3", "--set =3: not an assignment; write --set path.to.key=value"),
        ("a..b=3", "--set a..b=3: not an assignment; write --set path.to.key=value"),
        ("seed.x=3", "--set seed.x=3: seed.x: seed is 0, which holds no keys"),
        ("list.2.a=3", "--set list.2.a=3: list.2: list is a list; its items are 0 to 1"),
        ("list.a=3", "--set list.a=3: list.a: list is a list; its items are 0 to 1"),
        ("list.-1=3", "--set list.-1=3: list.-1: list is a list; its items are 0 to 1"),
    ],
)
def test_an_override_that_leads_nowhere(option, message):
    with pytest.raises(InputError) as caught:
        parse(BASE, name="f.yaml").overridden(option)
    assert str(caught.value) == message


def test_an_error_about_a_section_names_the_option_inside_of_it():
    source = parse(BASE, name="f.yaml").overridden("list.1.a=3")
    error = source.error(("list", 1), "wrong")
    assert str(error) == "f.yaml:5 (with --set list.1.a=3): list.1: wrong"


def test_a_copy_remembers_where_it_was_written():
    copied = parse(BASE, name="f.yaml").copied(("list", 1), ("new",))
    assert copied.get(("new",)) == {"a": 2}
    assert copied.origin(("new",)) == copied.origin(("new", "a")) == "f.yaml:5"
    deep = parse("a:\n  b:\n    c: 1\n", name="f.yaml").copied(("a",), ("new",))
    assert deep.origin(("new", "b", "c")) == "f.yaml:3"


def test_what_is_written_holds_no_aliases():
    shared = {"x": 1}
    assert dump({"a": [shared], "b": [shared]}) == "a:\n- {x: 1}\nb:\n- {x: 1}\n"


def test_an_index_is_counted_from_the_front():
    source = parse(BASE, name="f.yaml")
    assert source.get(("list", -1)) is None
    assert source.get(("list", 1, "a")) == 2
    assert source.get(("list", 2), "none") == "none"
