# SPDX-License-Identifier: Apache-2.0
"""perf_analyzer against both entry models, dense and sparse, on a server started for it.

Run it with `make perf`; docs/load-testing.md has the same lines for a server that runs already.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from specprefill.cli import default_config
from specprefill.demo import QUESTION, document
from specprefill.errors import SpecPrefillError
from specprefill.perf_input import perf_input
from specprefill.server import TritonServer
from specprefill.settings import load_settings

from benchmarks.perf_analyzer import Summary, find, run, table

OVERRIDES = {
    "server": {"http_port": 0, "grpc_port": 0, "metrics_port": 0},
    # Both models get the same prompts: a remembered selection would be no measurement.
    "draft": {"memo_entries": 0},
}
MODELS = ("specprefill", "ensemble")
TIMEOUT_SECONDS = 1200


def main() -> None:
    """Measure, print the table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, default=default_config())
    parser.add_argument("--sentences", type=int, default=100, help="about 21 tokens each")
    parser.add_argument("--max-tokens", type=int, default=16)
    parser.add_argument("--requests", type=int, default=8, help="per row of the table")
    parser.add_argument("--concurrency", type=int, default=1)
    parser.add_argument("--output", type=Path, default=Path("build/perf.json"))
    arguments = parser.parse_args()
    console = Console(width=110)
    texts = (document(arguments.sentences, seed) for seed in range(arguments.requests))
    prompts = [{"messages": [{"role": "user", "content": f"{t}\n\n{QUESTION}"}]} for t in texts]
    settings = load_settings(arguments.config, OVERRIDES, environment={})
    load = ("--concurrency-range", str(arguments.concurrency))
    load += ("--request-count", str(arguments.requests))
    rows: dict[tuple[str, float], Summary] = {}
    tool = find()
    with (
        tempfile.TemporaryDirectory() as folder,
        Progress(console=console) as progress,
        TritonServer(settings) as server,
    ):
        rates = (1.0, settings.selection.keep_rate)
        task = progress.add_task("perf_analyzer", total=len(rates) * len(MODELS))
        for keep_rate in rates:
            data, export = Path(folder) / "in.json", Path(folder) / "out.json"
            sent = {"keep_rate": keep_rate}
            data.write_text(json.dumps(perf_input(prompts, arguments.max_tokens, sent)))
            for model in MODELS:
                rows[model, keep_rate] = run(
                    server.grpc_url, model, data, export, load, tool, TIMEOUT_SECONDS
                )
                progress.advance(task)
    console.print(
        table({f"{model}, keep rate {rate:g}": row for (model, rate), row in rows.items()})
    )
    report = [
        {"model": model, "keep_rate": rate, "ttft_seconds": row.ttft, "gap_seconds": row.gaps}
        for (model, rate), row in rows.items()
    ]
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(report, indent=1))
    console.print(f"written to {arguments.output}")


if __name__ == "__main__":
    try:
        main()
    except SpecPrefillError as error:
        raise SystemExit(f"error: {error}") from error
