# SPDX-License-Identifier: Apache-2.0
"""RequestResult: what one request measured."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Status = Literal["ok", "timeout", "busy", "error"]
METRICS = ("ttft", "inter_token", "latency")


@dataclass(frozen=True, slots=True)
class RequestResult:
    """What one request measured. Times are counted from its planned arrival.

    Attributes:
        index: place in the order of arrival.
        query: the query's name.
        status: `ok`, `timeout` (given up by the client), `busy` (refused) or `error`.
        arrival_seconds: planned arrival, from the start of the run.
        client_lag_seconds: how much later the client really sent it.
        ttft_seconds: until the first piece of the answer; None if none came.
        latency_seconds: until the answer was complete, given up or refused.
        tokens: tokens of the answer that came.
        text: the answer as far as it came.
        message: the server's sentence if it refused or failed.
        statistics: what the server told, for example kept_tokens.
    """

    index: int
    query: str
    status: Status
    arrival_seconds: float
    client_lag_seconds: float
    ttft_seconds: float | None
    latency_seconds: float
    tokens: int
    text: str = ""
    message: str = ""
    statistics: Mapping[str, Any] = field(default_factory=dict)

    def seconds(self, metric: str) -> float | None:
        """Return one of `METRICS`; infinite where the answer never came so far, None where unknown.

        `inter_token` is the mean gap between the tokens after the first; it needs two of them.
        """
        if metric == "ttft":
            return math.inf if self.ttft_seconds is None else self.ttft_seconds
        if self.status != "ok":
            return math.inf
        if metric == "latency":
            return self.latency_seconds
        if self.ttft_seconds is None or self.tokens < 2:
            return None
        return (self.latency_seconds - self.ttft_seconds) / (self.tokens - 1)

    def as_json(self) -> dict[str, Any]:
        """Return all attributes by name."""
        return dataclasses.asdict(self)
