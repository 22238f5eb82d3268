# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from specprefill.borders import token_borders
from specprefill.tokenizer import load_tokenizer, tokenise


def by_character(text):
    places = np.arange(len(text))
    return "".join(map(str, token_borders(text, np.stack((places, places + 1), axis=1))))


@pytest.mark.parametrize(
    ("text", "borders"),
    [
        ("Hi. Yo", "200010"),
        ("Hi.Yo", "20000"),
        ("3.14 a", "200000"),
        ("a\nb", "202"),
        ("a\r\nb", "2002"),
        ("a\n\nb", "2022"),
        ("a.\n  b", "200200"),
        ("a\u2028b", "202"),
        ('"Go!" He', "20000010"),
        ("a?  b", "20001"),
        ("a. 'b", "20010"),
        ("好。好", "201"),
        ("好！？好", "2001"),  # noqa: RUF001
        ("「好。」好", "20001"),
        ("好。 好", "2001"),
        ("क। ख", "2001"),
        ("ما؟ لا", "200010"),
        ("…", "2"),
        (". . .", "20101"),
        ("   ", "200"),
        ("\n", "2"),
        ("\n\n", "22"),
        ("😀. 😀", "2001"),
        ("", ""),
    ],
)
def test_characters(text, borders):
    assert by_character(text) == borders


def test_tokens(smollm2):
    tokenizer = load_tokenizer(smollm2)
    text = "One two. Three!\n\nFour 😀. 😀 five"
    ids, offsets = tokenise(tokenizer, text, True)
    borders = token_borders(text, offsets)
    begins = [text[start:end] for (start, end), b in zip(offsets, borders, strict=True) if b]
    assert begins == ["One", " Three", "\n", "Four", " 😀"]
    assert borders[borders > 0].tolist() == [2, 1, 2, 2, 1]
    assert borders.dtype == np.uint8
    assert borders.shape == ids.shape


def test_a_token_that_holds_its_own_line_break():
    text = "ab.\nCd. Ef"
    offsets = np.array([(0, 3), (3, 6), (6, 7), (7, 10)])
    assert token_borders(text, offsets).tolist() == [2, 2, 0, 1]


def test_tokens_without_text_begin_nothing():
    assert token_borders("a b", np.array([(0, 0), (0, 1), (1, 3), (3, 3)])).tolist() == [0, 2, 0, 0]
