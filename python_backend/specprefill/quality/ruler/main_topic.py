# SPDX-License-Identifier: Apache-2.0
"""Main topic: notes on a few subjects, most of them on one, which no note calls by its name."""

from __future__ import annotations

from random import Random

from specprefill.quality.ruler.haystack import Haystack
from specprefill.quality.sample import Sample

# Subject -> what its notes are made of: who, did what, to what.
_SUBJECTS: dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    "cooking": (
        ("The chef", "Her aunt", "The new apprentice"),
        ("stirred", "seasoned", "tasted", "chopped", "boiled"),
        ("the onion soup", "a pot of lentils", "the pepper sauce", "some fresh noodles"),
    ),
    "sailing": (
        ("The skipper", "A deckhand", "The helmsman"),
        ("hoisted", "trimmed", "untangled", "lowered", "inspected"),
        ("the mainsail", "the anchor chain", "a torn jib", "the rudder lines"),
    ),
    "music": (
        ("The violinist", "A young pianist", "The conductor"),
        ("rehearsed", "hummed", "performed", "transposed", "practised"),
        ("the second sonata", "a slow waltz", "the opening chords", "an old melody"),
    ),
    "gardening": (
        ("The gardener", "A neighbour", "Her grandfather"),
        ("watered", "pruned", "planted", "weeded", "mulched"),
        ("the rose bushes", "a row of carrots", "the tulip beds", "two apple saplings"),
    ),
    "football": (
        ("The striker", "Their goalkeeper", "A substitute"),
        ("kicked", "missed", "passed", "headed", "blocked"),
        ("the ball at midfield", "a late penalty", "the corner kick", "a shot on goal"),
    ),
    "medicine": (
        ("The surgeon", "A night nurse", "The pharmacist"),
        ("prescribed", "examined", "prepared", "recorded", "changed"),
        ("the patient's dressing", "a fever chart", "the vaccine doses", "an injured knee"),
    ),
}
_TIMES = ("On Monday", "Before noon", "Late at night", "After the rain", "Once again", "That week")
_ASKED = 3
# How many notes are on the main subject for one on each other subject that is asked for.
_RATIO = 4


def main_topic(draw: Random, haystack: Haystack, name: str) -> Sample:
    """Ask what most of many notes are about; every part of the prompt matters."""
    subjects = draw.sample(sorted(_SUBJECTS), _ASKED)
    main, *others = subjects
    bag = [main] * _RATIO + others

    def note(draw: Random, index: int) -> str:
        # Whole bags one after the other keep the ratio at every length.
        if index % len(bag) == 0:
            draw.shuffle(bag)
        people, verbs, things = _SUBJECTS[bag[index % len(bag)]]
        person = draw.choice(people)
        person = person[0].lower() + person[1:]
        return f"{draw.choice(_TIMES)} {person} {draw.choice(verbs)} {draw.choice(things)}."

    draw.shuffle(subjects)
    question = (
        f"Question: Are most of these notes about {', '.join(subjects[:-1])} or {subjects[-1]}?\n"
        "Answer: Most of these notes are about"
    )
    prompt = haystack.bury(draw, note, [], question)
    return Sample(
        name,
        "main_topic",
        prompt,
        (main,),
        "string_match",
        4,
        chat=False,
        length=haystack.length,
    )
