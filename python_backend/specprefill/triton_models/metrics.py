# SPDX-License-Identifier: Apache-2.0
"""Every metric of ours, behind one lock: two threads in Triton's metric calls kill the server."""

from __future__ import annotations

import threading
from typing import Any

import triton_python_backend_utils as pb_utils

from specprefill.generator import TextPiece
from specprefill.speculator import Speculation

_SECONDS = [0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100]
_lock = threading.Lock()


class Metrics:
    """Counters and histograms on Triton's own metrics endpoint."""

    def __init__(self) -> None:
        """Register the families; one instance per Python process."""
        self._families: list[Any] = []
        self._metrics: dict[tuple[str, tuple[str, ...]], Any] = {}
        with _lock:
            kind = pb_utils.MetricFamily
            self._requests = self._family(
                "specprefill_requests", "Prompts by how they were prefilled and why", kind.COUNTER
            )
            self._prompt_tokens = self._family(
                "specprefill_prompt_tokens", "Prompt tokens received", kind.COUNTER
            )
            self._kept_tokens = self._family(
                "specprefill_kept_tokens", "Prompt tokens given to the target", kind.COUNTER
            )
            self._dropped_tokens = self._family(
                "specprefill_dropped_tokens", "Prompt tokens the target never saw", kind.COUNTER
            )
            self._memo_hits = self._family(
                "specprefill_memo_hits", "Selections remembered from an equal prompt", kind.COUNTER
            )
            self._draft_failures = self._family(
                "specprefill_draft_failures", "Prompts that went dense on a failure", kind.COUNTER
            )
            self._draft_seconds = self._family(
                "specprefill_draft_seconds", "Draft, scoring and selection", kind.HISTOGRAM
            )
            self._prefill_seconds = self._family(
                "specprefill_target_prefill_seconds", "Prefill by the target", kind.HISTOGRAM
            )
            self._queue_seconds = self._family(
                "specprefill_queue_seconds", "Time waited for the target", kind.HISTOGRAM
            )
            self._ttft_seconds = self._family(
                "specprefill_ttft_seconds", "Arrival to first token, in the server", kind.HISTOGRAM
            )
            self._draft_waiting = self._family(
                "specprefill_draft_requests", "Prompts at the draft or before it", kind.GAUGE
            )
            self._running = self._family(
                "specprefill_running", "Requests that the target works on", kind.GAUGE
            )
            self._waiting = self._family(
                "specprefill_waiting", "Requests that wait for the target", kind.GAUGE
            )
            self._cache_tokens = self._family(
                "specprefill_cache_tokens", "Tokens reserved in the target's cache", kind.GAUGE
            )
            self._cancelled = self._family(
                "specprefill_cancelled", "Requests ended before their answer was", kind.COUNTER
            )

    def draft_load(self, requests: int) -> None:
        """Set how many prompts the draft works on or has yet to."""
        with _lock:
            self._labelled(self._draft_waiting).set(requests)

    def remembered(self) -> None:
        """Count one selection that needed no draft."""
        with _lock:
            self._labelled(self._memo_hits).increment(1)

    def load(self, running: int, waiting: int, cache_tokens: int) -> None:
        """Set the target's load."""
        with _lock:
            self._labelled(self._running).set(running)
            self._labelled(self._waiting).set(waiting)
            self._labelled(self._cache_tokens).set(cache_tokens)

    def speculated(self, speculation: Speculation) -> None:
        """Count one selection."""
        selection = speculation.selection
        with _lock:
            mode = "sparse" if selection.active else "dense"
            labels = {"prefill": mode, "reason": selection.cause.value}
            self._labelled(self._requests, **labels).increment(1)
            self._labelled(self._prompt_tokens).increment(selection.prompt_length)
            self._labelled(self._kept_tokens).increment(len(selection.kept))
            dropped = selection.prompt_length - len(selection.kept)
            self._labelled(self._dropped_tokens).increment(dropped)
            if speculation.draft_failed:
                self._labelled(self._draft_failures).increment(1)
            if speculation.draft_ms:
                self._histogram(self._draft_seconds).observe(speculation.draft_ms / 1e3)

    def first_token(self, piece: TextPiece, ttft_seconds: float) -> None:
        """Count one prefill of the target."""
        with _lock:
            self._histogram(self._prefill_seconds).observe(piece.prefill_ms / 1e3)
            self._histogram(self._queue_seconds).observe(piece.queue_ms / 1e3)
            self._histogram(self._ttft_seconds).observe(ttft_seconds)

    def cancelled(self) -> None:
        """Count one cancelled request."""
        with _lock:
            self._labelled(self._cancelled).increment(1)

    def _family(self, name: str, description: str, kind: Any) -> Any:
        family = pb_utils.MetricFamily(name=name, description=description, kind=kind)
        self._families.append(family)
        return family

    def _labelled(self, family: Any, **labels: str) -> Any:
        key = (str(id(family)), tuple(labels.values()))
        if key not in self._metrics:
            self._metrics[key] = family.Metric(labels=labels)
        return self._metrics[key]

    def _histogram(self, family: Any) -> Any:
        key = (str(id(family)), ())
        if key not in self._metrics:
            self._metrics[key] = family.Metric(labels={}, buckets=_SECONDS)
        return self._metrics[key]
