# SPDX-License-Identifier: Apache-2.0
"""PromptText: a prompt's exact text, cut at its token borders."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

_MOST_TOKENS_OF_A_CHARACTER = 8


@dataclass(frozen=True, slots=True)
class PromptText:
    """A prompt's text and where each token's part of it begins.

    Attributes:
        text: the whole text.
        cuts: int64 [M + 1], ascending character indices; token i is text[cuts[i]:cuts[i + 1]].
            Parts joined are the text. A character of several tokens belongs to the first of them,
            and the others are empty; so are tokens that stand for no text.
        exact: False if the tokenizer cannot give the text back, and this is only close to it.
    """

    text: str
    cuts: npt.NDArray[np.int64]
    exact: bool = True

    def part(self, start: int, end: int) -> str:
        """Return the text of the tokens [start, end)."""
        return self.text[self.cuts[start] : self.cuts[end]]


def find_text(
    tokenizer: Any, token_ids: npt.NDArray[np.int32], source: str | None = None
) -> PromptText:
    """Find the text of token ids, and each token's part in it.

    Args:
        tokenizer: a fast tokenizer.
        token_ids: int32 [M].
        source: the text that they were made from, if it is known.

    Returns:
        Exactly that text; without it, or if it gives other tokens, a text that gives these
        tokens; and failing that, the tokens decoded one by one.
    """
    ids = token_ids.tolist()
    if not ids:  # whatever the source was, no token stands for any of it
        return PromptText("", np.zeros(1, dtype=np.int64), exact=not source)
    decoded = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    for text in (decoded,) if source is None else (source, decoded):
        for special in (False, True):
            encoded = tokenizer(
                text, add_special_tokens=special, return_offsets_mapping=True, verbose=False
            )
            if encoded["input_ids"] == ids:
                return PromptText(text, _cuts(encoded["offset_mapping"], len(text)))
    text, cuts = _decode_one_by_one(tokenizer, ids)
    return PromptText(text, cuts, exact=text == decoded)


def _decode_one_by_one(tokenizer: Any, ids: list[int]) -> tuple[str, npt.NDArray[np.int64]]:
    parts: list[str] = []
    pending: list[int] = []
    for token in ids:
        pending.append(token)
        part = tokenizer.decode(
            pending, skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        # The mark of a character whose other bytes are still to come.
        if not part.endswith("\ufffd") or len(pending) == _MOST_TOKENS_OF_A_CHARACTER:
            parts += [part, *[""] * (len(pending) - 1)]
            pending = []
    parts += [tokenizer.decode(pending), *[""] * (len(pending) - 1)] if pending else []
    return "".join(parts), np.append(0, np.cumsum([len(part) for part in parts]))


def _cuts(offsets: list[tuple[int, int]], length: int) -> npt.NDArray[np.int64]:
    ends = np.asarray(offsets, dtype=np.int64).reshape(-1, 2)[:, 1]  # [M]
    # Text between two tokens' offsets, as trimmed spaces are, goes to the later one.
    cuts = np.append(0, np.maximum.accumulate(ends))
    cuts[-1] = length
    return cuts
