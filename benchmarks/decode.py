# SPDX-License-Identifier: Apache-2.0
"""Decoding: throughput against concurrency, and speed after a sparse and after a dense prefill."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from rich.progress import Progress
from specprefill.embedded_model import resolve_model
from specprefill.pipeline import Pipeline

from benchmarks.deployments import deployment, pipeline
from benchmarks.options import SMOKE_TOKENS, Options
from benchmarks.prompts import messages_of_about
from benchmarks.results import ratios, spread
from benchmarks.rounds import Cell, run_rounds

TITLE = "Decoding"

_CONCURRENCY = (1, 2, 4, 8, 16, 32)
_TOKENS = 48
_LENGTHS = (4000,)


def measure(options: Options, progress: Progress) -> dict[str, Any]:
    """Measure both halves in the same rounds."""
    concurrency = _CONCURRENCY[:2] if options.smoke else _CONCURRENCY
    tokens = 8 if options.smoke else _TOKENS
    settings = deployment(
        options, target={"max_running": concurrency[-1], "max_queue": concurrency[-1]}
    )
    keep_rate = settings.selection.keep_rate
    folder = resolve_model(settings.target.model)
    cells: dict[str, Cell] = {}
    with pipeline(settings) as local:
        for number in concurrency:
            cells[f"{number} at once"] = partial(_throughput, local, number, tokens)
        for length in (SMOKE_TOKENS,) if options.smoke else _LENGTHS:
            messages = messages_of_about(length, folder)
            for way, rate in (("dense", 1.0), ("sparse", keep_rate)):
                cells[f"{length} {way}"] = partial(_speed, local, messages, rate, tokens)
        samples = run_rounds(cells, options.seconds, progress, "decoding")
    rows = []
    for length in (SMOKE_TOKENS,) if options.smoke else _LENGTHS:
        dense, sparse = samples[f"{length} dense"], samples[f"{length} sparse"]
        rows.append(
            {
                "prompt_tokens": int(dense["prompt_tokens"][0]),
                "kept_tokens": int(sparse["kept_tokens"][0]),
                "dense": spread(dense["per_second"]),
                "sparse": spread(sparse["per_second"]),
                "ratio": ratios(sparse["per_second"], dense["per_second"]),
            }
        )
    return {
        "tokens": tokens,
        "concurrency": [
            {"concurrency": n, "per_second": spread(samples[f"{n} at once"]["per_second"])}
            for n in concurrency
        ],
        "after_prefill": rows,
    }


def _throughput(local: Pipeline, number: int, tokens: int) -> dict[str, float]:
    """Return tokens per second of all answers together; their prompts are a few tokens."""
    sampling = {"max_tokens": tokens, "min_tokens": tokens}
    started = time.perf_counter()
    running = [
        local.start(text=f"Story {index}. Once upon a time", sampling=sampling)
        for index in range(number)
    ]
    generated = sum(len(piece.token_ids) for one in running for piece in one.pieces)
    return {"per_second": generated / (time.perf_counter() - started)}


def _speed(local: Pipeline, messages: str, keep_rate: float, tokens: int) -> dict[str, float]:
    """Return tokens per second of one answer after its first token."""
    generation = local.start(
        messages=messages,
        selection={"keep_rate": keep_rate},
        sampling={"max_tokens": tokens, "min_tokens": tokens},
    )
    first = next(generation.pieces)
    started = time.perf_counter()
    later = sum(len(piece.token_ids) for piece in generation.pieces)
    seconds = time.perf_counter() - started
    selection = generation.speculation.selection
    return {
        "per_second": later / seconds,
        "first": len(first.token_ids),
        "prompt_tokens": selection.prompt_length,
        "kept_tokens": len(selection.kept),
    }
