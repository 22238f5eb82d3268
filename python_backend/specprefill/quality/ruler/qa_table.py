# SPDX-License-Identifier: Apache-2.0
"""Questions about a table: one cell of one row."""

from __future__ import annotations

from random import Random

from specprefill.quality.ruler.haystack import Haystack
from specprefill.quality.ruler.words import WORDS, endless
from specprefill.quality.sample import Sample

_NOTES = (
    "sold in boxes of twelve, on order only, delivered within ten days",
    "the last delivery came late and was counted twice by mistake",
    "kept in the upper store because the lower one is damp",
    "customers ask for a larger size, which the maker does not offer",
    "to be checked again before the end of the season",
    "returned pieces are repaired and sold at the market",
)


def qa_table(draw: Random, haystack: Haystack, name: str) -> Sample:
    """Ask for the price of one article of a price list."""
    articles = draw.sample(WORDS, len(WORDS))
    asked = articles.pop()
    price = str(draw.randint(1000, 9999))
    needle = f"| {asked} | price {price} |"
    # Answers begun for it are what a small model can go on with.
    question = f"Question: What is the price of the {asked}?\nAnswer: The price of the {asked} is"
    prompt = haystack.bury(
        draw,
        lambda draw, index: _row(
            draw, f"| {endless(articles, index)} | price {draw.randint(1000, 9999)} |"
        ),
        [_row(draw, needle)],
        question,
        head="| article | price | note |\n|---|---|---|\n",
        separator="\n",
    )
    return Sample(
        name,
        "qa_table",
        prompt,
        (price,),
        "string_match",
        8,
        chat=False,
        evidence=(needle,),
        length=haystack.length,
    )


def _row(draw: Random, cells: str) -> str:
    return f"{cells} {'; '.join(draw.sample(_NOTES, 2))} |"
