# SPDX-License-Identifier: Apache-2.0
"""Report: what one run at one rate measured."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from load_generator.load_plan import LoadPlan
from load_generator.request_result import METRICS, RequestResult, Status

PERCENTILES = (50, 90, 99)


@dataclass(frozen=True, slots=True)
class Report:
    """What one run measured.

    Attributes:
        endpoint: the server asked.
        plan: how requests were sent.
        results: one per request, in order of arrival.
        duration_seconds: from the first arrival to the last answer.
    """

    endpoint: Mapping[str, Any]
    plan: LoadPlan
    results: tuple[RequestResult, ...]
    duration_seconds: float

    def counts(self) -> dict[str, int]:
        """Return the number of requests per status."""
        found = Counter(result.status for result in self.results)
        return {status: found[status] for status in get_args(Status)}

    def percentile(self, metric: str, percent: float) -> float:
        """Return the nearest-rank percentile in seconds over all requests sent.

        A request whose answer never came counts as infinitely late, so that a server cannot gain
        by losing its slowest requests.

        Args:
            metric: `ttft`, `inter_token` or `latency`.
            percent: greater than 0 up to 100.

        Returns:
            Seconds; infinite where too many answers never came, NaN where nothing was measured.
        """
        known = [result.seconds(metric) for result in self.results]
        values = sorted(value for value in known if value is not None)
        return values[math.ceil(len(values) * percent / 100) - 1] if values else math.nan

    @property
    def sent_rate(self) -> float:
        """Requests per second that were really sent; a short Poisson run misses the plan's rate."""
        if len(self.results) < 2:
            return math.nan
        last = self.results[-1]
        return (len(self.results) - 1) / (last.arrival_seconds + last.client_lag_seconds)

    @property
    def tokens_per_second(self) -> float:
        """Answer tokens per second over the whole run."""
        return sum(result.tokens for result in self.results) / self.duration_seconds

    @property
    def client_lag_seconds(self) -> float:
        """How late the client was at worst; much of it means that the client was overloaded."""
        return max(result.client_lag_seconds for result in self.results)

    def as_json(self) -> dict[str, Any]:
        """Return everything, raw requests included; null where a percentile is not finite."""
        return {
            "endpoint": dict(self.endpoint),
            "plan": self.plan.as_json(),
            "duration_seconds": self.duration_seconds,
            "sent_rate": _finite(self.sent_rate),
            "tokens_per_second": self.tokens_per_second,
            "client_lag_seconds": self.client_lag_seconds,
            "counts": self.counts(),
            "percentiles": {
                metric: {f"p{p}": _finite(self.percentile(metric, p)) for p in PERCENTILES}
                for metric in METRICS
            },
            "requests": [result.as_json() for result in self.results],
        }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
