# SPDX-License-Identifier: Apache-2.0
"""Needle in a haystack: several facts, all of them asked for at once."""

from __future__ import annotations

from random import Random

from specprefill.quality.ruler import filler, places
from specprefill.quality.ruler.haystack import Haystack
from specprefill.quality.sample import Sample

_QUERIES = 2


def niah_multi_query(draw: Random, haystack: Haystack, name: str) -> Sample:
    """Ask for two rooms' access codes in one question."""
    rooms, codes = places.rooms(draw, _QUERIES), places.codes(draw, _QUERIES)
    needles = [places.code_sentence(room, code) for room, code in zip(rooms, codes, strict=True)]
    question = f"What are the access codes of the {rooms[0]} and of the {rooms[1]}?"
    prompt = haystack.bury(draw, filler.sentence, needles, question)
    return Sample(
        name,
        "niah_multi_query",
        prompt,
        tuple(codes),
        "string_match",
        48,
        evidence=tuple(needles),
        length=haystack.length,
    )
