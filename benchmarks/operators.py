# SPDX-License-Identifier: Apache-2.0
"""Which operators a prefill spends its time in, beside what they would take at best."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from rich.progress import Progress
from specprefill.cost_model import Pass, Rates, draft_passes, prefill_pass
from specprefill.embedded_model import resolve_model
from specprefill.engines import make_draft, speculator_of
from specprefill.prompt import Prompt
from specprefill.quality.probe import TargetProbe

from benchmarks.deployments import deployment
from benchmarks.ideal import ideal_of
from benchmarks.options import SMOKE_TOKENS, Options

TITLE = "Operators"

LINEAR, ATTENTION, OTHER, OUTSIDE = "linear layers", "attention", "other operators", "outside"
_LENGTH = 4000
_WARM_UP_TOKENS = 256
# Parts of operators' names -> what they belong to.
_GROUPS = {
    "scaled_dot_product": ATTENTION,
    "mm": LINEAR,
    "linear": LINEAR,
    "addmv": LINEAR,
}


def measure(options: Options, progress: Progress) -> dict[str, Any]:
    """Profile the target's dense and sparse prefill and the draft's reading, one prompt each."""
    settings = deployment(options)
    length = SMOKE_TOKENS if options.smoke else _LENGTH
    prompt = np.random.default_rng(0).integers(100, 20_000, length).astype(np.int32)
    ideal = ideal_of(settings, options)
    chosen = settings.selection.for_request({"min_prompt_tokens": 0})
    speculator = speculator_of(make_draft(settings), settings)
    kept = speculator.speculate(Prompt(prompt), chosen).selection.kept
    probe = TargetProbe(resolve_model(settings.target.model), settings.target)
    whole = np.arange(length, dtype=np.int32)
    probe.prefill(prompt[:_WARM_UP_TOKENS], whole[:_WARM_UP_TOKENS], _WARM_UP_TOKENS, 1)
    (reading,) = draft_passes(ideal.draft, replace(ideal.work, look_ahead=1), length)
    runs: dict[str, tuple[Callable[[], object], Pass, Rates]] = {
        "target, whole prompt": (
            lambda: probe.prefill(prompt, whole, length, 1),
            prefill_pass(ideal.target, length),
            ideal.target_rates,
        ),
        "target, kept tokens": (
            lambda: probe.prefill(prompt[kept], kept, length, 1),
            prefill_pass(ideal.target, len(kept)),
            ideal.target_rates,
        ),
        "draft": (
            lambda: speculator.speculate(Prompt(prompt), chosen),
            reading,
            ideal.draft_rates,
        ),
    }
    rows = []
    task = progress.add_task("operators", total=len(runs))
    for name, (run, work, rates) in runs.items():
        progress.update(task, description=f"operators: {name}")
        seconds, parts = _profile(run, options.device)
        rows.append(
            {
                "run": name,
                "tokens": len(kept) if name == "target, kept tokens" else length,
                "seconds": seconds,
                "parts": parts,
                "ideal": {
                    LINEAR: work.linear / rates.linear,
                    ATTENTION: work.attention / rates.attention,
                },
            }
        )
        progress.advance(task)
    return {"rows": rows}


def _profile(run: Callable[[], object], device: str) -> tuple[float, dict[str, float]]:
    """Return the seconds of a run, and of each group of operators within it."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as profiler:
        started = time.perf_counter()
        run()
        if device == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - started
    parts = dict.fromkeys((LINEAR, ATTENTION, OTHER), 0.0)
    for event in profiler.key_averages():
        own = event.self_device_time_total if device == "cuda" else event.self_cpu_time_total
        parts[_group(event.key)] += own / 1e6
    # On a GPU operators run beside Python; there is no time outside to tell.
    parts[OUTSIDE] = max(0.0, seconds - sum(parts.values())) if device == "cpu" else 0.0
    return seconds, parts


def _group(operator: str) -> str:
    if operator.endswith("bmm"):  # scoring: queries times keys
        return OTHER
    return next((group for part, group in _GROUPS.items() if part in operator), OTHER)
