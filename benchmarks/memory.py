# SPDX-License-Identifier: Apache-2.0
"""Memory of the server's processes over many requests: does it grow?"""

from __future__ import annotations

import random
import statistics
import time
from typing import Any

import psutil
from rich.progress import Progress
from specprefill.client import stream
from specprefill.embedded_model import resolve_model
from specprefill.server import TritonServer

from benchmarks.deployments import deployment
from benchmarks.options import Options
from benchmarks.prompts import messages_of_about

TITLE = "Memory over many requests"

_LENGTHS = (200, 400, 600, 800, 1200)
_MOST_REQUESTS = 2000
# Allocators take their working set with the first requests of every length.
_WARM_UP = 0.3


def measure(options: Options, progress: Progress) -> dict[str, Any]:
    """Send requests of mixed lengths, dense and sparse, and read the processes' memory."""
    settings = deployment(options, selection={"min_prompt_tokens": 128})
    folder = resolve_model(settings.target.model)
    lengths = (200, 300) if options.smoke else _LENGTHS
    prompts = [messages_of_about(length, folder) for length in lengths]
    draw = random.Random(0)
    samples: list[dict[str, float]] = []
    with TritonServer(settings) as server:
        main = psutil.Process(server.pid)
        started = time.perf_counter()
        task = progress.add_task("memory", total=options.seconds or 1)
        number = 0
        while True:
            samples.append({"request": number, "rss_bytes": _group_memory(main)})
            elapsed = time.perf_counter() - started
            progress.update(task, completed=elapsed)
            enough = number >= 10 if options.smoke else elapsed > options.seconds
            if enough or number >= _MOST_REQUESTS:
                break
            rate = draw.choice((settings.selection.keep_rate, 1.0))
            fields = {"messages": draw.choice(prompts), "max_tokens": 4, "keep_rate": rate}
            for _ in stream(server.grpc_url, **fields):
                pass
            number += 1
    later = samples[int(_WARM_UP * len(samples)) :]
    return {
        "requests": number,
        "samples": samples,
        "start_bytes": samples[0]["rss_bytes"],
        "warm_bytes": later[0]["rss_bytes"],
        "end_bytes": later[-1]["rss_bytes"],
        "slope_bytes_per_request": _slope(later),
    }


def _group_memory(main: psutil.Process) -> float:
    """Return the memory of a process and all its children, shared pages counted once per process.

    Proportional set size would be exact, but reading it takes long on large processes.
    """
    total = 0.0
    for process in (main, *main.children(recursive=True)):
        try:
            total += process.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total


def _slope(samples: list[dict[str, float]]) -> float:
    """Return the slope of the line through the samples, by least squares."""
    if len(samples) < 2:
        return 0.0
    numbers = [sample["request"] for sample in samples]
    return statistics.linear_regression(numbers, [sample["rss_bytes"] for sample in samples]).slope
