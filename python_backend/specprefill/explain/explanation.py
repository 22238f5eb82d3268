# SPDX-License-Identifier: Apache-2.0
"""Explanation: one prompt's selection together with its text, ready to be shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from specprefill.explain import EXPLANATION_FORMAT, EXPLANATION_VERSION
from specprefill.explain.prompt_text import PromptText
from specprefill.prompt import ROLES
from specprefill.records import Record
from specprefill.selection import Span

# What a token belongs to: a message's role, what the chat template writes itself, or a prompt
# that is no chat.
TEMPLATE, PLAIN = "template", "text"
BAND_NAMES = (*ROLES, TEMPLATE, PLAIN)


@dataclass(frozen=True, slots=True)
class Chunk:
    """One chunk of the prompt.

    Attributes:
        start: first token.
        end: one behind the last token.
        text_start: first character.
        text_end: one behind the last character.
        score: None if nothing was scored.
        rank: 1 for the highest score; None if nothing was scored.
        kept_tokens: how many of its tokens the target prefills.
        protected_tokens: how many of them had to be kept.
        role: one of BAND_NAMES, that of most of its tokens.
    """

    start: int
    end: int
    text_start: int
    text_end: int
    score: float | None
    rank: int | None
    kept_tokens: int
    protected_tokens: int
    role: str

    @property
    def kept(self) -> bool:
        """Whether all of its tokens are kept."""
        return self.kept_tokens == self.end - self.start


@dataclass(frozen=True, slots=True)
class LayerPeak:
    """What one layer alone would have said about the chunks that hold no protected token.

    Attributes:
        layer: index of the layer.
        kept_peak: the highest score of a kept chunk; None if there is no such chunk.
        dropped_peak: the highest score of a chunk that is not kept; None if there is none.
        leads: number of chunks that no other layer scored as high.
    """

    layer: int
    kept_peak: float | None
    dropped_peak: float | None
    leads: int


@dataclass(frozen=True, slots=True)
class ShownAnswer:
    """One answer of the target.

    Attributes:
        name: `dense` or `sparse`.
        text: the answer.
        kept_tokens: how many prompt tokens the target prefilled for it.
        prefill_ms: time of that prefill.
    """

    name: str
    text: str
    kept_tokens: int
    prefill_ms: float


@dataclass(frozen=True)
class Explanation:
    """A selection, its prompt's text, and what led to it.

    Attributes:
        title: what the prompt is called, for example its file.
        record: the selection.
        text: the prompt's text and token borders.
        role_spans: (start, end, index into ROLES) in tokens; None if the prompt is no chat.
        importance: float32 [M]; None if it is not known, as for a record.
        by_layer: layer -> chunk scores by that layer alone, float32 [n]; empty if not known.
        answers: what the target answered, if it was asked.
    """

    title: str
    record: Record
    text: PromptText
    role_spans: Sequence[tuple[int, int, int]] | None = None
    importance: npt.NDArray[np.float32] | None = None
    by_layer: Mapping[int, npt.NDArray[np.float32]] = field(default_factory=dict)
    answers: Sequence[ShownAnswer] = ()

    @cached_property
    def kept(self) -> npt.NDArray[np.bool_]:
        """Which tokens the target prefills: bool [M]."""
        return _mask(self.record.kept, self.record.prompt_tokens)

    @cached_property
    def protected(self) -> npt.NDArray[np.bool_]:
        """Which tokens had to be kept: bool [M]."""
        return _mask(self.record.protected, self.record.prompt_tokens)

    @cached_property
    def bands(self) -> npt.NDArray[np.int8]:
        """What each token belongs to: int8 [M], indices into BAND_NAMES."""
        outside = PLAIN if self.role_spans is None else TEMPLATE
        bands = np.full(self.record.prompt_tokens, BAND_NAMES.index(outside), dtype=np.int8)
        for start, end, role in self.role_spans or ():
            bands[start:end] = role
        return bands

    @cached_property
    def chunk_starts(self) -> npt.NDArray[np.int64]:
        """First token of each chunk: int64 [n]; equal pieces if the prompt was not chunked."""
        if self.record.chunk_starts:
            return np.asarray(self.record.chunk_starts, dtype=np.int64)
        size = self.record.settings.get("chunk_size")
        return np.arange(0, self.record.prompt_tokens, size if isinstance(size, int) else 32)

    @cached_property
    def chunks(self) -> list[Chunk]:
        """The prompt's chunks, in order."""
        starts = self.chunk_starts
        ends = np.append(starts[1:], self.record.prompt_tokens)
        kept = np.add.reduceat(self.kept.astype(np.int64), starts)
        protected = np.add.reduceat(self.protected.astype(np.int64), starts)
        counts = np.stack(
            [
                np.add.reduceat((self.bands == band).astype(np.int64), starts)
                for band in range(len(BAND_NAMES))
            ]
        )
        bands = counts.argmax(axis=0)
        scores: Sequence[float | None] = self.record.chunk_scores or [None] * len(starts)
        ranks: Sequence[int | None] = [None] * len(starts)
        if self.record.chunk_scores:
            order = np.argsort(-np.asarray(self.record.chunk_scores), kind="stable")
            places = np.empty(len(starts), dtype=np.int64)
            places[order] = np.arange(1, len(starts) + 1)
            ranks = places.tolist()
        cuts = self.text.cuts
        return [
            Chunk(
                int(starts[i]),
                int(ends[i]),
                int(cuts[starts[i]]),
                int(cuts[ends[i]]),
                scores[i],
                ranks[i],
                int(kept[i]),
                int(protected[i]),
                BAND_NAMES[bands[i]],
            )
            for i in range(len(starts))
        ]

    @cached_property
    def layer_scores(self) -> npt.NDArray[np.float32]:
        """Each layer's own score of each chunk: float32 [layers, n]."""
        none = np.empty((0, len(self.chunk_starts)), dtype=np.float32)
        return np.stack(list(self.by_layer.values())) if self.by_layer else none

    @cached_property
    def layers(self) -> list[LayerPeak]:
        """The layers' peaks, in order; empty if they are not known."""
        scores = self.layer_scores  # [layers, n]
        kept = np.asarray([c.kept and not c.protected_tokens for c in self.chunks])
        dropped = np.asarray([not c.kept and not c.protected_tokens for c in self.chunks])
        leaders = scores[:, kept | dropped].argmax(axis=0) if len(scores) else np.empty(0)
        return [
            LayerPeak(
                layer,
                float(scores[i, kept].max()) if kept.any() else None,
                float(scores[i, dropped].max()) if dropped.any() else None,
                int((leaders == i).sum()),
            )
            for i, layer in enumerate(self.by_layer)
        ]

    def segments(self) -> list[tuple[int, Span]]:
        """Cut the prompt wherever a chunk, a role, or being kept or protected begins or ends.

        Returns:
            (index of the chunk, half-open token span), in order; together the whole prompt.
        """
        length = self.record.prompt_tokens
        new = np.zeros(length, dtype=np.bool_)
        new[self.chunk_starts] = True
        for values in (self.kept, self.protected, self.bands):
            new[1:] |= values[1:] != values[:-1]
        starts = np.flatnonzero(new)
        ends = np.append(starts[1:], length)
        chunk = np.searchsorted(self.chunk_starts, starts, side="right") - 1
        return [
            (int(i), (int(start), int(end)))
            for i, start, end in zip(chunk, starts, ends, strict=True)
        ]

    def to_json(self) -> dict[str, Any]:
        """Return everything that is known, for tools."""
        importance = self.importance
        return {
            "format": EXPLANATION_FORMAT,
            "version": EXPLANATION_VERSION,
            "title": self.title,
            "record": asdict(self.record),
            "text": self.text.text,
            "text_is_exact": self.text.exact,
            "token_characters": np.diff(self.text.cuts).tolist(),
            "chunks": [{**asdict(chunk), "kept": chunk.kept} for chunk in self.chunks],
            "importance": None if importance is None else [float(f"{v:.4g}") for v in importance],
            "layers": [asdict(layer) for layer in self.layers],
            "answers": [asdict(answer) for answer in self.answers],
        }


def _mask(spans: Sequence[Span], length: int) -> npt.NDArray[np.bool_]:
    mask = np.zeros(length, dtype=np.bool_)
    for start, end in spans:
        mask[start:end] = True
    return mask
