# SPDX-License-Identifier: Apache-2.0
"""DraftMetrics: what the draft step counts."""

from __future__ import annotations

from specprefill.cause import Cause
from specprefill.speculator import Speculation
from specprefill.triton_models.metrics import Metrics


class DraftMetrics(Metrics):
    """Prompts, tokens, and the time that scoring took."""

    def __init__(self) -> None:
        """Register them."""
        super().__init__()
        requests = self._counters(
            "specprefill_requests",
            "Prompts by how they were prefilled and why",
            [{"prefill": _prefill(cause), "reason": cause.value} for cause in Cause],
        )
        self._requests = dict(zip(Cause, requests, strict=True))
        self._prompt_tokens = self._counter("specprefill_prompt_tokens", "Prompt tokens received")
        self._kept_tokens = self._counter(
            "specprefill_kept_tokens", "Prompt tokens given to the target"
        )
        self._dropped_tokens = self._counter(
            "specprefill_dropped_tokens", "Prompt tokens the target never saw"
        )
        self._memo_hits = self._counter(
            "specprefill_memo_hits", "Selections remembered from an equal prompt"
        )
        self._failures = self._counter(
            "specprefill_draft_failures", "Prompts that went dense on a failure"
        )
        self._seconds = self._histogram("specprefill_draft_seconds", "Draft, scoring and selection")
        self._waiting = self._gauge(
            "specprefill_draft_requests", "Prompts at the draft or before it"
        )

    def draft_load(self, requests: int) -> None:
        """Set how many prompts the draft works on or has yet to."""
        with self._lock:
            self._waiting.set(requests)

    def remembered(self) -> None:
        """Count one selection that needed no draft."""
        with self._lock:
            self._memo_hits.increment(1)

    def speculated(self, speculation: Speculation) -> None:
        """Count one selection."""
        selection = speculation.selection
        kept = len(selection.kept)
        with self._lock:
            self._requests[selection.cause].increment(1)
            self._prompt_tokens.increment(selection.prompt_length)
            self._kept_tokens.increment(kept)
            self._dropped_tokens.increment(selection.prompt_length - kept)
            if speculation.draft_failed:
                self._failures.increment(1)
            if speculation.draft_ms:
                self._seconds.observe(speculation.draft_ms / 1e3)


def _prefill(cause: Cause) -> str:
    return "sparse" if cause is Cause.PRUNED else "dense"
