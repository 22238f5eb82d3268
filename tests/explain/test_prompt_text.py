# SPDX-License-Identifier: Apache-2.0
"""The text of a prompt, cut at token borders, is exactly the prompt."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from specprefill.explain.prompt_text import find_text

AWKWARD = "naïve 😀 日本語  x\r\n\ty 🧑‍🚀\x00 <b>&amp;</b> end "


def parts(found):
    return [found.part(i, i + 1) for i in range(len(found.cuts) - 1)]


@settings(max_examples=60, deadline=None)
@given(text=st.text(max_size=60), known=st.booleans())
def test_the_parts_of_all_tokens_are_the_text(tokenizer, text, known):
    ids = np.asarray(tokenizer(text).input_ids, dtype=np.int32)
    # The model has no tokens for a few bytes: such a character is lost, to everyone.
    assume(known or tokenizer.decode(ids) == text)
    assume(len(ids) or not text)
    found = find_text(tokenizer, ids, text if known else None)
    assert found.text == text
    assert found.exact
    assert "".join(parts(found)) == text
    assert len(found.cuts) == len(ids) + 1


@pytest.mark.parametrize(("source", "exact"), [(None, True), ("", True), ("\x16", False)])
def test_no_tokens_have_no_text(tokenizer, source, exact):
    found = find_text(tokenizer, np.zeros(0, dtype=np.int32), source)
    assert (found.text, found.cuts.tolist(), found.exact) == ("", [0], exact)


def test_a_split_character_belongs_to_the_token_where_it_begins(tokenizer):
    ids = np.asarray(tokenizer(AWKWARD).input_ids, dtype=np.int32)
    found = find_text(tokenizer, ids, AWKWARD)
    offsets = tokenizer(AWKWARD, return_offsets_mapping=True).offset_mapping
    first = next(i for i, (s, e) in enumerate(offsets) if s <= AWKWARD.index("😀") < e)
    assert "😀" in parts(found)[first]
    assert parts(found)[first + 1] == ""  # its second half


@pytest.mark.parametrize("text", [AWKWARD, "a<|im_end|>b 日本語 😀 <|im_start|>"])
def test_ids_that_no_text_gives_are_decoded_one_by_one(tokenizer, text):
    """A control token that a user only wrote is tokenised as plain characters."""
    ids = [i for char in text for i in tokenizer(char, split_special_tokens=True).input_ids]
    found = find_text(tokenizer, np.asarray(ids, dtype=np.int32))
    assert found.text == text
    assert found.exact
    assert len(found.cuts) == len(ids) + 1
    assert (np.diff(found.cuts) >= 0).all()


def test_a_prompt_that_ends_inside_a_character_still_has_a_text(tokenizer):
    ids = tokenizer("word 😀").input_ids[:-1]
    found = find_text(tokenizer, np.asarray(ids, dtype=np.int32))
    assert found.text.startswith("word")
    assert found.cuts[-1] == len(found.text)
