# SPDX-License-Identifier: Apache-2.0
"""Keys and values of the needle prompts: rooms and their access codes."""

from __future__ import annotations

from random import Random

_OWNERS = ("north", "old", "upper", "royal", "quiet", "green", "stone", "winter")
_ROOMS = ("archive", "cellar", "attic", "workshop", "chapel", "laboratory", "kitchen", "vault")


def rooms(draw: Random, n: int) -> list[str]:
    """Return n different rooms."""
    names = [f"{owner} {room}" for owner in _OWNERS for room in _ROOMS]
    return draw.sample(names, n)


def codes(draw: Random, n: int) -> list[str]:
    """Return n different five-digit codes."""
    return [str(code) for code in draw.sample(range(10_000, 100_000), n)]


def code_sentence(room: str, code: str) -> str:
    """State one room's code."""
    return f"The access code of the {room} is {code}."
