# SPDX-License-Identifier: Apache-2.0
"""Prompts of a wanted length: the demonstration's document and question, as chat messages."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from specprefill.demo import demo_messages, document
from specprefill.tokenizer import load_tokenizer

# Chat template and question.
_FRAME_TOKENS = 50


@lru_cache(maxsize=4)
def _tokenizer(folder: Path) -> Any:
    return load_tokenizer(folder)


@lru_cache(maxsize=64)
def messages_of_about(tokens: int, folder: Path) -> str:
    """Return chat messages, as JSON, of at most a number of tokens and close to it.

    Args:
        tokens: prompt length wanted.
        folder: model folder whose tokenizer counts.
    """
    tokenizer = _tokenizer(folder)

    def length(sentences: int) -> int:
        return len(tokenizer(document(sentences)).input_ids) + _FRAME_TOKENS

    low, high = 1, max(2, tokens // 10)
    while low < high:
        middle = (low + high + 1) // 2
        if length(middle) <= tokens:
            low = middle
        else:
            high = middle - 1
    return demo_messages(low)
