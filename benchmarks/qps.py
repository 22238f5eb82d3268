# SPDX-License-Identifier: Apache-2.0
"""The highest request rate that keeps an objective, dense against sparse.

Open-loop Poisson load of mixed prompt lengths. Both ways get the same prompts and, up to the scale
of the rate, the same arrivals, on one server, in turn. The objective is that the 90th percentile of
the time to first token stays under a bound that a dense prefill meets alone: a multiple of the
dense median without load.
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

_TARGET = "grown:smollm2-x4"
_SENTENCES = (14, 18, 24)  # about 320 to 530 tokens
_BOUND = 4.0
_PERCENT = 90
_FEWEST, _MOST = 10, 60
# Rates to try, as multiples of the rate at which dense requests would follow each other closely.
_RATES = (0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0, 5.6)


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
    if options.smoke or options.config is not None:
        settings = deployment(options, selection={"min_prompt_tokens": 128})
    else:
        settings = deployment(options, target_model=_TARGET, selection={"min_prompt_tokens": 128})
    model = settings.target.model
    folder = resolve_model(model, progress.console.print)
    ways = (Way("dense", 1.0), Way("sparse", settings.selection.keep_rate))
    with TritonServer(settings) as server:
        endpoint = TritonEndpoint(server.grpc_url)
        alone = {way.name: _alone(endpoint, way) for way in ways}
        bound = _BOUND * statistics.median(alone["dense"])
        busy = 1 / statistics.mean(alone["dense"])
        requests = _requests_per_run(options, busy)
        unfinished: list[str] = []
        objective = Objective({("ttft", _PERCENT): bound})
        runs: list[dict[str, Any]] = []
        waiting = {way: _ladder(busy, statistics.mean(alone[way.name])) for way in ways}
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
        "requests_per_rate": requests,
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


def _ladder(busy: float, alone: float) -> list[float]:
    """Return the rates to try, from half of what one way could serve without any gap.

    Args:
        busy: requests per second that dense requests without gaps would come at.
        alone: mean seconds of this way's requests without load.
    """
    rates = [multiple * busy for multiple in _RATES]
    lower = sum(rate <= 0.5 / alone for rate in rates)
    return rates[max(0, lower - 1) :]


def _requests_per_run(options: Options, busy: float) -> int:
    """Spread the time over four rates of each way, from half of its capacity to above it."""
    if options.smoke:
        return 3
    return max(_FEWEST, min(_MOST, math.floor(options.seconds * busy / 8)))


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
        "sent_rate": report.sent_rate if math.isfinite(report.sent_rate) else None,
        "ttft_p50": percentile(50),
        "ttft_p90": percentile(_PERCENT),
        "counts": report.counts(),
        "broken": broken,
    }
