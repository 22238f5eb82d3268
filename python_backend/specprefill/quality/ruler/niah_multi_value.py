# SPDX-License-Identifier: Apache-2.0
"""Needle in a haystack: one key with several values, all of them asked for."""

from __future__ import annotations

from random import Random

from specprefill.quality.ruler import filler, places
from specprefill.quality.ruler.haystack import Haystack
from specprefill.quality.sample import Sample

_VALUES = 3


def niah_multi_value(draw: Random, haystack: Haystack, name: str) -> Sample:
    """Ask for the three access codes of one room."""
    (room,), codes = places.rooms(draw, 1), places.codes(draw, _VALUES)
    needles = [f"One access code of the {room} is {code}." for code in codes]
    question = f"What are all {_VALUES} access codes of the {room}? List them."
    prompt = haystack.bury(draw, filler.sentence, needles, question)
    return Sample(
        name,
        "niah_multi_value",
        prompt,
        tuple(codes),
        "string_match",
        48,
        evidence=tuple(needles),
        length=haystack.length,
    )
