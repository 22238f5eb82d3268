# SPDX-License-Identifier: Apache-2.0
"""TargetMetrics: what the target step counts."""

from __future__ import annotations

from specprefill.generator import TextPiece
from specprefill.triton_models.metrics import Metrics


class TargetMetrics(Metrics):
    """The target's load, and the times to the first token."""

    def __init__(self) -> None:
        """Register them."""
        super().__init__()
        self._prefill_seconds = self._histogram(
            "specprefill_target_prefill_seconds", "Prefill by the target"
        )
        self._queue_seconds = self._histogram(
            "specprefill_queue_seconds", "Time waited for the target"
        )
        self._ttft_seconds = self._histogram(
            "specprefill_ttft_seconds", "Arrival to first token, in the server"
        )
        self._running = self._gauge("specprefill_running", "Requests that the target works on")
        self._waiting = self._gauge("specprefill_waiting", "Requests that wait for the target")
        self._cache_tokens = self._gauge(
            "specprefill_cache_tokens", "Tokens reserved in the target's cache"
        )

    def load(self, running: int, waiting: int, cache_tokens: int) -> None:
        """Set the target's load."""
        with self._lock:
            self._running.set(running)
            self._waiting.set(waiting)
            self._cache_tokens.set(cache_tokens)

    def first_token(self, piece: TextPiece, ttft_seconds: float) -> None:
        """Count one prefill of the target."""
        with self._lock:
            self._prefill_seconds.observe(piece.prefill_ms / 1e3)
            self._queue_seconds.observe(piece.queue_ms / 1e3)
            self._ttft_seconds.observe(ttft_seconds)
