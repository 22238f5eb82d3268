# SPDX-License-Identifier: Apache-2.0
"""How many chunks may be kept, and which come first."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from specprefill.settings import SelectionSettings

# Protected tokens may take at most this share of the budget, so that a long protected tail never
# leaves the middle of the prompt without a single scored chunk.
MAX_PROTECTED_SHARE = 0.5


def keep_rate_for(settings: SelectionSettings, prompt_length: int) -> tuple[float, str]:
    """Return the keep rate for a prompt of M tokens, and the setting that gave it."""
    reached = [n for n in settings.keep_rate_by_length or () if n <= prompt_length]
    if settings.keep_rate_by_length and reached:
        return settings.keep_rate_by_length[max(reached)], "keep_rate_by_length"
    return settings.keep_rate, "keep_rate"


def least_kept_tokens(settings: SelectionSettings, prompt_length: int) -> int:
    """Return how many of M tokens a budget keeps at least, before any score is known."""
    if settings.budget == "tokens":
        return min(settings.keep_tokens, prompt_length)
    if settings.budget != "rate":
        return math.ceil(settings.min_keep_rate * prompt_length)
    rate = keep_rate_for(settings, prompt_length)[0]
    return math.ceil(min((rate, *(settings.role_keep_rates or {}).values())) * prompt_length)


def chunk_budget(keep_rate: float, n_chunks: int) -> int:
    """Return ceil(p n), the number of chunks that a keep rate pays for, protected ones included."""
    # p * n in floating point can exceed the exact product by one bit: 0.1 * 30 must give 3.
    return min(n_chunks, math.ceil(round(keep_rate * n_chunks, 9)))


def left_to_score(budget: int, protected: int) -> int:
    """Return what protected tokens leave of a budget, at least half of it; both in one unit."""
    return max(budget - protected, math.ceil(budget * (1 - MAX_PROTECTED_SHARE)))


def excess(scores: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return by how much each chunk scores above the median chunk, 0 for those below.

    Z-scores have no natural zero and attention has a floor that every token gets, so only what
    lies above the background can be summed or compared as a ratio. The result does not change if
    a constant is added to all scores.
    """
    above: npt.NDArray[np.float64] = np.maximum(scores - np.median(scores), 0.0)
    return above


def mass_count(scores: npt.NDArray[np.float64], mass: float) -> int:
    """Return the size of the smallest set of chunks with a share of the excess (FlexPrefill).

    After arXiv 2502.20766, which accumulates attention instead. Chunks that all score alike count
    as equal shares.

    Args:
        scores: float64 [n], n >= 1.
        mass: share of the summed excess in (0, 1].
    """
    shares = np.sort(excess(scores))[::-1]
    total = shares.sum()
    if total == 0:
        return chunk_budget(mass, scores.size)
    # Rounding of the sum must not ask for one chunk more.
    reached = np.cumsum(shares) / total >= mass - 1e-12
    return int(np.argmax(reached)) + 1


def threshold_count(scores: npt.NDArray[np.float64], share: float) -> int:
    """Return how many chunks have more than a share of the largest excess (FlashPrefill).

    After arXiv 2603.06199, which compares attention instead.

    Args:
        scores: float64 [n], n >= 1.
        share: alpha in [0, 1).
    """
    above = excess(scores)
    return int((above > share * above.max()).sum())


def tokens_count(costs: npt.NDArray[np.int64], tokens: int) -> int:
    """Return how many chunks fit into so many tokens, taken in order; at least one.

    Args:
        costs: int64 [n], tokens that each chunk adds.
        tokens: most tokens to add.
    """
    return max(1, int(np.searchsorted(np.cumsum(costs), tokens, side="right")))


def priority(
    scores: npt.NDArray[np.float64], candidates: npt.NDArray[np.int64], neighbours: int
) -> npt.NDArray[np.int64]:
    """Order chunks by score, each followed by its neighbours; ties go to the earlier chunk.

    Args:
        scores: float64 [n] of all chunks.
        candidates: int64 [c], ascending indices of the chunks that may be chosen.
        neighbours: how many chunks on each side follow a chosen one, nearest and earlier first.

    Returns:
        int64 [c], the candidates in the order in which a budget takes them.
    """
    # A stable sort on the negated score is what gives ties to the earlier chunk.
    order = candidates[np.argsort(-scores[candidates], kind="stable")]
    if neighbours == 0:
        return order
    n, turns = scores.size, 2 * neighbours + 1
    never = n * turns
    rank = np.full(n + 2 * neighbours, never, dtype=np.int64)
    rank[neighbours + order] = np.arange(order.size) * turns
    offsets = sorted(range(-neighbours, neighbours + 1), key=abs)  # 0, -1, 1, -2, 2, ...
    # A chunk's turn comes with the first chunk near it whose turn has come.
    turn = np.full(n, never, dtype=np.int64)
    for place, offset in enumerate(offsets):
        first = neighbours - offset
        turn = np.minimum(turn, rank[first : first + n] + place)
    return candidates[np.argsort(turn[candidates], kind="stable")]


def with_coverage(order: npt.NDArray[np.int64], spread: int) -> npt.NDArray[np.int64]:
    """Move evenly spaced chunks to the front of an order.

    Args:
        order: int64 [c], chunks in the order in which a budget takes them.
        spread: how many of them to space evenly, at most c.

    Returns:
        int64 [c].
    """
    if spread == 0:
        return order
    places = ((np.arange(spread) + 0.5) * order.size / spread).astype(np.int64)
    even = np.sort(order)[places]
    return np.concatenate((even, order[~np.isin(order, even)]))


def prominence(scores: npt.NDArray[np.float64]) -> float:
    """Return how far the best chunk stands out: (max - median) / median absolute deviation.

    Free of scale and zero, so that it means the same for every scoring rule, and unmoved by the
    few chunks that do stand out.

    Args:
        scores: float64 [n], n >= 1.

    Returns:
        0 if no chunk scores above the median; infinite if one does and the others are all alike.
    """
    median = np.median(scores)
    above = float(scores.max() - median)
    deviation = float(np.median(np.abs(scores - median)))
    if above <= 0:
        return 0.0
    return above / deviation if deviation > 0 else math.inf
