# SPDX-License-Identifier: Apache-2.0
"""Needle in a haystack: several facts of one kind, one of them asked for."""

from __future__ import annotations

from random import Random

from specprefill.quality.ruler import filler, places
from specprefill.quality.ruler.haystack import Haystack
from specprefill.quality.sample import Sample

_KEYS = 6


def niah_multi_key(draw: Random, haystack: Haystack, name: str) -> Sample:
    """Ask for one of six access codes."""
    needles = [
        places.code_sentence(room, code)
        for room, code in zip(places.rooms(draw, _KEYS), places.codes(draw, _KEYS), strict=True)
    ]
    asked = draw.choice(needles)
    room = asked.removeprefix("The access code of the ").partition(" is ")[0]
    prompt = haystack.bury(
        draw, filler.sentence, needles, f"What is the access code of the {room}?"
    )
    return Sample(
        name,
        "niah_multi_key",
        prompt,
        (asked.rstrip(".").rpartition(" ")[2],),
        "string_match",
        24,
        evidence=(asked,),
        length=haystack.length,
    )
