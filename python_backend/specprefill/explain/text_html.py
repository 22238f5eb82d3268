# SPDX-License-Identifier: Apache-2.0
"""TextHtml: the prompt as HTML whose text content is the prompt, character by character."""

from __future__ import annotations

import html
from collections.abc import Sequence

import numpy as np

from specprefill.explain.explanation import BAND_NAMES, Explanation

# A browser lays out a block only when it is near the screen. Blocks end at a line's end, from the
# first length on, in characters; a line longer than the second is broken.
_BLOCK_SOFT, _BLOCK_HARD = 3000, 12000


class TextHtml:
    """Builds a section per role, blocks in it, and a span per piece of a chunk.

    Consecutive dropped pieces lie in a span of their own, which is what the page folds.
    """

    def __init__(self, explanation: Explanation, levels: Sequence[int] | None) -> None:
        """Prepare to build.

        Args:
            explanation: what to show.
            levels: shade of each chunk; None shades none.
        """
        self._explanation = explanation
        self._levels = levels
        self._out: list[str] = []
        self._dropped: list[str] = []
        self._dropped_tokens = 0
        self._band = -1
        self._block_length = 0

    def build(self) -> str:
        """Return the HTML."""
        explanation = self._explanation
        for index, (start, end) in explanation.segments():
            self._enter(int(explanation.bands[start]), int(explanation.text.cuts[start]))
            split = self._line_end(start, end)
            if split is None:
                self._piece(index, start, end - start, *self._characters(start, end))
            else:
                first, last = self._characters(start, end)
                token = int(np.searchsorted(explanation.text.cuts, split))
                self._piece(index, start, token - start, first, split)
                self._next_block()
                self._piece(index, start, end - token, split, last)
        self._end_run()
        self._out.append("</div></section>")
        return "".join(self._out)

    def _characters(self, start: int, end: int) -> tuple[int, int]:
        cuts = self._explanation.text.cuts
        return int(cuts[start]), int(cuts[end])

    def _enter(self, band: int, first: int) -> None:
        """Begin a section if the role changes, or a block if this one is long enough.

        Args:
            band: index into BAND_NAMES.
            first: the first character of what follows.
        """
        if band != self._band:
            self._end_run()
            name = BAND_NAMES[band]
            end = "" if self._band < 0 else "</div></section>"
            self._out.append(
                f'{end}<section class="band b-{name}" data-label="{name}"><div class="block">'
            )
            self._band, self._block_length = band, 0
        elif self._block_length > _BLOCK_HARD or (
            self._block_length > _BLOCK_SOFT and self._explanation.text.text[first - 1] == "\n"
        ):
            self._next_block()

    def _next_block(self) -> None:
        self._end_run()
        self._out.append('</div><div class="block">')
        self._block_length = 0

    def _line_end(self, start: int, end: int) -> int | None:
        """Return the character at which these tokens should go on in the next block, if any."""
        if self._block_length < _BLOCK_SOFT:
            return None
        first, last = self._characters(start, end)
        behind = self._explanation.text.text.find("\n", first, last) + 1
        return behind if first < behind < last else None

    def _piece(self, index: int, start: int, tokens: int, first: int, last: int) -> None:
        """Add the characters [first, last), so many tokens of the segment that begins at start."""
        explanation = self._explanation
        chunk = explanation.chunks[index]
        classes = ["s"]
        if self._levels is not None:
            classes.append(f"l{self._levels[index]}")
        if start == chunk.start and first == chunk.text_start:
            classes.append("f")
        if explanation.protected[start]:
            classes.append("p")
        text = _escape(explanation.text.text[first:last])
        piece = f'<span class="{" ".join(classes)}" data-c="{index}">{text}</span>'
        self._block_length += last - first
        if explanation.kept[start]:
            self._end_run()
            self._out.append(piece)
        else:
            self._dropped.append(piece)
            self._dropped_tokens += tokens

    def _end_run(self) -> None:
        if self._dropped:
            pieces = "".join(self._dropped)
            self._out.append(
                f'<span class="drop" data-n="{self._dropped_tokens:,}">{pieces}</span>'
            )
        self._dropped, self._dropped_tokens = [], 0


def _escape(text: str) -> str:
    # HTML would read a carriage return as a line feed, and has no NUL.
    return html.escape(text, quote=False).replace("\r", "&#13;").replace("\0", "\u2400")
