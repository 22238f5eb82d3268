# SPDX-License-Identifier: Apache-2.0
"""Explanation -> a picture for reports: importance along the prompt, kept chunks marked."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from specprefill.errors import ConfigurationError
from specprefill.explain.explanation import Explanation

# Of the Okabe-Ito palette, which colour-blind readers can tell apart.
_KEPT, _DROPPED, _PROTECTED = "#E69F00", "#B9B5AD", "#0072B2"


def save_plot(explanation: Explanation, path: Path) -> None:
    """Draw the chunk scores along the prompt and save them as PNG.

    Raises:
        ConfigurationError: matplotlib is not installed, nothing was scored, or the file cannot
            be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigurationError(
            "the picture needs matplotlib; run: pip install 'specprefill-triton[reports]'"
        ) from error
    record, chunks = explanation.record, explanation.chunks
    if record.chunk_scores is None:
        raise ConfigurationError(f"there are no scores to draw: {record.reason}")
    scores = np.asarray(record.chunk_scores)
    edges = np.append(explanation.chunk_starts, record.prompt_tokens)
    kept = np.asarray([chunk.kept_tokens * 2 > chunk.end - chunk.start for chunk in chunks])

    # A figure of its own, without pyplot's global state or a display.
    figure = Figure(figsize=(10, 3.2), layout="constrained")
    axes = figure.subplots()
    for mask, colour, label in ((~kept, _DROPPED, "dropped"), (kept, _KEPT, "kept")):
        shown = np.where(mask, scores, np.nan)
        axes.stairs(shown, edges, fill=True, color=colour, label=f"{label}: {mask.sum():,} chunks")
    # What is protected anyway, the question above all, can score a hundred times the rest.
    open_chunks = np.asarray([not chunk.protected_tokens for chunk in chunks])
    low = min(0.0, float(scores.min()))
    high = float(scores[open_chunks].max()) if open_chunks.any() else float(scores.max())
    if scores.max() > high:
        axes.text(
            1,
            1.01,
            f"protected chunks reach {scores.max():,.3g}",
            fontsize="small",
            ha="right",
            va="bottom",
            transform=axes.transAxes,
        )
    depth = 0.04 * ((high - low) or 1.0)
    protected = [(start, end - start) for start, end in record.protected]
    if protected:
        tokens = int(explanation.protected.sum())
        axes.broken_barh(
            protected, (low - depth, depth), color=_PROTECTED, label=f"protected: {tokens:,} tokens"
        )
    axes.set(
        xlim=(0, record.prompt_tokens),
        ylim=(low - depth, high + depth),
        xlabel="prompt token",
        ylabel=f"importance ({record.settings.get('scorer', 'score')})",
        title=f"{explanation.title}: kept {record.kept_tokens:,} of {record.prompt_tokens:,}",
    )
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=3, frameon=False)
    try:
        figure.savefig(path, dpi=150, format="png")
    except OSError as error:
        raise ConfigurationError(f"--png {path}: {error.strerror}") from error
