# SPDX-License-Identifier: Apache-2.0
"""Importance, budget and protected spans -> the prompt tokens that the target prefills."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Span = tuple[int, int]

# Protected tokens may take at most this share of the chunk budget, so that a long protected tail
# never leaves the middle of the prompt without a single scored chunk.
MAX_PROTECTED_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Selection:
    """The tokens of one prompt that the target prefills.

    Attributes:
        kept: int32 [K], ascending indices into the prompt, which are also the position ids.
        prompt_length: M, the number of prompt tokens; decoding starts at this position.
        active: True if at least one token was dropped.
        reason: one sentence that says why the prompt was or was not pruned.
    """

    kept: npt.NDArray[np.int32]
    prompt_length: int
    active: bool
    reason: str

    def spans(self) -> list[Span]:
        """Return the kept tokens as half-open [start, end) runs."""
        if self.kept.size == 0:
            return []
        breaks = np.flatnonzero(np.diff(self.kept) != 1) + 1
        runs = np.split(self.kept, breaks)
        return [(int(run[0]), int(run[-1]) + 1) for run in runs]


def keep_all(prompt_length: int, reason: str) -> Selection:
    """Return the dense selection: every token, at positions 0..M-1."""
    return Selection(np.arange(prompt_length, dtype=np.int32), prompt_length, False, reason)


def protected_mask(
    prompt_length: int, protect_first: int, protect_last: int, spans: Sequence[Span]
) -> npt.NDArray[np.bool_]:
    """Mark the tokens that must be kept whatever their importance.

    Args:
        prompt_length: M.
        protect_first: number of tokens to keep at the start.
        protect_last: number of tokens to keep at the end.
        spans: half-open [start, end) token spans; parts outside the prompt are ignored.

    Returns:
        bool [M].
    """
    mask = np.zeros(prompt_length, dtype=np.bool_)
    mask[:protect_first] = True
    mask[max(0, prompt_length - protect_last) :] = True
    for start, end in spans:
        mask[max(0, start) : max(0, end)] = True
    return mask


def chunk_scores(importance: npt.NDArray[np.float32], chunk_size: int) -> npt.NDArray[np.float64]:
    """Average importance over chunks of consecutive tokens (arXiv 2502.02789, Algorithm 1).

    Args:
        importance: float32 [M].
        chunk_size: C; the last chunk may be shorter and is averaged over its own tokens.

    Returns:
        float64 [ceil(M / C)].
    """
    starts = np.arange(0, importance.size, chunk_size)
    sums = np.add.reduceat(importance.astype(np.float64), starts)
    lengths = np.diff(np.append(starts, importance.size))
    return sums / lengths


def select(
    importance: npt.NDArray[np.float32],
    keep_rate: float,
    protected: npt.NDArray[np.bool_],
    chunk_size: int,
) -> Selection:
    """Choose the kept tokens: the best ceil(p n) of n chunks, protected tokens first.

    Protected tokens are paid for out of the same budget, up to `MAX_PROTECTED_SHARE` of it, so
    the result can exceed the budget only by protected tokens. The last prompt token is always
    kept: the first generated token's logits come from it, at position M - 1. Equal scores go to
    the earlier chunk.

    Args:
        importance: float32 [M], larger means more important.
        keep_rate: p in (0, 1], share of the chunks to keep.
        protected: bool [M], tokens to keep whatever their importance.
        chunk_size: C >= 1; 1 selects single tokens.

    Returns:
        The selection; `active` is False when it keeps every token.
    """
    prompt_length = importance.size
    scores = chunk_scores(importance, chunk_size)
    n_chunks = scores.size
    # p * n in floating point can exceed the exact product by one bit: 0.1 * 30 must give 3.
    budget = min(n_chunks, math.ceil(round(keep_rate * n_chunks, 9)))

    starts = np.arange(0, prompt_length, chunk_size)
    whole = np.logical_and.reduceat(protected, starts)  # [n_chunks], nothing left to decide
    protected_chunks = int(protected.sum()) // chunk_size
    scored = max(budget - protected_chunks, math.ceil(budget * (1 - MAX_PROTECTED_SHARE)))

    candidates = np.flatnonzero(~whole)
    # A stable sort on the negated score is what gives ties to the earlier chunk.
    order = candidates[np.argsort(-scores[candidates], kind="stable")]
    chosen = np.zeros(n_chunks, dtype=np.bool_)
    chosen[order[:scored]] = True

    keep = np.repeat(chosen, chunk_size)[:prompt_length] | protected
    keep[-1] = True
    kept = np.flatnonzero(keep).astype(np.int32)
    if kept.size == prompt_length:
        return keep_all(prompt_length, "dense: budget and protected tokens cover the whole prompt")
    return Selection(
        kept,
        prompt_length,
        True,
        f"pruned: kept {kept.size} of {prompt_length} tokens at keep_rate {keep_rate:g}",
    )
