# SPDX-License-Identifier: Apache-2.0
"""Haystack: puts needles into filler so that the prompt has a wanted length in tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from specprefill.errors import ConfigurationError


class Haystack:
    """Assembles prompts of a wanted number of tokens, chat template included."""

    def __init__(self, tokenizer: Any, length: int) -> None:
        """Aim at `length` prompt tokens by the given tokenizer."""
        self._tokenizer = tokenizer
        self.length = length
        self._overhead = 0
        if tokenizer.chat_template is not None:
            rendered = tokenizer.apply_chat_template(
                [{"role": "user", "content": ""}], tokenize=False, add_generation_prompt=True
            )
            self._overhead = self.count(rendered)

    def count(self, text: str) -> int:
        """Return the number of tokens of a text."""
        return len(self._tokenizer(text, add_special_tokens=False, verbose=False).input_ids)

    def bury(
        self,
        draw: Random,
        filler: Callable[[Random, int], str],
        needles: Sequence[str],
        question: str,
        head: str = "",
        separator: str = " ",
    ) -> str:
        """Write head, filler with the needles in it, and the question.

        Args:
            draw: decides where the needles stand.
            filler: writes the n-th piece of filler.
            needles: pieces that hold the answer; their order is kept.
            question: comes last, after an empty line.
            head: comes first.
            separator: between two pieces.

        Raises:
            ConfigurationError: the needles alone are longer than the wanted length.
        """

        def write(pieces: Sequence[str]) -> str:
            return f"{head}{separator.join(pieces)}\n\n{question}"

        room = self.length - self._overhead - self.count(write(needles))
        if room < 0:
            raise ConfigurationError(
                f"length: {self.length} tokens do not hold this prompt; "
                f"allowed: at least {self.length - room}"
            )
        pieces: list[str] = []
        while room > 0:
            pieces.append(filler(draw, len(pieces)))
            room -= self.count(separator + pieces[-1])
        while True:
            depths = sorted(draw.randint(0, len(pieces)) for _ in needles)
            buried = list(pieces)
            for offset, (depth, needle) in enumerate(zip(depths, needles, strict=True)):
                buried.insert(depth + offset, needle)
            prompt = write(buried)
            if not pieces or self.count(prompt) + self._overhead <= self.length:
                return prompt
            pieces.pop()
