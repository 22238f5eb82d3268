# SPDX-License-Identifier: Apache-2.0
"""Cross-family drafts: importance of a draft's tokens -> importance of the target's tokens.

Both tokenizers split the same characters, so characters carry the scores over (the idea of
arXiv 2603.02631, which merges and re-tokenises text where this keeps token ids and positions).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from specprefill.tokenizer import Offsets

_ZERO_WIDTH_JOINER = 0x200D
_VIRAMA = 9  # canonical combining class
_SKIN_TONES = range(0x1F3FB, 0x1F400)
_REGIONAL_INDICATORS = range(0x1F1E6, 0x1F200)
_TAGS = range(0xE0020, 0xE0080)


@dataclass(frozen=True, slots=True)
class SharedText:
    """A piece of text that both prompts hold.

    Attributes:
        start: first character in the target's prompt.
        end: one past the last character there.
        draft_start: first character in the draft's prompt.
    """

    start: int
    end: int
    draft_start: int


def carry_importance(
    draft_importance: npt.NDArray[np.float32], draft_ranges: npt.NDArray[np.int32]
) -> npt.NDArray[np.float32]:
    """Give each target token the importance of the best draft token that it overlaps.

    Args:
        draft_importance: float32 [D].
        draft_ranges: int32 [M, 2], half-open ranges of draft tokens.

    Returns:
        float32 [M]; tokens with an empty range get the smallest importance of all.

    Raises:
        ValueError: a range lies outside the draft's prompt, or that prompt is empty.
    """
    if draft_importance.size == 0:
        raise ValueError("the draft's prompt has no tokens")
    starts, ends = draft_ranges[:, 0], draft_ranges[:, 1]
    if draft_ranges.size and (draft_ranges.min() < 0 or ends.max() > draft_importance.size):
        raise ValueError(f"draft_ranges reach beyond the draft's {draft_importance.size} tokens")
    lowest = draft_importance.min()
    # reduceat needs every index inside the array, an end may be one beyond it.
    padded = np.append(draft_importance, lowest)
    carried = np.full(len(draft_ranges), lowest, dtype=np.float32)
    some = starts < ends
    if some.any():
        carried[some] = np.maximum.reduceat(padded, draft_ranges[some].reshape(-1))[::2]
    return carried


def whole_characters(text: str, offsets: Offsets) -> Offsets:
    """Widen the tokens' character spans until tokens that share a character have equal ones.

    A character is what a reader sees as one: with its combining marks, and joined emoji as a whole.

    Args:
        text: the prompt, valid Unicode.
        offsets: int64 [M, 2], ascending half-open spans; an empty span stays empty.

    Returns:
        int64 [M, 2].
    """
    if not len(offsets):
        return offsets
    starts, ends = offsets[:, 0], offsets[:, 1]
    joins = _joins_the_one_before(text)  # [characters + 1]
    # A token opens a new group if no earlier one reaches into it, at the border of a character.
    opens = (starts >= np.append(0, ends[:-1])) & ~joins[starts]
    opens[0] = True
    group = np.cumsum(opens) - 1  # [M]
    first = np.flatnonzero(opens)
    last = np.append(first[1:], len(offsets)) - 1
    widened = np.stack((starts[first][group], ends[last][group]), axis=1)
    empty = starts >= ends
    widened[empty] = offsets[empty]
    return widened


def overlapping_draft_tokens(
    text: str, offsets: Offsets, draft_offsets: Offsets, shared: Sequence[SharedText]
) -> npt.NDArray[np.int32]:
    """Find the draft tokens that stand for the same characters as each target token.

    Args:
        text: the target's prompt.
        offsets: int64 [M, 2], character spans of the target's tokens in it.
        draft_offsets: int64 [D, 2], character spans of the draft's tokens in the draft's prompt.
        shared: pieces of text that both prompts hold, ascending in the target's prompt.

    Returns:
        int32 [M, 2], half-open ranges of draft tokens; empty for tokens of unshared text.
    """
    ranges = np.zeros((len(offsets), 2), dtype=np.int32)
    if not shared:
        return ranges
    pieces = np.array([(s.start, s.end, s.draft_start) for s in shared])
    starts, ends = whole_characters(text, offsets).T
    piece = np.searchsorted(pieces[:, 1], starts, side="right")  # the first that ends after it
    inside = piece < len(pieces)
    piece = np.minimum(piece, len(pieces) - 1)
    first, last, draft_start = pieces[piece].T
    starts, ends = np.maximum(starts, first), np.minimum(ends, last)
    inside &= starts < ends
    shift = draft_start - first
    begin = np.searchsorted(draft_offsets[:, 1], starts + shift, side="right")
    end = np.searchsorted(draft_offsets[:, 0], ends + shift, side="left")
    inside &= begin < end
    ranges[inside] = np.stack((begin, end), axis=1)[inside]
    return ranges


def _joins_the_one_before(text: str) -> npt.NDArray[np.bool_]:
    """Mark the characters that a reader does not see as characters of their own."""
    joins = np.zeros(len(text) + 1, dtype=np.bool_)
    if text.isascii():
        return joins
    points = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    unusual = np.flatnonzero(points >= 0x300)  # nothing joins below the combining marks
    kinds, which = np.unique(points[unusual], return_inverse=True)
    known = np.array([_joining(int(point)) for point in kinds], dtype=np.bool_).reshape(-1, 3)
    before, after, letter = np.zeros((3, len(text)), dtype=np.bool_)
    before[unusual], after[unusual], letter[unusual] = known[which].T
    joins[:-1] = before
    # A joiner takes anything, a virama the letter that it makes a conjunct with.
    joins[1:-1] |= after[:-1] & (letter[1:] | (points[:-1] == _ZERO_WIDTH_JOINER))
    # Flags are pairs of letters; counting a row of flags as one only makes the unit larger.
    flags = (points >= _REGIONAL_INDICATORS[0]) & (points <= _REGIONAL_INDICATORS[-1])
    joins[1:-1] |= flags[1:] & flags[:-1]
    joins[0] = False
    return joins


def _joining(point: int) -> tuple[bool, bool, bool]:
    """Say if a code point joins the one before it, or the one after it, and if it is a letter."""
    category, combining = unicodedata.category(chr(point)), unicodedata.combining(chr(point))
    is_joiner = point == _ZERO_WIDTH_JOINER
    before = is_joiner or point in _SKIN_TONES or point in _TAGS or category.startswith("M")
    return before, is_joiner or combining == _VIRAMA, category.startswith("L")
