# SPDX-License-Identifier: Apache-2.0
"""Where chunks begin, what they score and whose messages they belong to."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

NO_ROLE = -1


def chunk_starts(
    prompt_length: int, chunk_size: int, borders: npt.NDArray[np.bool_] | None = None
) -> npt.NDArray[np.int32]:
    """Cut a prompt into chunks of about `chunk_size` tokens.

    A chunk ends at the border nearest to its full size, the earlier one if two are as near, and at
    its full size if no border lies within half a chunk of that.

    Args:
        prompt_length: M >= 1.
        chunk_size: C >= 1.
        borders: bool [M], True where a chunk may well begin; None cuts every C tokens.

    Returns:
        int32 [n], ascending, the first is 0; chunks have at most C + C // 2 tokens.
    """
    reach = chunk_size // 2
    if borders is None or reach == 0:
        return np.arange(0, prompt_length, chunk_size, dtype=np.int32)
    places = np.flatnonzero(borders).tolist()
    starts, end = [0], chunk_size
    while end < prompt_length:
        at = bisect_left(places, end)
        near = [place for place in places[max(0, at - 1) : at + 1] if abs(place - end) <= reach]
        starts.append(min(near, key=lambda place: abs(place - end), default=end))
        end = starts[-1] + chunk_size
    return np.array(starts, dtype=np.int32)


def chunk_scores(
    importance: npt.NDArray[np.float32], starts: npt.NDArray[np.int32]
) -> npt.NDArray[np.float64]:
    """Average importance over each chunk's own tokens (arXiv 2502.02789, Algorithm 1).

    Args:
        importance: float32 [M].
        starts: int32 [n], first token of each chunk.

    Returns:
        float64 [n].
    """
    sums = np.add.reduceat(importance.astype(np.float64), starts)
    means: npt.NDArray[np.float64] = sums / np.diff(starts, append=importance.size)
    return means


def chunk_roles(
    prompt_length: int,
    starts: npt.NDArray[np.int32],
    role_spans: Sequence[tuple[int, int, int]],
) -> npt.NDArray[np.int64]:
    """Tell whose message most of a chunk's tokens belong to.

    Args:
        prompt_length: M.
        starts: int32 [n], first token of each chunk.
        role_spans: (start, end, role) of each message, half-open token spans.

    Returns:
        int64 [n], a role each, or `NO_ROLE` where most tokens belong to no message.
    """
    roles = np.full(prompt_length, NO_ROLE, dtype=np.int64)
    for start, end, role in role_spans:
        roles[max(0, start) : max(0, end)] = role
    kinds = np.unique(roles)[::-1]  # with as many tokens of two kinds, a role goes before none
    counts = [np.add.reduceat((roles == kind).astype(np.int64), starts) for kind in kinds]
    most: npt.NDArray[np.int64] = kinds[np.argmax(counts, axis=0)]
    return most
