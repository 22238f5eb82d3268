# SPDX-License-Identifier: Apache-2.0
"""Metrics of ours on Triton's page, behind one lock: two threads in its calls kill the server."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Any

import triton_python_backend_utils as pb_utils

_SECONDS = [0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100]


class Metrics:
    """The metrics of one step, all on the page from its start: what never counted reads 0."""

    def __init__(self) -> None:
        """Register what every step counts; one instance per Python process."""
        self._lock = threading.Lock()
        self._families: list[Any] = []  # a family that is collected takes its metrics with it
        self._cancelled = self._counter(
            "specprefill_cancelled", "Requests ended before their answer was"
        )

    def cancelled(self) -> None:
        """Count one cancelled request."""
        with self._lock:
            self._cancelled.increment(1)

    def _counter(self, name: str, description: str) -> Any:
        (counter,) = self._counters(name, description, ({},))
        return counter

    def _counters(
        self, name: str, description: str, labels: Iterable[Mapping[str, str]]
    ) -> list[Any]:
        """Register a counter for each set of labels."""
        family = self._family(name, description, pb_utils.MetricFamily.COUNTER)
        return [family.Metric(labels=dict(each)) for each in labels]

    def _gauge(self, name: str, description: str) -> Any:
        return self._family(name, description, pb_utils.MetricFamily.GAUGE).Metric(labels={})

    def _histogram(self, name: str, description: str) -> Any:
        """Register a histogram of seconds."""
        family = self._family(name, description, pb_utils.MetricFamily.HISTOGRAM)
        return family.Metric(labels={}, buckets=_SECONDS)

    def _family(self, name: str, description: str, kind: Any) -> Any:
        family = pb_utils.MetricFamily(name=name, description=description, kind=kind)
        self._families.append(family)
        return family
