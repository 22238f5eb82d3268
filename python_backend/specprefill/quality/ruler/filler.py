# SPDX-License-Identifier: Apache-2.0
"""Sentences that hold no answer: a town's chronicle."""

from __future__ import annotations

from random import Random

_PLACES = ("harbour", "tram depot", "library", "bakery", "museum", "garden", "railway station")
_PEOPLE = (
    "the warden",
    "a visitor",
    "the gardener",
    "the night porter",
    "an apprentice",
    "a nurse",
)
_THINGS = (
    "a leaking gutter",
    "a lost umbrella",
    "an early delivery",
    "a broken lamp",
    "a stray cat",
    "a missing ladder",
    "fresh paint on the gate",
)
_WEATHER = ("a light drizzle", "thick fog", "clear skies", "a cold wind", "sudden hail", "snow")
_FORMS = (
    "On the {ordinal} day, {person} reported {thing} at the {place}.",
    "The {place} counted {number} guests under {weather}.",
    "After {weather} the {place} closed {minutes} minutes early, and {person} noted {thing}.",
    "Before noon {person} carried {number} boxes from the {place} to the {other}.",
    "Nobody could say why {person} had left {thing} near the {place}.",
    "There was talk of {weather} all week, but {person} only mentioned {thing}.",
)


def sentence(draw: Random, index: int) -> str:
    """Return the index-th sentence of a chronicle."""
    return draw.choice(_FORMS).format(
        ordinal=f"{index + 1}{_SUFFIX.get(index % 10 if index // 10 % 10 != 1 else 9, 'th')}",
        person=draw.choice(_PEOPLE),
        thing=draw.choice(_THINGS),
        weather=draw.choice(_WEATHER),
        place=draw.choice(_PLACES),
        other=draw.choice(_PLACES),
        number=draw.randint(12, 980),
        minutes=draw.randint(5, 45),
    )


_SUFFIX = {0: "st", 1: "nd", 2: "rd"}
