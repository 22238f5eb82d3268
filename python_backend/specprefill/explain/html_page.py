# SPDX-License-Identifier: Apache-2.0
"""Explanation -> one self-contained HTML page: no request leaves it, no text of it runs."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np
import numpy.typing as npt

from specprefill.errors import ConfigurationError
from specprefill.explain.explanation import BAND_NAMES, Chunk, Explanation, LayerPeak
from specprefill.explain.text_html import TextHtml

# Shades of importance; chunks are shaded by rank, so that a few sharp peaks leave the rest legible.
LEVELS = 10
# Beyond this many tokens the page shows no importance of single tokens, to bound its size.
MAX_TOKEN_DETAIL = 200_000
_LISTED_CHUNKS = 8
_CHART_WIDTH, _PEAK_HEIGHT, _LEAD_HEIGHT = 320, 96, 28


@dataclass(frozen=True, slots=True)
class LayerMark:
    """Where the chart shows one layer, in SVG units.

    Attributes:
        peak: the layer.
        x: centre of its column.
        kept_y: height of its kept peak; None if there is none.
        dropped_y: height of its dropped peak; None if there is none.
        lead_height: height of the bar that tells how often it leads.
    """

    peak: LayerPeak
    x: float
    kept_y: float | None
    dropped_y: float | None
    lead_height: float


def render_page(explanation: Explanation) -> str:
    """Render the page.

    Raises:
        ConfigurationError: jinja2 is not installed.
    """
    try:
        from jinja2 import Environment, StrictUndefined
        from markupsafe import Markup
    except ImportError as error:
        raise ConfigurationError(
            "the page needs jinja2; run: pip install 'specprefill-triton[reports]'"
        ) from error
    template, style, script = (_resource(f"page.{kind}") for kind in ("html.j2", "css", "js"))
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["thousands"] = lambda number: f"{number:,}"
    chunks = explanation.chunks
    levels = _chunk_levels(chunks)
    return environment.from_string(template).render(
        e=explanation,
        record=explanation.record,
        chunks=chunks,
        kept_chunks=sum(chunk.kept for chunk in chunks),
        partly_kept_chunks=sum(0 < c.kept_tokens < c.end - c.start for c in chunks),
        protected_tokens=int(explanation.protected.sum()),
        bands=[name for i, name in enumerate(BAND_NAMES) if (explanation.bands == i).any()],
        best=_listed(explanation, chunks),
        worst=_listed(explanation, chunks, worst=True),
        layer_marks=_layer_marks(explanation.layers),
        chart=(_CHART_WIDTH, _PEAK_HEIGHT, _LEAD_HEIGHT),
        levels=LEVELS,
        # Markup: escaped or made safe by the functions that build them.
        text=Markup(TextHtml(explanation, levels).build()),
        data=Markup(_data_json(explanation, chunks, levels)),
        style=Markup(style),
        script=Markup(script),
        style_hash=_csp_hash(style),
        script_hash=_csp_hash(script),
    )


def _resource(name: str) -> str:
    return (resources.files("specprefill.explain") / name).read_text(encoding="utf-8")


def _csp_hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _levels(values: npt.ArrayLike) -> list[int]:
    """Return the shade of each value by its rank, [n] from 0 to LEVELS - 1."""
    order = np.argsort(values, kind="stable")
    places = np.empty(len(order), dtype=np.int64)
    places[order] = np.arange(len(order))
    levels: list[int] = (places * LEVELS // len(order)).tolist()
    return levels


def _chunk_levels(chunks: Sequence[Chunk]) -> list[int] | None:
    scores = [chunk.score for chunk in chunks if chunk.score is not None]
    return _levels(scores) if scores else None


def _data_json(explanation: Explanation, chunks: Sequence[Chunk], levels: list[int] | None) -> str:
    """Return the numbers that the page's script shows; nothing in it can end its element."""
    scored = explanation.layer_scores
    leaders = (
        np.asarray(list(explanation.by_layer))[scored.argmax(axis=0)].tolist()
        if len(scored)
        else None
    )
    data: dict[str, Any] = {
        "chunks": [
            [c.start, c.end, c.score, c.rank, c.kept_tokens, c.protected_tokens, c.role]
            for c in chunks
        ],
        "levels": levels,
        "leaders": leaders,
        "tokens": None,
    }
    importance = explanation.importance
    if importance is not None and len(importance) <= MAX_TOKEN_DETAIL:
        data["tokens"] = {
            "lengths": _utf16_lengths(explanation),
            "levels": _levels(importance),
        }
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")


def _utf16_lengths(explanation: Explanation) -> list[int]:
    """Return the length of each token's text as a browser counts it, [M]."""
    text, cuts = explanation.text.text, explanation.text.cuts
    codes = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
    before = np.append(0, np.cumsum(1 + (codes > 0xFFFF)))  # [characters + 1]
    lengths: list[int] = np.diff(before[cuts]).tolist()
    return lengths


def _listed(
    explanation: Explanation, chunks: Sequence[Chunk], worst: bool = False
) -> list[tuple[int, Chunk, str]]:
    """Return the best or the worst chunks as (index, chunk, beginning of its text)."""
    scored = [(c.rank, i) for i, c in enumerate(chunks) if c.rank is not None]
    scored.sort(reverse=worst)
    return [
        (i, chunks[i], " ".join(explanation.text.part(chunks[i].start, chunks[i].end).split()))
        for _, i in scored[:_LISTED_CHUNKS]
    ]


def _layer_marks(layers: Sequence[LayerPeak]) -> list[LayerMark]:
    peaks = [p for layer in layers for p in (layer.kept_peak, layer.dropped_peak) if p is not None]
    if not peaks:
        return []
    low, high = min(0.0, *peaks), max(peaks)
    scale = _PEAK_HEIGHT / (high - low or 1.0)
    most = max(layer.leads for layer in layers) or 1
    step = _CHART_WIDTH / len(layers)

    def height(peak: float | None) -> float | None:
        return None if peak is None else round((high - peak) * scale, 1)

    return [
        LayerMark(
            layer,
            round((i + 0.5) * step, 1),
            height(layer.kept_peak),
            height(layer.dropped_peak),
            round(layer.leads / most * _LEAD_HEIGHT, 1),
        )
        for i, layer in enumerate(layers)
    ]
