# SPDX-License-Identifier: Apache-2.0
"""Needle in a haystack: one fact, one question."""

from __future__ import annotations

from random import Random

from specprefill.quality.ruler import filler, places
from specprefill.quality.ruler.haystack import Haystack
from specprefill.quality.sample import Sample


def niah_single(draw: Random, haystack: Haystack, name: str) -> Sample:
    """Ask for the one access code in a chronicle."""
    (room,), (code,) = places.rooms(draw, 1), places.codes(draw, 1)
    needle = places.code_sentence(room, code)
    prompt = haystack.bury(
        draw, filler.sentence, [needle], f"What is the access code of the {room}?"
    )
    return Sample(
        name,
        "niah_single",
        prompt,
        (code,),
        "string_match",
        24,
        evidence=(needle,),
        length=haystack.length,
    )
