# SPDX-License-Identifier: Apache-2.0
"""TTFT dense against sparse, in process and through Triton, for the two embedded configurations.

Dense and sparse, in process and served, are interleaved in one run on an otherwise idle machine;
the table shows medians. Run it with `make bench-quick`.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from specprefill.cli import default_config
from specprefill.client import stream
from specprefill.demo import demo_messages
from specprefill.embedded_model import resolve_model
from specprefill.observer import AttentionObserver
from specprefill.pipeline import Pipeline
from specprefill.server import TritonServer
from specprefill.settings import Settings, load_settings

# Sentences of the generated document -> about 4,000 and 6,000 prompt tokens.
LENGTHS = (198, 297)
FREE_PORTS = {"server": {"http_port": 0, "grpc_port": 0, "metrics_port": 0}}


class ScoringClock:
    """Adds up the time that the observer spends, by wrapping its two methods."""

    def __init__(self) -> None:
        self.seconds = 0.0
        for name in ("update", "importance"):
            setattr(AttentionObserver, name, self._timed(getattr(AttentionObserver, name)))

    def _timed(self, method: Any) -> Any:
        def timed(*args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            try:
                return method(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - started

        return timed


def served_ttft(url: str, model: str, messages: str, keep_rate: float) -> float:
    """Seconds from sending a request to its first response, at the client."""
    started = time.perf_counter()
    pieces = stream(url, model, messages=messages, max_tokens=1, keep_rate=keep_rate)
    next(pieces)
    elapsed = time.perf_counter() - started
    for _ in pieces:
        pass
    return elapsed


def measure(
    name: str,
    settings: Settings,
    lengths: tuple[int, ...],
    repeats: int,
    clock: ScoringClock,
    progress: Progress,
) -> list[dict[str, Any]]:
    """Return one row per prompt length for one configuration."""
    keep_rate = settings.selection.keep_rate
    rows = []
    started = time.perf_counter()
    with TritonServer(settings) as server:
        ready_seconds = time.perf_counter() - started
        pipeline = Pipeline(server.settings)
        task = progress.add_task(name, total=len(lengths) * repeats)
        for sentences in lengths:
            messages = demo_messages(sentences)
            times: dict[str, list[float]] = {}
            for _ in range(repeats):
                for way, rate in (("dense", 1.0), ("sparse", keep_rate)):
                    clock.seconds = 0.0
                    seconds, generation = pipeline.time_to_first_token(
                        messages=messages,
                        selection={"keep_rate": rate},
                        sampling={"max_tokens": 1},
                    )
                    for _piece in generation.pieces:
                        pass
                    times.setdefault(f"{way} in process", []).append(seconds)
                    if way == "sparse":
                        draft = generation.speculation.draft_ms / 1e3
                        times.setdefault("draft", []).append(draft)
                        times.setdefault("scoring share", []).append(clock.seconds / draft)
                    for model in ("specprefill", "ensemble"):
                        times.setdefault(f"{way} {model}", []).append(
                            served_ttft(server.grpc_url, model, messages, rate)
                        )
                progress.advance(task)
            medians = {key: statistics.median(values) for key, values in times.items()}
            selection = generation.speculation.selection
            rows.append(
                {
                    "configuration": name,
                    "prompt_tokens": selection.prompt_length,
                    "kept_tokens": len(selection.kept),
                    "ready_seconds": ready_seconds,
                    "medians": medians,
                    "all": times,
                }
            )
        pipeline.close()
    return rows


def overhead(settings: Settings, repeats: int, progress: Progress) -> dict[str, float]:
    """What Triton adds: TTFT of a 4,000-token prompt that is kept to almost nothing.

    The prompt travels whole, the models run only on a few of its tokens (every long run of the
    models varies by more than the few milliseconds that are looked for).
    """
    settings = settings.model_copy(
        update={
            "draft": settings.draft.model_copy(update={"layers": 1, "score_layers": (0, 0)}),
            "selection": settings.selection.model_copy(update={"protect_last": 1}),
        }
    )
    messages = demo_messages(LENGTHS[0])
    times: dict[str, list[float]] = {"in process": [], "specprefill": [], "ensemble": []}
    with TritonServer(settings) as server:
        pipeline = Pipeline(server.settings)
        task = progress.add_task("what Triton adds", total=repeats)
        for _ in range(repeats):
            seconds, generation = pipeline.time_to_first_token(
                messages=messages, selection={"keep_rate": 0.01}, sampling={"max_tokens": 1}
            )
            for _piece in generation.pieces:
                pass
            times["in process"].append(seconds)
            for model in ("specprefill", "ensemble"):
                times[model].append(served_ttft(server.grpc_url, model, messages, 0.01))
            progress.advance(task)
        pipeline.close()
    base = statistics.median(times["in process"])
    return {
        model: 1e3 * (statistics.median(times[model]) - base)
        for model in ("specprefill", "ensemble")
    }


def main() -> None:
    """Measure, print the table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path, default=Path("build/bench-quick.json"))
    arguments = parser.parse_args()
    console = Console(width=150)
    resolve_model("smollm2", console.print)
    configs = default_config().parent
    default = load_settings(configs / "smollm2-cpu.yaml", FREE_PORTS, environment={})
    paper = load_settings(configs / "smollm2-paper.yaml", FREE_PORTS, environment={})
    clock = ScoringClock()
    with Progress(console=console) as progress:
        rows = measure("smollm2-cpu", default, LENGTHS, arguments.repeats, clock, progress)
        rows += measure("smollm2-paper", paper, LENGTHS[:1], 1, clock, progress)
        added = overhead(default, 15, progress)
    console.print(table(rows))
    console.print(
        f"Triton adds {added['specprefill']:.1f} ms (specprefill) and {added['ensemble']:.1f} ms "
        f"(ensemble) at {rows[0]['prompt_tokens']} tokens. "
        f"Ready {rows[0]['ready_seconds']:.1f} s after the start."
    )
    report = {
        "machine": platform.processor() or platform.machine(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "rows": rows,
        "triton_adds_ms": added,
    }
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(report, indent=1))
    console.print(f"written to {arguments.output}")


def table(rows: list[dict[str, Any]]) -> Table:
    """Lay the medians out, one row per configuration and prompt length."""
    out = Table(title="TTFT, medians of one interleaved run")
    columns = (
        "configuration", "prompt", "kept", "dense", "sparse", "ratio", "served dense",
        "served sparse", "served ratio", "ensemble ratio", "draft", "scoring/draft",
    )  # fmt: skip
    for column in columns:
        out.add_column(column, justify="left" if column == "configuration" else "right")
    for row in rows:
        m = row["medians"]
        out.add_row(
            row["configuration"],
            str(row["prompt_tokens"]),
            str(row["kept_tokens"]),
            f"{m['dense in process']:.2f} s",
            f"{m['sparse in process']:.2f} s",
            f"{m['dense in process'] / m['sparse in process']:.2f}",
            f"{m['dense specprefill']:.2f} s",
            f"{m['sparse specprefill']:.2f} s",
            f"{m['dense specprefill'] / m['sparse specprefill']:.2f}",
            f"{m['dense ensemble'] / m['sparse ensemble']:.2f}",
            f"{m['draft']:.2f} s",
            f"{m['scoring share']:.1%}",
        )
    return out


if __name__ == "__main__":
    main()
