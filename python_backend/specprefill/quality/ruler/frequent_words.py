# SPDX-License-Identifier: Apache-2.0
"""Frequent words: made-up words with falling frequencies (RULER's FWE)."""

from __future__ import annotations

from random import Random

from specprefill.quality.ruler.haystack import Haystack
from specprefill.quality.sample import Sample

_SYLLABLES = ("ba", "ko", "mi", "ru", "te", "zo", "la", "fi", "nu", "pe", "sa", "vo")
_VOCABULARY = 40
# Zipf's exponent, as in RULER.
_EXPONENT = 2.0


def frequent_words(draw: Random, haystack: Haystack, name: str) -> Sample:
    """Ask for the most frequent made-up word of a text; every part of the prompt matters."""
    made_up = [a + b + c for a in _SYLLABLES for b in _SYLLABLES for c in _SYLLABLES]
    words = draw.sample(made_up, _VOCABULARY)
    weights = [1 / rank**_EXPONENT for rank in range(1, _VOCABULARY + 1)]
    prompt = haystack.bury(
        draw,
        lambda draw, _: draw.choices(words, weights)[0],
        [],
        "Question: Which word comes most often in the coded text?\nAnswer: It is the word",
        head="Coded text: ",
    )
    return Sample(
        name,
        "frequent_words",
        prompt,
        (words[0],),
        "string_match",
        8,
        chat=False,
        length=haystack.length,
    )
