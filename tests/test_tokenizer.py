"""Character tokenizers, and refusing texts that a tokenizer would lose."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sao_gym.errors import InputError
from sao_gym.tokenizer import character_tokenizer, check_symbols, decode, encode

SYMBOLS = "ab :\n!>=59\u00e9\u2603#"


class Lossy:
    """A tokenizer with an unknown token, as most have: it loses symbols without a word."""

    known = "abc"

    def __call__(self, text, **_):
        return {"input_ids": [self.known.find(c) + 1 for c in text]}

    def decode(self, ids, **_):
        return "".join("\ufffd" if i == 0 else self.known[i - 1] for i in ids)


class Lowering(Lossy):
    """It changes the text instead."""

    def __call__(self, text, **_):
        return super().__call__(text.lower())


class Joining(Lossy):
    """Says each symbol alone, but puts a space between two."""

    def decode(self, ids, **_):
        return " ".join(self.known[i - 1] for i in ids)


@pytest.fixture(scope="module")
def tokenizer():
    return character_tokenizer(SYMBOLS)


def test_ids_are_pad_eos_then_code_point_order(tokenizer):
    expected = {"<pad>": 0, "<eos>": 1}
    expected |= {c: i for i, c in enumerate(sorted(SYMBOLS), start=2)}
    assert tokenizer.get_vocab() == expected
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id) == (0, 1)
    assert len(tokenizer) == 2 + len(SYMBOLS)


def test_ids_depend_on_the_set_of_symbols_alone(tokenizer):
    assert character_tokenizer(SYMBOLS[::-1] * 2).get_vocab() == tokenizer.get_vocab()


@settings(max_examples=100, deadline=None)
@given(text=st.text(SYMBOLS, max_size=30))
def test_round_trip_one_token_per_symbol(text):
    tokenizer = character_tokenizer(SYMBOLS)
    ids = encode(tokenizer, text)
    assert ids == tuple(sorted(SYMBOLS).index(c) + 2 for c in text)
    assert decode(tokenizer, ids) == text


def test_saved_and_loaded_it_says_the_same(tokenizer, tmp_path):
    from transformers import AutoTokenizer

    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path, local_files_only=True)
    assert loaded.get_vocab() == tokenizer.get_vocab()
    assert (loaded.pad_token_id, loaded.eos_token_id, loaded.unk_token_id) == (0, 1, None)
    text = "a5: \n!\u2603"
    assert encode(loaded, text) == encode(tokenizer, text)
    assert decode(loaded, encode(loaded, text)) == text
    with pytest.raises(InputError, match="'Z'"):
        encode(loaded, "aZ")


def test_nothing_unknown_passes_even_without_encode(tokenizer):
    with pytest.raises(Exception, match="UNK"):
        tokenizer("aZ")


def test_unknown_symbols_are_named_once_each_in_order(tokenizer):
    with pytest.raises(InputError, match=r"no token for 'Z' '\?': add to `model.symbols`"):
        encode(tokenizer, "aZb?Z")


@pytest.mark.parametrize("text", ["a<eos>", "<pad>"])
def test_an_observation_cannot_forge_a_control_token(tokenizer, text):
    with pytest.raises(InputError, match="'<'"):
        encode(tokenizer, text)
    rich = character_tokenizer("a<>eospd")
    assert set(encode(rich, text)) & {0, 1} == set()
    assert decode(rich, encode(rich, text)) == text


def test_control_tokens_are_read_where_asked(tokenizer):
    assert encode(tokenizer, "a<eos>", control=True) == (*encode(tokenizer, "a"), 1)


def test_control_tokens_in_an_action_stay_visible(tokenizer):
    assert decode(tokenizer, (0, *encode(tokenizer, "a"), 1)) == "<pad>a<eos>"


def test_an_unknown_token_is_a_loss():
    with pytest.raises(InputError, match=r"no token for 'x' 'y'"):
        encode(Lossy(), "axby")
    assert encode(Lossy(), "abc") == (1, 2, 3)


def test_a_changed_text_is_a_loss():
    with pytest.raises(InputError, match="no token for 'B'"):
        encode(Lowering(), "aB")
    with pytest.raises(InputError, match="comes back as 'a b'"):
        encode(Joining(), "ab")


def test_composed_and_decomposed_unicode_count_as_one_text():
    class Composing(Lossy):
        def __call__(self, text, **_):
            return {"input_ids": [1] * bool(text)}

        def decode(self, ids, **_):
            return "\u00e9"

    assert encode(Composing(), "e\u0301") == (1,)


def test_check_symbols_names_everything_that_is_missing(tokenizer):
    check_symbols(tokenizer, [SYMBOLS, "", "a5:"])
    with pytest.raises(InputError, match="no token for 'Q' 'R' 'S':"):
        check_symbols(tokenizer, ["aQ", "bR", "SQ"])


def test_check_symbols_also_tries_whole_texts():
    with pytest.raises(InputError, match="comes back as 'a b'"):
        check_symbols(Joining(), ["ab"])


def test_no_symbols_is_an_error():
    with pytest.raises(InputError, match="at least one symbol"):
        character_tokenizer("")
