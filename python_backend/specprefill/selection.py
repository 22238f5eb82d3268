# SPDX-License-Identifier: Apache-2.0
"""Importance, budget and protected spans -> the prompt tokens that the target prefills."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import get_args

import numpy as np
import numpy.typing as npt

from specprefill import budget
from specprefill.cause import Cause
from specprefill.chunks import NO_ROLE, chunk_roles, chunk_scores, chunk_starts
from specprefill.settings import Role, SelectionSettings

Span = tuple[int, int]

# The first tokens of a prompt and those just before the question draw attention in every prompt;
# with them, no prompt would ever be found flat.
_SINK_TOKENS, _RECENT_TOKENS = 64, 576
# Fewer chunks than this have no background to stand out from.
_LEAST_JUDGED = 8

# What begins at a token, in `Prompt.borders`.
SENTENCE_BORDER, LINE_BORDER = 1, 2


@dataclass(frozen=True, slots=True)
class Selection:
    """The tokens of one prompt that the target prefills.

    Attributes:
        kept: int32 [K], ascending indices into the prompt, which are also the position ids.
        prompt_length: M, the number of prompt tokens; decoding starts at this position.
        active: True if at least one token was dropped.
        reason: one sentence that says why the prompt was or was not pruned.
        chunk_starts: int32 [n], first token of each chunk; empty if nothing was scored.
        chunk_scores: float32 [n], score of each chunk; None if nothing was scored.
        cause: the reason in one word.
    """

    kept: npt.NDArray[np.int32]
    prompt_length: int
    active: bool
    reason: str
    chunk_starts: npt.NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    chunk_scores: npt.NDArray[np.float32] | None = None
    cause: Cause = Cause.PRUNED

    def spans(self) -> list[Span]:
        """Return the kept tokens as half-open [start, end) runs."""
        return runs(self.kept)


def runs(indices: npt.NDArray[np.int32]) -> list[Span]:
    """Return ascending indices [K] as half-open [start, end) runs."""
    if indices.size == 0:
        return []
    breaks = np.flatnonzero(np.diff(indices) != 1)
    starts = indices[np.append(0, breaks + 1)]
    ends = indices[np.append(breaks, -1)] + 1
    return [(int(start), int(end)) for start, end in zip(starts, ends, strict=True)]


def keep_all(prompt_length: int, reason: str, cause: Cause = Cause.KEEP_ALL) -> Selection:
    """Return the dense selection: every token, at positions 0..M-1."""
    kept = np.arange(prompt_length, dtype=np.int32)
    return Selection(kept, prompt_length, False, reason, cause=cause)


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


def select(
    importance: npt.NDArray[np.float32] | None,
    settings: SelectionSettings,
    protected: npt.NDArray[np.bool_],
    borders: npt.NDArray[np.uint8] | None = None,
    role_spans: Sequence[tuple[int, int, int]] = (),
) -> Selection:
    """Choose the kept tokens: the best chunks that the budget pays for, and protected tokens.

    Protected tokens are paid for out of the same budget, up to half of it, so the result can
    exceed the budget only by protected tokens, and at least one chunk is chosen by score. The last
    prompt token is always kept: the first generated token's logits come from it, at position
    M - 1. Equal scores go to the earlier chunk.

    Args:
        importance: float32 [M], larger means more important; None if nothing was scored, which
            spends the whole budget on evenly spaced chunks.
        settings: budget, chunks and guards.
        protected: bool [M], tokens to keep whatever their importance.
        borders: uint8 [M], what begins at a token: 0 nothing, 1 a sentence, 2 a line; None cuts
            chunks of a fixed size.
        role_spans: (start, end, index of the role) of each message, half-open token spans.

    Returns:
        The selection; `active` is False when it keeps every token.
    """
    length = protected.size
    starts = chunk_starts(length, settings.chunk_size, _chunk_borders(borders, settings))
    chunks = _Chunks.of(importance, starts, protected)
    if not chunks.open.any():
        return keep_all(length, "dense: every token is protected", Cause.PROTECTED)

    least_rate, guard = 0.0, ""
    judged = chunks.scores[chunks.open & chunks.inner]
    if chunks.scored and settings.flat_guard != "off" and judged.size >= _LEAST_JUDGED:
        prominence = budget.prominence(judged)
        if prominence < settings.flat_threshold:
            guard = (
                f"flat importance (the best chunk stands out by {prominence:.1f} deviations, "
                f"flat_threshold is {settings.flat_threshold:g})"
            )
            if settings.flat_guard == "dense":
                everything = np.ones(length, dtype=np.bool_)
                return chunks.selection(everything, f"dense: {guard}", Cause.GUARD)
            least_rate = settings.flat_keep_rate
            guard = f"; {guard}: at least flat_keep_rate {least_rate:g}"

    chosen = np.zeros(starts.size, dtype=np.bool_)
    groups, terms = _groups(settings, length, starts, role_spans)
    for members, keep_rate in groups:
        taken, limit = _choose(chunks, members, keep_rate, least_rate, settings)
        chosen[taken] = True
        terms += limit

    keep = np.repeat(chosen, chunks.lengths) | protected
    keep[-1] = True
    if keep.all():
        reason = f"dense: budget and protected tokens cover the whole prompt, at {terms}{guard}"
        return chunks.selection(keep, reason, Cause.PROTECTED)
    kept = int(keep.sum())
    spacing = "" if chunks.scored else ", evenly spaced"
    share = f"{kept} of {length} tokens ({kept / length:.0%})"
    reason = f"pruned: kept {share} at {terms}{spacing}{guard}"
    return chunks.selection(keep, reason, Cause.PRUNED)


@dataclass(frozen=True, slots=True)
class _Chunks:
    """The chunks of one prompt.

    Attributes:
        starts: int32 [n], first token of each.
        lengths: int64 [n], tokens of each.
        scores: float64 [n], all 0 if nothing was scored.
        scored: whether anything was.
        protected: int64 [n], protected tokens of each.
        free: int64 [n], tokens that are kept only if the chunk is chosen.
    """

    starts: npt.NDArray[np.int32]
    lengths: npt.NDArray[np.int64]
    scores: npt.NDArray[np.float64]
    scored: bool
    protected: npt.NDArray[np.int64]
    free: npt.NDArray[np.int64]

    @classmethod
    def of(
        cls,
        importance: npt.NDArray[np.float32] | None,
        starts: npt.NDArray[np.int32],
        protected: npt.NDArray[np.bool_],
    ) -> _Chunks:
        """Measure the chunks that begin at `starts`."""
        lengths = np.diff(starts, append=protected.size).astype(np.int64)
        scored = importance is not None
        scores = np.zeros(starts.size) if importance is None else chunk_scores(importance, starts)
        counts = np.add.reduceat(protected.astype(np.int64), starts)
        free = lengths - counts
        free[-1] -= not protected[-1]  # the last token is kept anyway
        return cls(starts, lengths, scores, scored, counts, free)

    @property
    def open(self) -> npt.NDArray[np.bool_]:
        """Whether each chunk has a token that is not protected: bool [n]."""
        undecided: npt.NDArray[np.bool_] = self.protected < self.lengths
        return undecided

    @property
    def inner(self) -> npt.NDArray[np.bool_]:
        """Whether each chunk lies where only its content can draw attention: bool [n]."""
        ends = self.starts + self.lengths
        far: npt.NDArray[np.bool_] = (self.starts >= _SINK_TOKENS) & (
            ends <= self.lengths.sum() - _RECENT_TOKENS
        )
        return far

    def selection(self, keep: npt.NDArray[np.bool_], reason: str, cause: Cause) -> Selection:
        """Return the selection of the marked tokens, bool [M]."""
        kept = np.flatnonzero(keep).astype(np.int32)
        scores = self.scores.astype(np.float32) if self.scored else None
        active = kept.size < keep.size
        return Selection(kept, keep.size, active, reason, self.starts, scores, cause)


def _chunk_borders(
    borders: npt.NDArray[np.uint8] | None, settings: SelectionSettings
) -> npt.NDArray[np.bool_] | None:
    if borders is None or settings.chunk_borders == "fixed":
        return None
    least = LINE_BORDER if settings.chunk_borders == "line" else SENTENCE_BORDER
    wanted: npt.NDArray[np.bool_] = borders >= least
    return wanted


def _groups(
    settings: SelectionSettings,
    length: int,
    starts: npt.NDArray[np.int32],
    role_spans: Sequence[tuple[int, int, int]],
) -> tuple[list[tuple[npt.NDArray[np.bool_], float]], str]:
    """Split the chunks into groups with a budget each.

    Returns:
        The groups, bool [n] and keep rate, and the words that name the budget.
    """
    everything = np.ones(starts.size, dtype=np.bool_)
    if settings.budget != "rate":
        name = f"keep_{settings.budget}"
        return [(everything, settings.keep_rate)], f"{name} {getattr(settings, name):g}"
    keep_rate, source = budget.keep_rate_for(settings, length)
    words = f"{source} {keep_rate:g}"
    if not settings.role_keep_rates or not role_spans:
        return [(everything, keep_rate)], words
    rates = {str(role): rate for role, rate in settings.role_keep_rates.items()}
    roles = chunk_roles(length, starts, role_spans)
    groups = []
    for role in np.unique(roles):
        name = "" if role == NO_ROLE else get_args(Role)[role]
        groups.append((roles == role, rates.get(name, keep_rate)))
        if name in rates:
            words += f", {name} {rates[name]:g}"
    return groups, words


def _choose(
    chunks: _Chunks,
    members: npt.NDArray[np.bool_],
    keep_rate: float,
    least_rate: float,
    settings: SelectionSettings,
) -> tuple[npt.NDArray[np.int64], str]:
    """Choose among one group's chunks, bool [n].

    Returns:
        Indices of the chosen chunks, int64, and the bound that was met, in words.
    """
    candidates = np.flatnonzero(members & chunks.open)
    if candidates.size == 0:
        return candidates, ""
    n_chunks, protected = int(members.sum()), int(chunks.protected[members].sum())

    def paid(rate: float) -> int:
        chunk_budget = budget.chunk_budget(rate, n_chunks)
        return budget.left_to_score(chunk_budget, protected // settings.chunk_size)

    order = budget.priority(chunks.scores, candidates, settings.neighbours)
    coverage = settings.coverage if chunks.scored else 1.0
    if settings.budget == "tokens":
        kept_anyway = int((chunks.lengths - chunks.free).sum())
        tokens = budget.left_to_score(settings.keep_tokens, kept_anyway)
        count = budget.tokens_count(chunks.free[order], tokens)
        order = budget.with_coverage(order, round(coverage * count))
        # Chunks differ in length, and others are first now.
        count = max(budget.tokens_count(chunks.free[order], tokens), paid(least_rate))
        return order[:count], ""
    limit = ""
    if settings.budget == "rate":
        count = paid(keep_rate)
    else:
        count, limit = _count_by_scores(chunks.scores[candidates], settings, paid)
    count = min(max(count, paid(least_rate)), candidates.size)
    return budget.with_coverage(order, round(coverage * count))[:count], limit


def _count_by_scores(
    scores: npt.NDArray[np.float64], settings: SelectionSettings, paid: Callable[[float], int]
) -> tuple[int, str]:
    """Return how many chunks the scores themselves ask for, within the bounds."""
    if settings.budget == "mass":
        count = budget.mass_count(scores, settings.keep_mass)
    else:
        count = budget.threshold_count(scores, settings.keep_threshold)
    least, most = paid(settings.min_keep_rate), paid(settings.max_keep_rate)
    if count < least:
        return least, f", raised to min_keep_rate {settings.min_keep_rate:g}"
    if count > most:
        return most, f", held at max_keep_rate {settings.max_keep_rate:g}"
    return count, ""
