# SPDX-License-Identifier: Apache-2.0
"""The highest request rate that keeps an objective, dense against sparse.

Open-loop Poisson load of mixed prompt lengths on one server, both ways in turn. The objective is
that the 90th percentile of the time to first token stays under a bound that a dense prefill meets
alone: a multiple of the dense median without load. Every rate is held for the same time, so that a
way that is overloaded has time to show it.
"""

from __future__ import annotations

import math
import random
import statistics
import sys
import time
from dataclasses import dataclass
from typing import Any

from rich.progress import Progress
from specprefill.demo import QUESTION, document
from specprefill.embedded_model import resolve_model
from specprefill.model_sources.cache import remark
from specprefill.server import TritonServer

from benchmarks.deployments import deployment
from benchmarks.options import ROOT, Options

sys.path.insert(0, str(ROOT / "clients"))
from load_generator import LoadPlan, Objective, Query, Report, TritonEndpoint, run

TITLE = "Requests per second under an objective"

_TARGET = "grown:smollm2-x8"
_KEEP_RATE = 0.1
_SENTENCES = (24, 32, 40)  # about 530 to 870 tokens
_BOUND = 4.0
_PERCENT = 90
_FEWEST = 3
# Rates to try, as shares of what a way could serve without a gap between its requests.
_SHARES = (0.6, 0.75, 0.9, 1.05, 1.2)
# Runs of both ways that the time is laid out for; one way rarely breaks at its third rate.
_PLANNED_RUNS = 6


@dataclass(frozen=True, slots=True)
class Way:
    """Dense or sparse.

    Attributes:
        name: of the way.
        keep_rate: of its requests.
    """

    name: str
    keep_rate: float


def measure(options: Options, progress: Progress) -> dict[str, Any]:
    """Raise the rate for both ways in turn until each breaks the objective."""
    own = options.smoke or options.config is not None
    settings = deployment(
        options,
        target_model=None if own else _TARGET,
        selection={"min_prompt_tokens": 128} | ({} if own else {"keep_rate": _KEEP_RATE}),
    )
    model = settings.target.model
    folder = resolve_model(model, progress.console.print)
    ways = (Way("dense", 1.0), Way("sparse", settings.selection.keep_rate))
    seconds = options.seconds / _PLANNED_RUNS
    with TritonServer(settings) as server:
        endpoint = TritonEndpoint(server.grpc_url)
        alone = {way.name: _alone(endpoint, way) for way in ways}
        bound = _BOUND * statistics.median(alone["dense"])
        unfinished: list[str] = []
        objective = Objective({("ttft", _PERCENT): bound})
        runs: list[dict[str, Any]] = []
        waiting = {
            way: [share / statistics.mean(alone[way.name]) for share in _SHARES] for way in ways
        }
        started = time.perf_counter()
        task = progress.add_task("rates", total=sum(map(len, waiting.values())))
        while any(waiting.values()):
            for way, rates in waiting.items():
                if not rates:
                    continue
                # Each way is tried at its lowest rate, whatever the time.
                tried = any(row["way"] == way.name for row in runs)
                if tried and time.perf_counter() - started > options.seconds:
                    progress.advance(task, len(rates))
                    unfinished.append(way.name)
                    rates.clear()
                    continue
                rate = rates.pop(0)
                progress.update(task, description=f"{way.name}, {rate:.3f}/s")
                requests = max(_FEWEST, round(rate * seconds))
                plan = LoadPlan(rate=rate, requests=requests, timeout_seconds=20 * bound, warmup=0)
                report = run(endpoint, _queries(requests, way), plan)
                broken = objective.broken_by(report)
                runs.append(_row(way, report, broken))
                progress.advance(task)
                if broken is not None:
                    progress.advance(task, len(rates))
                    rates.clear()
    return {
        "target": "tiny" if options.smoke else model,
        "remark": remark(folder),
        "keep_rate": ways[1].keep_rate,
        "bound_seconds": bound,
        "bound_multiple": _BOUND,
        "percent": _PERCENT,
        "alone": {name: statistics.median(values) for name, values in alone.items()},
        "runs": runs,
        "highest": {
            way.name: max(
                (row["rate"] for row in runs if row["way"] == way.name and row["broken"] is None),
                default=None,
            )
            for way in ways
        },
        "unfinished": unfinished,
    }


def _alone(endpoint: TritonEndpoint, way: Way) -> list[float]:
    """Return the time to first token of one request of each length, one at a time."""
    seconds = []
    for query in _queries(len(_SENTENCES), way):
        report = run(endpoint, [query], LoadPlan(rate=1.0, requests=1, warmup=0))
        seconds.append(report.percentile("ttft", 50))
    return seconds


def _queries(number: int, way: Way) -> list[Query]:
    """Return questions about documents of mixed lengths, the same for both ways."""
    draw = random.Random(0)
    order = [_SENTENCES[index % len(_SENTENCES)] for index in range(number)]
    draw.shuffle(order)
    return [
        Query(
            f"{index}",
            1,
            messages=(
                {"role": "user", "content": f"{document(length, seed=index)}\n\n{QUESTION}"},
            ),
            settings={"keep_rate": way.keep_rate},
        )
        for index, length in enumerate(order)
    ]


def _row(way: Way, report: Report, broken: str | None) -> dict[str, Any]:
    def percentile(percent: int) -> float | None:
        value = report.percentile("ttft", percent)
        return value if math.isfinite(value) else None

    return {
        "way": way.name,
        "rate": report.plan.rate,
        "requests": report.plan.requests,
        "sent_rate": report.sent_rate if math.isfinite(report.sent_rate) else None,
        "ttft_p50": percentile(50),
        "ttft_p90": percentile(_PERCENT),
        "counts": report.counts(),
        "broken": broken,
    }
