# SPDX-License-Identifier: Apache-2.0
"""Verbatim guard: does a prompt ask for its own text back, word for word?"""

from __future__ import annotations

import re

VERBATIM_REASON = "dense: the prompt asks for a verbatim copy (verbatim_guard)"
# The instruction stands at the beginning or at the end; what is between is the document.
INSTRUCTION_CHARACTERS = 500

_PATTERNS = (
    # English: a verb with what it is done to, so that "a price quote" is none
    r"\b(?:verbatim|word[- ]for[- ]word|letter[- ]for[- ]letter|character[- ]for[- ]character)\b",
    r"\b(?:exact|original) (?:words|wording|quotes?|quotation|text)\b",
    r"\b(?:quote|copy|repeat|reproduce|recite|transcribe|retype|translate|proofread|rewrite|edit)"
    r"\s+(?:out\s+|back\s+|down\s+|me\s+)?"
    r"(?:the|this|that|these|those|it|its|my|all|every|each|everything|what|from|exactly|any)\b",
    r"\b(?:correct|fix) (?:the |all )?(?:spelling|grammar|typos)\b",
    # German
    r"\b(?:wort)?wörtlich|\b(?:im wortlaut|wortgetreu|wortlaut|wort für wort|zeichengenau)\b",
    r"\b(?:zitier|abschreib|übersetz|korrigier|transkribier|kopier|wiederhol|überarbeit)"
    r"(?:e|en|t|st)?\b",
    r"\bschreib\w* .{0,80}\bab\b",
    # French
    r"\bmot (?:à|pour) mot\b|\btextuellement\b",
    r"\b(?:cite[rz]?|(?:re)?copie[rz]?|répète[rz]?|répétez|tradui(?:s|sez|re)|corrige[rz]?) "
    r"(?:le|la|les|l'|ce|cet|cette|ces|tout|mot|exactement|en)",
    # Spanish
    r"\bpalabra por palabra\b|\btextualmente\b",
    r"\b(?:cita|citar|copia|copiar|repite|repetir|traduce|traducir|traduzca|corrige) "
    r"(?:el|la|los|las|este|esta|todo|exactamente|al)\b",
    # Chinese
    r"逐字|原样|翻译|抄写|复制|引用原文|原文引用",
)
_ASKS = re.compile("|".join(_PATTERNS), re.IGNORECASE | re.DOTALL)


def asks_for_verbatim_copy(instruction: str) -> bool:
    """Look for words that ask to quote, copy, repeat, edit or translate a text.

    Args:
        instruction: the last user turn; only its first and last `INSTRUCTION_CHARACTERS` count.
    """
    edge = INSTRUCTION_CHARACTERS
    if len(instruction) <= 2 * edge:
        return _ASKS.search(instruction) is not None
    return any(_ASKS.search(part) for part in (instruction[:edge], instruction[-edge:]))
