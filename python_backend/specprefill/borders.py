# SPDX-License-Identifier: Apache-2.0
"""Where sentences and lines begin among a prompt's tokens."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from specprefill.tokenizer import Offsets

NO_BORDER, SENTENCE, LINE = 0, 1, 2

_NEWLINES = "\n\v\f\r\x1c\x1d\x1e\x85\u2028\u2029"
# These end a sentence if white space follows ...
_ENDERS = ".!?\u2026\u203c\u2047\u2048\u2049\u037e\u0589\u061f\u06d4\u0964\u0965\u1362\u1367\u17d4"
# ... and these do without, as their scripts write none.
_FULL_WIDTH_ENDERS = "\u3002\uff01\uff1f\uff61\ufe52"
_CLOSERS = "\"')]}\u00bb\u2019\u201c\u201d\u3009\u300b\u300d\u300f\u3011\uff09\uff3d\uff63"
_OTHER, _SPACE, _NEWLINE, _ENDER, _FULL_WIDTH_ENDER, _CLOSER = range(6)


def _classes() -> npt.NDArray[np.uint8]:
    classes = np.zeros(2**16, dtype=np.uint8)
    classes[[i for i in range(2**16) if chr(i).isspace()]] = _SPACE
    for characters, kind in (
        (_NEWLINES, _NEWLINE),
        (_ENDERS, _ENDER),
        (_FULL_WIDTH_ENDERS, _FULL_WIDTH_ENDER),
        (_CLOSERS, _CLOSER),
    ):
        classes[[ord(character) for character in characters]] = kind
    return classes


_CLASSES = _classes()  # per character of the basic plane; the others are none of these


def token_borders(text: str, offsets: Offsets) -> npt.NDArray[np.uint8]:
    """Say which tokens begin a line or a sentence.

    A line begins after a line break, and with the text. A sentence begins with the first
    character after a full stop, closing quotes and white space; an abbreviation looks the same.

    Args:
        text: the prompt, valid Unicode.
        offsets: int64 [M, 2], ascending character spans of the tokens.

    Returns:
        uint8 [M] of NO_BORDER, SENTENCE and LINE.
    """
    borders = np.zeros(len(offsets), dtype=np.uint8)
    if not text:
        return borders
    points = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)  # [characters]
    kinds = np.where(points < _CLASSES.size, _CLASSES[points & 0xFFFF], _OTHER)
    place = np.arange(kinds.size, dtype=np.int32)
    solid = (kinds != _SPACE) & (kinds != _NEWLINE)
    # Per character the last one up to it that is no space, and that is no closing quote either.
    last_solid = np.maximum.accumulate(np.where(solid, place, -1))
    last_word = np.maximum.accumulate(np.where(solid & (kinds != _CLOSER), place, -1))
    next_solid = np.minimum.accumulate(np.where(solid, place, kinds.size)[::-1])[::-1]
    last_newline = np.maximum.accumulate(np.where(kinds == _NEWLINE, place, -1))

    starts, ends = offsets[:, 0], offsets[:, 1]
    # Only the first of the tokens that make up one character can begin anything.
    begins = (starts < ends) & (starts >= np.append(0, ends[:-1]))
    start = np.minimum(starts, kinds.size - 1)
    first = np.minimum(next_solid[start], kinds.size - 1)  # [M], the token's first visible one
    visible = begins & (next_solid[start] < ends)
    before = np.maximum(first - 1, 0)

    gap = (first > 0) & ~solid[before]
    line_gap = gap & (last_newline[before] > last_solid[before])
    after = np.where(last_word[before] >= 0, kinds[last_word[before]], _OTHER)
    at_text = (first > 0) & (last_word[before] >= 0)
    spaced = at_text & gap & ((after == _ENDER) | (after == _FULL_WIDTH_ENDER))
    kind = kinds[first]
    unspaced = at_text & (after == _FULL_WIDTH_ENDER) & (kind == _OTHER)
    borders[visible & ~line_gap & (spaced | unspaced)] = SENTENCE

    # A carriage return and its line feed are one line break.
    pair = (kinds[start] == _NEWLINE) & (points[start] == 0x0A)
    pair &= (start > 0) & (points[np.maximum(start - 1, 0)] == 0x0D)
    after_newline = (start == 0) | ((kinds[np.maximum(start - 1, 0)] == _NEWLINE) & ~pair)
    holds_newline = line_gap & visible & (last_newline[before] >= start)
    borders[(begins & after_newline) | holds_newline] = LINE
    return borders
