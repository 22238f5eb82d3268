# SPDX-License-Identifier: Apache-2.0
"""Prompts longer than the draft reads at once: read in segments, each with the question behind it.

Every reading is a stretch of the prompt followed by the prompt's tail, at positions 0, 1, 2, ...:
a draft with a context of 8K tokens serves prompts of any length, in time linear in it. Readings
overlap, so that every token has some context before it and none is scored as the first of a
reading, which draws attention for being first.

Scores of different readings are compared with each other. The z-score rule measures every head in
deviations from its own background, which means the same in every reading. A softmax does not: a
reading without anything relevant hands out as much attention as one with the answer in it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from specprefill.draft.base import DraftEngine
from specprefill.observer import AttentionObserver

_OVERLAP_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Reading:
    """One stretch of the prompt that the draft reads, the prompt's tail behind it.

    Attributes:
        start: first token of the stretch.
        end: one past its last token; M in the last reading, which holds the tail where it is.
        scored_from: first token whose score comes from this reading; those before are context.
        tail_start: first token of the tail behind the stretch; M in the last reading.
    """

    start: int
    end: int
    scored_from: int
    tail_start: int


def readings(prompt_length: int, segment_tokens: int | None, tail: int) -> list[Reading]:
    """Cut a prompt into readings of at most `segment_tokens` tokens, equal but for rounding.

    Args:
        prompt_length: M >= 1.
        segment_tokens: most tokens of a reading with the tail; None reads everything at once.
        tail: last prompt tokens that end every reading; at most half of one is spent on it.

    Returns:
        The readings, whose scored parts make up the prompt.
    """
    if segment_tokens is None or prompt_length <= segment_tokens:
        return [Reading(0, prompt_length, 0, prompt_length)]
    tail = min(tail, segment_tokens // 2)
    overlap = min(_OVERLAP_TOKENS, segment_tokens // 8)
    body = prompt_length - tail
    count = -(-body // (segment_tokens - tail - overlap))
    edges = [index * body // count for index in range(count)]
    cut = [
        Reading(max(0, start - overlap), end, start, body)
        for start, end in pairwise([*edges, body])
    ]
    return [*cut[:-1], replace(cut[-1], end=prompt_length, tail_start=prompt_length)]


def observe_in_segments(
    draft: DraftEngine,
    prompt_ids: npt.NDArray[np.int32],
    make_observer: Callable[[int], AttentionObserver],
    segment_tokens: int | None,
    tail: int,
    cancelled: Callable[[], bool] = lambda: False,
) -> npt.NDArray[np.float32]:
    """Let a draft read a prompt of any length.

    Args:
        draft: the engine.
        prompt_ids: int32 [M].
        make_observer: builds the observer of one reading from its number of tokens.
        segment_tokens: most tokens that the draft reads at once; None reads all.
        tail: last prompt tokens that end every reading.
        cancelled: asked between pieces of work; True ends the reading.

    Returns:
        Importance, float32 [M].

    Raises:
        EngineError: the draft failed.
        RequestCancelledError: `cancelled` returned True.
    """
    length = len(prompt_ids)
    importance = np.empty(length, dtype=np.float32)
    for reading in readings(length, segment_tokens, tail):
        stretch, end = prompt_ids[reading.start : reading.end], prompt_ids[reading.tail_start :]
        ids = np.concatenate((stretch, end))
        observer = make_observer(len(ids))
        draft.observe(ids, observer, cancelled)
        scores = observer.importance().cpu().numpy()
        scored = slice(reading.scored_from - reading.start, reading.end - reading.start)
        importance[reading.scored_from : reading.end] = scores[scored]
    return importance
