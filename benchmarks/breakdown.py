# SPDX-License-Identifier: Apache-2.0
"""Where the time to the first token goes, in process, and what Triton adds to it."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from rich.progress import Progress
from specprefill import speculator
from specprefill.draft import torch_draft
from specprefill.embedded_model import resolve_model
from specprefill.observer import AttentionObserver
from specprefill.pipeline import Pipeline
from specprefill.prompt import PromptEncoder
from specprefill.server import TritonServer
from specprefill.target.base import TargetEngine

from benchmarks.deployments import deployment, pipeline
from benchmarks.first_token import in_process, served
from benchmarks.options import SMOKE_TOKENS, Options
from benchmarks.prompts import messages_of_about
from benchmarks.results import spread
from benchmarks.rounds import Cell, run_rounds
from benchmarks.spans import Spans

TITLE = "Where the time goes"

PARTS = (
    "tokenise", "draft prefill", "look-ahead", "scoring", "selection", "transfer",
    "target prefill", "first token out",
)  # fmt: skip

_LENGTH, _LONG = 4000, 8000
_OVERHEAD_REPEATS = 15


def measure(options: Options, progress: Progress) -> dict[str, Any]:
    """Split dense and sparse prefill, with and without look-ahead; then what Triton adds."""
    length, long = (SMOKE_TOKENS, 2 * SMOKE_TOKENS) if options.smoke else (_LENGTH, _LONG)
    early = deployment(options)
    # The stop token must not end the look-ahead early: its full length is what is measured.
    paper = deployment(options, "smollm2-paper.yaml", selection={"ignore_eos": True})
    folder = resolve_model(early.target.model)
    messages, longer = messages_of_about(length, folder), messages_of_about(long, folder)
    spans = Spans(options.device)
    with pipeline(early) as first, pipeline(paper) as second, spans.record(_places()):
        cells: dict[str, Cell] = {"dense": partial(_split, spans, first, messages, 1.0)}
        for prompt, suffix in ((messages, ""), (longer, ", long prompt")):
            cells[f"sparse{suffix}"] = partial(
                _split, spans, first, prompt, early.selection.keep_rate
            )
            cells[f"sparse, look-ahead{suffix}"] = partial(
                _split, spans, second, prompt, paper.selection.keep_rate
            )
        samples = run_rounds(cells, 0.6 * options.seconds, progress, "breakdown")
    return {
        "rows": [
            {
                "way": way,
                "prompt_tokens": int(values["prompt_tokens"][0]),
                "kept_tokens": int(values["kept_tokens"][0]),
                "parts": {part: spread(values[part]) for part in PARTS},
                "ttft": spread(values["ttft"]),
            }
            for way, values in samples.items()
        ],
        "triton_adds": _triton_adds(options, progress, messages),
    }


def _places() -> dict[str, Any]:
    return {
        "tokenise": (PromptEncoder, "encode"),
        "read": (torch_draft._Reading, "prompt"),
        "look-ahead": (torch_draft._Reading, "look_ahead"),
        "update": (AttentionObserver, "update"),
        "importance": (AttentionObserver, "importance"),
        "selection": (speculator, "select"),
        "submit": (TargetEngine, "submit"),
    }


def _split(spans: Spans, local: Pipeline, messages: str, keep_rate: float) -> dict[str, float]:
    """Run one request; return the seconds of every part of `PARTS` and of the whole."""
    spans.clear()
    started = time.perf_counter()
    generation = local.start(
        messages=messages, selection={"keep_rate": keep_rate}, sampling={"max_tokens": 1}
    )
    piece = next(generation.pieces)
    ended = time.perf_counter()
    for _ in generation.pieces:
        pass
    chosen = generation.speculation.selection
    sparse = generation.speculation.draft_ms > 0
    decided = spans.end("selection" if sparse else "tokenise")
    waiting = (piece.queue_ms + piece.prefill_ms) / 1e3
    update, look_ahead = spans.seconds("update"), spans.seconds("look-ahead")
    # Scoring runs inside the draft's passes; here each counts once.
    in_look_ahead = spans.seconds_within("update", "look-ahead")
    return {
        "tokenise": spans.seconds("tokenise"),
        "draft prefill": spans.seconds("read") - (update - in_look_ahead),
        "look-ahead": look_ahead - in_look_ahead,
        "scoring": update + spans.seconds("importance"),
        "selection": spans.seconds("selection"),
        "transfer": spans.end("submit") - decided,
        "target prefill": waiting,
        "first token out": max(0.0, ended - spans.end("submit") - waiting),
        "ttft": ended - started,
        "prompt_tokens": chosen.prompt_length,
        "kept_tokens": len(chosen.kept),
    }


def _triton_adds(options: Options, progress: Progress, messages: str) -> dict[str, Any]:
    """Compare a prompt that travels whole and is kept to almost nothing, so that models are short.

    Every long run of the models varies by more than the few milliseconds that are looked for.
    """
    settings = deployment(
        options,
        draft={"layers": 1, "score_layers": [0, 0]},
        selection={"protect_last": 1, "protect_first": 0, "min_prompt_tokens": 0},
    )
    with TritonServer(settings) as server, pipeline(server.settings) as local:
        cells: dict[str, Cell] = {"in process": partial(in_process, local, messages, 0.01)}
        for model in ("specprefill", "ensemble"):
            cells[model] = partial(served, server.grpc_url, model, messages, 0.01)
        samples: dict[str, list[float]] = {name: [] for name in cells}
        task = progress.add_task("what Triton adds", total=_OVERHEAD_REPEATS)
        for _ in range(2 if options.smoke else _OVERHEAD_REPEATS):
            for name, cell in cells.items():
                samples[name].append(cell()["ttft"])
            progress.advance(task)
    base = samples["in process"]
    return {
        model: spread([s - b for s, b in zip(samples[model], base, strict=True)])
        for model in ("specprefill", "ensemble")
    }
