# SPDX-License-Identifier: Apache-2.0
"""Questions about prose: a year in one of many short biographies."""

from __future__ import annotations

from random import Random

from specprefill.quality.ruler import filler
from specprefill.quality.ruler.haystack import Haystack
from specprefill.quality.ruler.words import endless
from specprefill.quality.sample import Sample

_FIRST = [
    "Alma",
    "Bruno",
    "Clara",
    "Dario",
    "Elena",
    "Felix",
    "Greta",
    "Hugo",
    "Irene",
    "Jonas",
    "Karin",
    "Leon",
    "Marta",
    "Nils",
    "Olga",
    "Pavel",
    "Rosa",
    "Simon",
    "Tilda",
    "Viktor",
]
_LAST = [
    "Abbott",
    "Berger",
    "Castell",
    "Dalgaard",
    "Ekman",
    "Fontana",
    "Gruber",
    "Holm",
    "Ivarsson",
    "Jansen",
    "Keller",
    "Lindqvist",
    "Moreau",
    "Novak",
    "Olsen",
    "Petrov",
    "Quist",
    "Rossi",
    "Sandoval",
    "Thorne",
]
_TOWNS = ("Arles", "Bergen", "Cadiz", "Delft", "Ghent", "Lucca", "Porto", "Turku")
_WORK = ("clockmaker", "botanist", "printer", "violinist", "surveyor", "chemist", "weaver")
# One biography comes among so many pieces of other prose.
_SPACING = 4


def qa_prose(draw: Random, haystack: Haystack, name: str) -> Sample:
    """Ask for the year of birth of one of many people."""
    people = draw.sample([f"{first} {last}" for first in _FIRST for last in _LAST], 400)
    asked = people.pop()
    year = str(draw.randint(1701, 1899))
    needle = f"{asked} was born in {year} in {draw.choice(_TOWNS)}"

    def other(draw: Random, index: int) -> str:
        if index % _SPACING:
            return filler.sentence(draw, index)
        birth = f"{endless(people, index // _SPACING)} was born in {draw.randint(1701, 1899)}"
        return _biography(draw, f"{birth} in {draw.choice(_TOWNS)}")

    # Answers begun for it are what a small model can go on with.
    question = f"Question: In which year was {asked} born?\nAnswer: {asked} was born in"
    prompt = haystack.bury(draw, other, [_biography(draw, needle)], question)
    return Sample(
        name,
        "qa_prose",
        prompt,
        (year,),
        "string_match",
        8,
        chat=False,
        evidence=(needle,),
        length=haystack.length,
    )


def _biography(draw: Random, birth: str) -> str:
    return f"{birth} and worked as a {draw.choice(_WORK)}."
