# SPDX-License-Identifier: Apache-2.0
"""Variable tracking: follow a value through assignments (RULER's multi-hop class)."""

from __future__ import annotations

from itertools import pairwise
from random import Random

from specprefill.quality.ruler import filler, places
from specprefill.quality.ruler.haystack import Haystack
from specprefill.quality.sample import Sample

_HOPS = 2
_LETTERS = "ABCDEFGHKLMNPRST"


def variable_tracking(draw: Random, haystack: Haystack, name: str) -> Sample:
    """Ask which variables end up with a given value."""
    letters = draw.sample(
        [a + b for a in "ABCDEFGHKLMNPRST" for b in "ABCDEFGHKLMNPRST"], _HOPS + 1
    )
    (value,) = places.codes(draw, 1)
    needles = [f"VAR {letters[0]} = {value}."]
    needles += [f"VAR {later} = VAR {earlier}." for earlier, later in pairwise(letters)]
    question = f"Which variables have the value {value}? List all {_HOPS + 1} of them."
    prompt = haystack.bury(draw, filler.sentence, needles, question)
    return Sample(
        name,
        "variable_tracking",
        prompt,
        tuple(letters),
        "string_match",
        40,
        evidence=tuple(needles),
        length=haystack.length,
    )
