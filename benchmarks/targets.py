# SPDX-License-Identifier: Apache-2.0
"""TTFT of targets that are several times their draft, where speculative prefill is meant to pay.

Grown targets answer exactly as the embedded model, at 4 and 8 times its decoder's cost; the target
of a published shape has random weights.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.progress import Progress
from specprefill.embedded_model import resolve_model
from specprefill.model_sources.cache import remark
from specprefill.server import TritonServer
from specprefill.settings import Settings

from benchmarks.deployments import deployment, pipeline, tiny_model
from benchmarks.first_token import in_process, served
from benchmarks.ideal import ideal_of
from benchmarks.options import SMOKE_TOKENS, Options
from benchmarks.prompts import messages_of_about
from benchmarks.results import ratios, spread
from benchmarks.rounds import Cell, run_rounds

TITLE = "Targets larger than their draft"

EARLY_EXIT, SIXTEEN, LOOK_AHEAD = "early exit", "16 layers", "look-ahead"
# Draft -> configuration, and what of its draft is different.
_DRAFTS: dict[str, tuple[str, dict[str, Any]]] = {
    EARLY_EXIT: ("smollm2-cpu.yaml", {}),
    SIXTEEN: ("smollm2-cpu.yaml", {"layers": 16, "score_layers": [8, 15]}),
    LOOK_AHEAD: ("smollm2-paper.yaml", {}),
}


@dataclass(frozen=True, slots=True)
class Target:
    """One target of the figure.

    Attributes:
        model: its name.
        prompt_tokens: about this many.
        drafts: drafts to pair it with.
        share: of the figure's time.
        served: also through Triton, with the first draft.
        keep_rate: None: as configured.
    """

    model: str
    prompt_tokens: int
    drafts: tuple[str, ...]
    share: float
    served: bool = False
    keep_rate: float | None = None


TARGETS = (
    Target("grown:smollm2-x4", 1500, (EARLY_EXIT, LOOK_AHEAD), 0.4, served=True),
    Target("grown:smollm2-x8", 1500, (EARLY_EXIT, LOOK_AHEAD), 0.38),
    Target("shape:llama-3.2-1b", 800, (EARLY_EXIT,), 0.22),
)


def measure(options: Options, progress: Progress) -> dict[str, Any]:
    """Measure each target with its drafts; dense and all drafts share every round."""
    targets = TARGETS
    if options.smoke:
        tiny = str(tiny_model(options.output))
        targets = (Target(tiny, SMOKE_TOKENS, (EARLY_EXIT, LOOK_AHEAD), 1.0),)
    elif options.config is not None:
        own = deployment(options).target.model
        targets = (Target(own, 4000, ("own",), 1.0),)
    rows = []
    for target in targets:
        rows += measure_target(target, options, progress)
    return {"rows": rows}


def measure_target(target: Target, options: Options, progress: Progress) -> list[dict[str, Any]]:
    """Measure one target with its drafts; dense and all drafts share every round.

    Returns:
        One row per draft.
    """
    folder = resolve_model(target.model, progress.console.print)
    messages = messages_of_about(target.prompt_tokens, folder)
    settings = {draft: _deployment(options, draft, target, folder) for draft in target.drafts}
    for chosen in settings.values():
        ideal_of(chosen, options)
    first = target.drafts[0]
    with ExitStack() as loaded:
        pipelines = {
            draft: loaded.enter_context(pipeline(chosen)) for draft, chosen in settings.items()
        }
        cells: dict[str, Cell] = {"dense": partial(in_process, pipelines[first], messages, 1.0)}
        for draft, chosen in settings.items():
            rate = chosen.selection.keep_rate
            cells[draft] = partial(in_process, pipelines[draft], messages, rate)
        if target.served:
            server = loaded.enter_context(TritonServer(settings[first]))
            for name, rate in (("dense", 1.0), (first, settings[first].selection.keep_rate)):
                cells[f"{name}, served"] = partial(
                    served, server.grpc_url, "specprefill", messages, rate
                )
        samples = run_rounds(cells, target.share * options.seconds, progress, target.model)
    rows = []
    for draft, chosen in settings.items():
        ideal = ideal_of(chosen, options)
        dense, sparse = samples["dense"]["ttft"], samples[draft]["ttft"]
        prompt, kept = (int(samples[draft][key][0]) for key in ("prompt_tokens", "kept_tokens"))
        best = ideal.times(prompt, kept)
        row: dict[str, Any] = {
            "target": target.model if not options.smoke else "tiny",
            "remark": remark(folder),
            "draft_kind": draft,
            "keep_rate": settings[draft].selection.keep_rate,
            "prompt_tokens": prompt,
            "kept_tokens": kept,
            "dense": spread(dense),
            "sparse": spread(sparse),
            "draft": spread(samples[draft]["draft"]),
            "ratio": ratios(dense, sparse),
            "ideal_ratio": best.ratio,
            "ideal_dense": best.dense,
            "ideal_sparse": best.sparse,
            "rates": ideal.as_json(),
        }
        if target.served and draft == first:
            served_dense = samples["dense, served"]["ttft"]
            row["served_ratio"] = ratios(served_dense, samples[f"{draft}, served"]["ttft"])
        rows.append(row)
    return rows


def _deployment(options: Options, draft: str, target: Target, folder: Path) -> Settings:
    config, changes = _DRAFTS.get(draft, (None, {}))
    keep_rate = {} if target.keep_rate is None else {"keep_rate": target.keep_rate}
    return deployment(
        options, config, str(folder), draft={} if options.smoke else changes, selection=keep_rate
    )
