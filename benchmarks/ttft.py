# SPDX-License-Identifier: Apache-2.0
"""TTFT against prompt length and keep rate, in process and through Triton."""

from __future__ import annotations

from functools import partial
from typing import Any

from rich.progress import Progress
from specprefill.embedded_model import resolve_model
from specprefill.server import TritonServer

from benchmarks.deployments import deployment, pipeline
from benchmarks.first_token import in_process, served
from benchmarks.ideal import Ideal, ideal_of
from benchmarks.options import SMOKE_TOKENS, Options
from benchmarks.prompts import messages_of_about
from benchmarks.results import ratios, spread
from benchmarks.rounds import Cell, Samples, run_rounds

TITLE = "Time to first token"

_LENGTHS = (1000, 2000, 4000, 8000)
_SWEPT_LENGTH = 2000
_KEEP_RATES = (0.05, 0.1, 0.3, 0.5)
_SERVED = {1000: ("specprefill", "ensemble"), 4000: ("specprefill",)}


def measure(options: Options, progress: Progress) -> dict[str, Any]:
    """Measure one deployment over a grid of prompt lengths and keep rates."""
    settings = deployment(options)
    keep_rate = settings.selection.keep_rate
    folder = resolve_model(settings.target.model)
    lengths = (SMOKE_TOKENS,) if options.smoke else _LENGTHS
    swept = lengths[0] if options.smoke else _SWEPT_LENGTH
    grid = [(length, keep_rate) for length in lengths]
    grid += [(swept, rate) for rate in (_KEEP_RATES[:1] if options.smoke else _KEEP_RATES)]
    ideal_of(settings, options)
    with TritonServer(settings) as server, pipeline(server.settings) as local:
        cells: dict[str, Cell] = {}
        for length in lengths:
            messages = messages_of_about(length, folder)
            cells[f"{length} dense"] = partial(in_process, local, messages, 1.0)
            for rate in sorted(rate for at, rate in grid if at == length):
                cells[f"{length} kept {rate:g}"] = partial(in_process, local, messages, rate)
            for model in _SERVED[1000] if options.smoke else _SERVED.get(length, ()):
                for name, rate in (("dense", 1.0), (f"kept {keep_rate:g}", keep_rate)):
                    cells[f"{length} {name} {model}"] = partial(
                        served, server.grpc_url, model, messages, rate
                    )
        samples = run_rounds(cells, options.seconds, progress, "TTFT")
    ideal = ideal_of(settings, options)
    rows = [_row(samples, length, rate, ideal) for length, rate in grid]
    return {"keep_rate": keep_rate, "ideal": ideal.as_json(), "rows": rows}


def _row(samples: Samples, length: int, rate: float, ideal: Ideal) -> dict[str, Any]:
    dense, sparse = samples[f"{length} dense"], samples[f"{length} kept {rate:g}"]
    prompt, kept = int(sparse["prompt_tokens"][0]), int(sparse["kept_tokens"][0])
    best = ideal.times(prompt, kept)
    row: dict[str, Any] = {
        "length": length,
        "keep_rate": rate,
        "prompt_tokens": prompt,
        "kept_tokens": kept,
        "dense": spread(dense["ttft"]),
        "sparse": spread(sparse["ttft"]),
        "draft": spread(sparse["draft"]),
        "ratio": ratios(dense["ttft"], sparse["ttft"]),
        "ideal_ratio": best.ratio,
        "ideal_dense": best.dense,
        "ideal_sparse": best.sparse,
    }
    for model in ("specprefill", "ensemble"):
        served_sparse = samples.get(f"{length} kept {rate:g} {model}")
        if served_sparse is None:
            continue
        served_dense = samples[f"{length} dense {model}"]["ttft"]
        row[model] = {
            "dense": spread(served_dense),
            "sparse": spread(served_sparse["ttft"]),
            "ratio": ratios(served_dense, served_sparse["ttft"]),
        }
    return row
