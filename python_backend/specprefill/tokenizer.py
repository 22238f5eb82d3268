# SPDX-License-Identifier: Apache-2.0
"""Tokenizers: loading, comparing, and the characters that each token stands for."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from transformers import AutoTokenizer

from specprefill.errors import ConfigurationError
from specprefill.selection import Span

Offsets = npt.NDArray[np.int64]


def load_tokenizer(folder: str | Path, trust_remote_code: bool = False) -> Any:
    """Load a fast tokenizer.

    Raises:
        ConfigurationError: the folder is missing, or its tokenizer gives no character offsets.
    """
    if not Path(folder).is_dir():
        raise ConfigurationError(f"model folder {folder} does not exist")
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            folder, trust_remote_code=trust_remote_code, local_files_only=True
        )
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"model folder {folder}: no usable tokenizer: {error}") from error
    if not tokenizer.is_fast:
        raise ConfigurationError(
            f"model folder {folder}: a fast tokenizer (tokenizer.json) is needed"
        )
    return tokenizer


def tokenizer_difference(draft: Any, target: Any) -> str | None:
    """Say in which way a draft's token ids mean something else than the target's; None: nowhere."""
    ours, theirs = draft.get_vocab(), target.get_vocab()
    if ours != theirs:
        differing = sorted(t for t in ours.keys() | theirs.keys() if ours.get(t) != theirs.get(t))
        return (
            f"draft.model and target.model have different tokenizers: {len(differing)} tokens "
            f"differ, first {differing[0]!r} (draft {ours.get(differing[0])}, "
            f"target {theirs.get(differing[0])})"
        )
    probe = "Draft & target: naïve café, 12345,\n\ttabs, 日本語 and 😀."
    if draft(probe).input_ids != target(probe).input_ids:
        return (
            "draft.model and target.model split text into different tokens although their "
            "vocabularies agree"
        )
    return None


def check_same_tokenizer(draft: Any, target: Any) -> None:
    """Refuse a draft whose token ids mean something else than the target's.

    Raises:
        ConfigurationError: names the first difference.
    """
    difference = tokenizer_difference(draft, target)
    if difference:
        raise ConfigurationError(
            f"{difference}; use a draft of the target's family, or set draft.cross_family"
        )


def tokenise(
    tokenizer: Any, text: str, add_special_tokens: bool
) -> tuple[npt.NDArray[np.int32], Offsets]:
    """Split text into tokens.

    Args:
        tokenizer: a fast tokenizer.
        text: what to split.
        add_special_tokens: let the tokenizer add what a prompt begins with, for example BOS.

    Returns:
        int32 [M] token ids, and int64 [M, 2] half-open character spans; both columns ascend, and
        white space between two tokens belongs to the second.
    """
    encoding = tokenizer(
        text,
        add_special_tokens=add_special_tokens,
        return_offsets_mapping=True,
        return_attention_mask=False,
        verbose=False,
    )
    ids = np.asarray(encoding["input_ids"], dtype=np.int32)
    return ids, _without_gaps(_as_array(encoding["offset_mapping"]))


def tokenise_with_literals(
    tokenizer: Any, text: str, literals: Sequence[Span]
) -> tuple[npt.NDArray[np.int32], Offsets]:
    """Split text into tokens, with character spans that spell a special token and must not be one.

    Args:
        tokenizer: a fast tokenizer.
        text: what to split; nothing is added to it.
        literals: ascending half-open character spans.

    Returns:
        As `tokenise`. Without literals the tokens are the same.
    """
    edges = [0, *chain.from_iterable(literals), len(text)]
    pieces = [text[start:end] for start, end in pairwise(edges)]
    texts = _encode_pieces(tokenizer, pieces[2::2], as_text=False)
    spelled = _encode_pieces(tokenizer, pieces[1::2], as_text=True)
    encoded = [tokenise(tokenizer, pieces[0], add_special_tokens=False)]
    for i, piece in enumerate(pieces[1:], start=1):
        ids, offsets = (spelled if i % 2 else texts)[piece]
        encoded.append((ids, offsets + edges[i]))
    all_ids, all_offsets = zip(*encoded, strict=True)
    return np.concatenate(all_ids), _without_gaps(np.concatenate(all_offsets))


def _encode_pieces(
    tokenizer: Any, pieces: Sequence[str], as_text: bool
) -> dict[str, tuple[npt.NDArray[np.int32], Offsets]]:
    """Split pieces from the middle of a text into tokens, each different one once."""

    def encode(rows: list[str]) -> list[tuple[list[int], list[tuple[int, int]]]]:
        if not rows:
            return []
        encoding = tokenizer(
            rows,
            add_special_tokens=False,
            return_offsets_mapping=True,
            return_attention_mask=False,
            split_special_tokens=as_text,
            verbose=False,
        )
        return list(zip(encoding["input_ids"], encoding["offset_mapping"], strict=True))

    # SentencePiece puts a space before the first word of every text. A line break before the
    # piece takes its place, unless it melts into the piece.
    different = list(dict.fromkeys(pieces))
    (line_break, _), *rows = encode(["\n", *(f"\n{piece}" for piece in different)])
    skip = len(line_break)
    melted = [p for p, (ids, _) in zip(different, rows, strict=True) if ids[:skip] != line_break]
    alone = dict(zip(melted, encode(melted), strict=True))
    encoded = {}
    for piece, (ids, offsets) in zip(different, rows, strict=True):
        if piece in alone:
            ids, offsets, shift = *alone[piece], 0
        else:
            ids, offsets, shift = ids[skip:], offsets[skip:], 1
        encoded[piece] = np.asarray(ids, dtype=np.int32), _as_array(offsets) - shift
    return encoded


def _as_array(offsets: list[tuple[int, int]]) -> Offsets:
    flat = np.fromiter(chain.from_iterable(offsets), np.int64, 2 * len(offsets))
    return flat.reshape(-1, 2)


def _without_gaps(offsets: Offsets) -> Offsets:
    """Give white space that a tokenizer cut off a token's span back to that token.

    Tokens that stand for no text, such as an added BOS, get an empty span.
    """
    if not len(offsets):
        return offsets
    empty = offsets[:, 0] >= offsets[:, 1]
    ends = np.maximum.accumulate(np.where(empty, 0, offsets[:, 1]))
    before = np.append(0, ends[:-1])
    # The tokens of one character all begin where it does, hence no more than the minimum.
    starts = np.where(empty, before, np.minimum(offsets[:, 0], before))
    return np.stack((starts, ends), axis=1)


def tokens_within(offsets: Offsets, start: int, end: int) -> tuple[int, int]:
    """Return the half-open range of tokens that lie wholly inside a character span."""
    first = int(np.searchsorted(offsets[:, 0], start, side="left"))
    last = int(np.searchsorted(offsets[:, 1], end, side="right"))
    return first, max(first, last)


def tokens_touching(offsets: Offsets, start: int, end: int) -> tuple[int, int]:
    """Return the half-open range of tokens that share a character with a character span."""
    first = int(np.searchsorted(offsets[:, 1], start, side="right"))
    last = int(np.searchsorted(offsets[:, 0], end, side="left"))
    return first, max(first, last)
