# SPDX-License-Identifier: Apache-2.0
"""What the gateway counts and times, for Prometheus."""

from __future__ import annotations

import time

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from openai_gateway.api_error import CLIENT_GONE

_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100)
_ENDPOINTS = frozenset(("/v1/chat/completions", "/v1/completions", "/v1/models"))


class Metrics:
    """The gateway's metrics; every application has its own."""

    def __init__(self) -> None:
        """Declare them."""
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "specprefill_gateway_requests",
            "Requests answered, by HTTP status; an error inside a stream counts as its own status",
            ("endpoint", "status"),
            registry=self._registry,
        )
        self._first_token = Histogram(
            "specprefill_gateway_first_token_seconds",
            "Arrival to first token",
            ("endpoint",),
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._total = Histogram(
            "specprefill_gateway_request_seconds",
            "Arrival to the response's end",
            ("endpoint",),
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._in_flight = Gauge(
            "specprefill_gateway_in_flight", "Requests being answered", registry=self._registry
        )

    def page(self) -> bytes:
        """Return the metrics page."""
        return generate_latest(self._registry)

    def begin(self) -> None:
        """Count a request in."""
        self._in_flight.inc()

    def first_token(self, timer: RequestTimer) -> None:
        """Record that a request has its first token."""
        self._first_token.labels(timer.endpoint).observe(timer.seconds)

    def end(self, timer: RequestTimer, status: int) -> None:
        """Count a request out."""
        self._in_flight.dec()
        self._requests.labels(timer.endpoint, status).inc()
        self._total.labels(timer.endpoint).observe(timer.seconds)


class RequestTimer:
    """Time and outcome of one request.

    Attributes:
        endpoint: path, one of a few.
        failure: status of an error that came after the response's status was sent.
    """

    def __init__(self, path: str) -> None:
        """Start."""
        if path.startswith("/v1/models/"):
            path = "/v1/models/{model}"
        elif path not in _ENDPOINTS:
            path = "other"  # whatever clients make up must not become labels
        self.endpoint = path
        self.failure: int | None = None
        self._start = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Return the seconds since the start."""
        return time.perf_counter() - self._start


class MeteredApp:
    """ASGI middleware that counts and times every API request; others pass through."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        """Measure an application."""
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on; the handler finds its timer in the request's state."""
        if scope["type"] != "http" or not scope["path"].startswith("/v1/"):
            await self._app(scope, receive, send)
            return
        timer = RequestTimer(scope["path"])
        scope.setdefault("state", {})["timer"] = timer
        status = 500

        async def watched_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        self._metrics.begin()
        try:
            await self._app(scope, receive, watched_send)
        except OSError:  # what a server may raise when the client has gone
            timer.failure = CLIENT_GONE
            raise
        finally:
            self._metrics.end(timer, timer.failure or status)
