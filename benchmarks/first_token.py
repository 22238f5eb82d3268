# SPDX-License-Identifier: Apache-2.0
"""One request, timed to its first token: in this process, or through a server."""

from __future__ import annotations

import time
from typing import Any

from specprefill.client import stream
from specprefill.pipeline import Pipeline


def in_process(pipeline: Pipeline, messages: str, keep_rate: float) -> dict[str, float]:
    """Return seconds to the first token, draft seconds, prompt tokens and kept tokens."""
    seconds, generation = pipeline.time_to_first_token(
        messages=messages, selection={"keep_rate": keep_rate}, sampling={"max_tokens": 1}
    )
    for _ in generation.pieces:
        pass
    speculation = generation.speculation
    return {
        "ttft": seconds,
        "draft": speculation.draft_ms / 1e3,
        "prompt_tokens": speculation.selection.prompt_length,
        "kept_tokens": len(speculation.selection.kept),
    }


def served(url: str, model: str, messages: str, keep_rate: float) -> dict[str, float]:
    """Return the same as a client of the server sees it, and the target's prefill.

    Args:
        url: host:port of the gRPC endpoint.
        model: `specprefill` or `ensemble`.
        messages: chat messages as JSON.
        keep_rate: 1 is dense.
    """
    started = time.perf_counter()
    pieces = stream(url, model, messages=messages, max_tokens=1, keep_rate=keep_rate)
    first = next(pieces)
    seconds = time.perf_counter() - started
    outputs: dict[str, Any] = dict(first.outputs)
    for piece in pieces:
        outputs |= piece.outputs
    return {
        "ttft": seconds,
        "draft": outputs["draft_ms"] / 1e3,
        "target_prefill": outputs["target_prefill_ms"] / 1e3,
        "prompt_tokens": outputs["prompt_tokens"],
        "kept_tokens": outputs["kept_tokens"],
    }
