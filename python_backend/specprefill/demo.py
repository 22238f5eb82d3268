# SPDX-License-Identifier: Apache-2.0
"""The demonstration: one long document, asked densely and sparsely over gRPC streaming."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from specprefill.client import stream

FACT = "48213"
QUESTION = "What is the access code of the archive room?"
_FACT_SENTENCE = f"The access code of the archive room is {FACT}."

_PLACES = ("harbour", "tram depot", "library", "bakery", "museum", "botanical garden", "station")
_PEOPLE = ("the warden", "a visitor", "the head gardener", "the night porter", "an apprentice")
_THINGS = (
    "a leaking gutter",
    "a lost umbrella",
    "an early delivery",
    "a broken lamp",
    "a stray cat",
)
_WEATHER = ("a light drizzle", "thick fog", "clear skies", "a cold wind", "sudden hail")
_SENTENCES = (
    "On day {day}, {person} reported {thing} at the {place}.",
    "The {place} counted {number} guests under {weather}, {other} more than the week before.",
    "After {weather} the {place} closed {minutes} minutes early, and {person} noted {thing}.",
    "{person_start} carried {number} boxes from the {place} to the {place2} before noon.",
)


@dataclass(frozen=True, slots=True)
class Answer:
    """What one run of the demonstration measured.

    Attributes:
        text: the whole answer.
        ttft_seconds: from sending the request to the first text, at the client.
        statistics: the statistics of the last response.
    """

    text: str
    ttft_seconds: float
    statistics: dict[str, Any]

    @property
    def holds_fact(self) -> bool:
        """Tell whether the answer is right."""
        return FACT in self.text


def document(sentences: int, seed: int = 7, fact_at: float = 0.5) -> str:
    """Generate a town chronicle with one fact in it; about 21 tokens per sentence.

    Args:
        sentences: how many sentences to write.
        seed: the same seed writes the same chronicle.
        fact_at: where the fact stands, 0 at the start and 1 at the end.
    """
    draw = random.Random(seed)
    lines = []
    for day in range(1, sentences + 1):
        person = draw.choice(_PEOPLE)
        lines.append(
            draw.choice(_SENTENCES).format(
                day=day,
                person=person,
                person_start=person[0].upper() + person[1:],
                thing=draw.choice(_THINGS),
                place=draw.choice(_PLACES),
                place2=draw.choice(_PLACES),
                weather=draw.choice(_WEATHER),
                number=draw.randint(12, 980),
                other=draw.randint(2, 60),
                minutes=draw.randint(5, 45),
            )
        )
    lines.insert(round(sentences * fact_at), _FACT_SENTENCE)
    return " ".join(lines)


def demo_messages(sentences: int = 225) -> str:
    """Return the demonstration's chat messages as JSON."""
    content = f"{document(sentences)}\n\n{QUESTION}"
    return json.dumps([{"role": "user", "content": content}])


def ask(
    grpc_url: str,
    messages: str,
    keep_rate: float | None,
    show: Callable[[str], None] = lambda _: None,
    max_tokens: int = 24,
) -> Answer:
    """Ask once over gRPC streaming; `show` gets the text as it comes.

    Args:
        grpc_url: host:port.
        messages: chat messages as JSON.
        keep_rate: None takes the server's.
        show: called with each piece of text.
        max_tokens: length of the answer at most.
    """
    fields: dict[str, Any] = {"messages": messages, "max_tokens": max_tokens}
    if keep_rate is not None:
        fields["keep_rate"] = keep_rate
    text, first = "", 0.0
    statistics: dict[str, Any] = {}
    started = time.perf_counter()
    for piece in stream(grpc_url, **fields):
        if not first:
            first = time.perf_counter() - started
        text += piece.text
        show(piece.text)
        statistics = piece.outputs or statistics
    return Answer(text, first, statistics)
