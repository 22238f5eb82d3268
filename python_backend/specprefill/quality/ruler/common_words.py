# SPDX-License-Identifier: Apache-2.0
"""Common words: a few words come many times in a list, all others rarely (RULER's CWE)."""

from __future__ import annotations

from random import Random

from specprefill.quality.ruler.haystack import Haystack
from specprefill.quality.ruler.words import WORDS
from specprefill.quality.sample import Sample

_COMMON = 1
_RARE = 30
# How often a common word comes for one time of each other word.
_RATIO = 20


def common_words(draw: Random, haystack: Haystack, name: str) -> Sample:
    """Ask for the most common word of a list; every part of the prompt matters."""
    words = draw.sample(WORDS, _COMMON + _RARE)
    common, rare = words[:_COMMON], words[_COMMON:]
    bag = rare + common * _RATIO

    def next_word(draw: Random, index: int) -> str:
        # Whole bags one after the other keep the ratio at every length.
        if index % len(bag) == 0:
            draw.shuffle(bag)
        return bag[index % len(bag)]

    prompt = haystack.bury(
        draw,
        next_word,
        [],
        "Question: Which word comes most often in the list?\nAnswer: It is the word",
        head="List of words: ",
    )
    return Sample(
        name,
        "common_words",
        prompt,
        tuple(common),
        "string_match",
        8,
        chat=False,
        length=haystack.length,
    )
