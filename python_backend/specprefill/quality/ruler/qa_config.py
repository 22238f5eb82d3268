# SPDX-License-Identifier: Apache-2.0
"""Questions about a configuration file: the value of one of its lines."""

from __future__ import annotations

from random import Random

from specprefill.quality.ruler.haystack import Haystack
from specprefill.quality.ruler.words import endless
from specprefill.quality.sample import Sample

_SERVICES = ("billing", "search", "mail", "cache", "report", "login", "export", "media", "audit")
_PARTS = ("server", "client", "worker", "queue", "backup", "logger", "router", "session", "store")
_KEYS = ("port", "timeout", "limit", "retries", "buffer", "threads", "interval", "quota", "size")


_COMMENTS = (
    "# Change this only together with the line below.",
    "# The operators asked for a larger value than the one that came with the package.",
    "# Measured on the test machines over one week; see the minutes of the spring meeting.",
    "# Kept for older installations, which read it at every start.",
    "# A smaller number saves memory but makes restarts slower.",
    "# Reviewed by the night shift, nothing to add.",
    "# The unit is the one that the manual gives for this kind of setting.",
)


def qa_config(draw: Random, haystack: Haystack, name: str) -> Sample:
    """Ask for the value of one key of a long configuration file."""
    keys = [f"{s}.{p}.{k}" for s in _SERVICES for p in _PARTS for k in _KEYS]
    draw.shuffle(keys)
    asked = keys.pop()
    value = str(draw.randint(1000, 9999))
    needle = f"{asked} = {value}"

    def other(draw: Random, index: int) -> str:
        comments = "\n".join(draw.sample(_COMMENTS, 2))
        return f"{comments}\n{endless(keys, index)} = {draw.randint(1000, 9999)}"

    prompt = haystack.bury(
        draw,
        other,
        [needle],
        f"What is the value of {asked}?",
        head="Configuration file:\n",
        separator="\n",
    )
    return Sample(
        name,
        "qa_config",
        prompt,
        (value,),
        "string_match",
        24,
        evidence=(needle,),
        length=haystack.length,
    )
