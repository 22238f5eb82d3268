# SPDX-License-Identifier: Apache-2.0
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from specprefill.text_stream import TextStream

TEXTS = [
    "Plain words, with  double spaces and\n\nlines.",
    "naïve café — “quotes” … ½",
    "日本語のテキストと中文字符和한국어",
    "emoji 😀👩‍👩‍👧🏳️‍🌈 at 🧪 the end 🤖",
    "\tcode(x)  # ünïcode\r\n    return {'a': 1}",
    " leading space",
]


def pieces(tokenizer, text, stops=()):
    stream = TextStream(tokenizer, stops)
    out = [stream.push(i) for i in tokenizer(text, add_special_tokens=False).input_ids]
    return [*out, stream.finish()], stream


@pytest.mark.parametrize("text", TEXTS)
def test_the_pieces_joined_are_the_text(tokenizer, text):
    out, _ = pieces(tokenizer, text)
    assert "".join(out) == text
    assert not any("\ufffd" in piece for piece in out)
    assert len([piece for piece in out if piece]) > 1


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=60))
def test_any_text_survives(tokenizer, text):
    ids = tokenizer(text, add_special_tokens=False).input_ids
    decoded = tokenizer.decode(ids, skip_special_tokens=True)
    assume("\ufffd" not in decoded)  # this vocabulary lacks some bytes
    out, _ = pieces(tokenizer, text)
    assert "".join(out) == decoded


def test_an_unfinished_character_is_left_out(tokenizer):
    ids = tokenizer("a😀", add_special_tokens=False).input_ids
    stream = TextStream(tokenizer)
    assert "".join(stream.push(i) for i in ids[:-1]) + stream.finish() == "a"


def test_special_tokens_are_not_text(tokenizer):
    out, _ = pieces(tokenizer, "a<|im_end|>b")
    assert "".join(out) == "ab"


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("length", [1, 2, 5])
def test_no_part_of_a_stop_string_appears(tokenizer, text, length):
    """Stop strings that begin and end anywhere, inside tokens as well."""
    for start in range(len(text) - length):
        stop = text[start : start + length]
        out, stream = pieces(tokenizer, text, (stop,))
        assert "".join(out) == text[: text.find(stop)], stop
        assert stream.stopped


def test_text_that_only_begins_a_stop_string_is_given_back(tokenizer):
    out, stream = pieces(tokenizer, "one two thr", ("three",))
    assert "".join(out) == "one two thr"
    assert not stream.stopped


def test_the_earliest_of_several_stop_strings_wins(tokenizer):
    out, _ = pieces(tokenizer, "alpha beta gamma", ("gamma", "", "ta", "beta g"))
    assert "".join(out) == "alpha be"
