# SPDX-License-Identifier: Apache-2.0
"""Objective: what a run must keep to hold its rate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from load_generator.report import Report


@dataclass(frozen=True, slots=True)
class Objective:
    """A rate holds if answers come in time and nothing fails.

    Attributes:
        limits: (metric, percent) -> seconds, for example {("ttft", 90): 5.0}.
        tolerated_timeouts: requests that may run into the client's timeout or be refused as busy;
            the paper tolerated 4.
    """

    limits: Mapping[tuple[str, int], float] = field(default_factory=dict)
    tolerated_timeouts: int = 0

    def broken_by(self, report: Report) -> str | None:
        """Say what a run broke, or None if it held."""
        counts = report.counts()
        if counts["error"]:
            message = next(r.message for r in report.results if r.status == "error")
            return f"{counts['error']} errors, the first: {message}"
        late = counts["timeout"] + counts["busy"]
        if late > self.tolerated_timeouts:
            return (
                f"{counts['timeout']} timeouts and {counts['busy']} busy refusals, "
                f"tolerated: {self.tolerated_timeouts}"
            )
        for (metric, percent), seconds in self.limits.items():
            value = report.percentile(metric, percent)
            if not value <= seconds:  # NaN where nothing was measured
                return f"{metric} p{percent} {value:.2f} s, limit: {seconds:g} s"
        return None
