# SPDX-License-Identifier: Apache-2.0
"""Speculator: prompt -> selection, through the draft; a failing draft means a dense prompt."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from specprefill.break_even import BreakEvenGate
from specprefill.budget import keep_rate_for, least_kept_tokens
from specprefill.cause import Cause
from specprefill.cross_family import carry_importance
from specprefill.draft.base import DraftEngine
from specprefill.errors import (
    ConfigurationError,
    EngineError,
    RequestCancelledError,
    SpecPrefillError,
)
from specprefill.observer import AttentionObserver
from specprefill.prompt import Prompt
from specprefill.scoring import make_rule
from specprefill.segments import observe_in_segments
from specprefill.selection import Selection, keep_all, protected_mask, select
from specprefill.settings import SelectionSettings

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Speculation:
    """A selection and what it cost.

    Attributes:
        selection: the kept tokens.
        draft_ms: time the draft, the scoring and the selection took; 0 if none ran.
        draft_failed: the draft raised, and the selection is dense because of it.
        importance: float32 [M] that the selection was made from; None if no draft ran.
    """

    selection: Selection
    draft_ms: float = 0.0
    draft_failed: bool = False
    importance: npt.NDArray[np.float32] | None = None


class Speculator:
    """Decides which prompt tokens the target prefills."""

    def __init__(
        self,
        draft: DraftEngine,
        score_layers: tuple[int, int] | None = None,
        score_heads: Sequence[tuple[int, int]] | None = None,
        segment_tokens: int | None = None,
        gate: BreakEvenGate | None = None,
    ) -> None:
        """Use a draft engine.

        Args:
            draft: the engine.
            score_layers: first and last layer whose attention counts; None counts all.
            score_heads: (layer, query head) pairs that count; None counts all.
            segment_tokens: longer prompts are read in segments; None reads every prompt at once.
            gate: tells which prompts are not worth the draft; None lets all through.

        Raises:
            ConfigurationError: the draft cannot read a segment.
        """
        if segment_tokens is not None and segment_tokens > draft.context_length:
            raise ConfigurationError(
                f"draft.segment_tokens: {segment_tokens} but the draft reads at most "
                f"{draft.context_length} tokens"
            )
        self._draft = draft
        self._score_layers = score_layers
        self._score_heads = score_heads
        self._segment_tokens = segment_tokens
        self._gate = gate

    def speculate(
        self,
        prompt: Prompt,
        settings: SelectionSettings,
        cancelled: Callable[[], bool] = lambda: False,
        deadline_seconds: float | None = None,
    ) -> Speculation:
        """Select the kept tokens of one prompt.

        Args:
            prompt: the prompt.
            settings: how to score and select.
            cancelled: asked between pieces of work; True ends the draft's reading.
            deadline_seconds: the prompt goes dense if the draft is not done by then; None waits.

        Raises:
            RequestCancelledError: `cancelled` returned True while the draft ran.
        """
        length = len(prompt.token_ids)
        dense = _dense_reason(prompt, settings)
        if dense:
            cause, reason = dense
            return Speculation(keep_all(length, f"dense: {reason}", cause))
        protected = protected_mask(
            length, settings.protect_first, settings.protect_last, prompt.protected
        )
        if protected.all():
            return Speculation(keep_all(length, "dense: every token is protected", Cause.PROTECTED))
        reason = self._break_even_reason(prompt, settings, protected)
        if reason:
            return Speculation(keep_all(length, f"dense: {reason}", Cause.BREAK_EVEN))
        started = time.perf_counter()

        def too_late() -> bool:
            if deadline_seconds is None:
                return False
            return time.perf_counter() - started >= deadline_seconds

        try:
            importance = self._importance(prompt, settings, lambda: cancelled() or too_late())
        except Exception as error:  # whatever the draft does, the target can still answer
            if isinstance(error, RequestCancelledError) and (cancelled() or not too_late()):
                raise
            draft_ms = (time.perf_counter() - started) * 1e3
            if isinstance(error, RequestCancelledError):
                problem = "the draft took too long (draft.deadline_seconds)"
            else:
                problem = str(error) if isinstance(error, SpecPrefillError) else repr(error)
                _log.warning("the draft failed, prefilling densely", exc_info=True)
            whole = keep_all(length, f"dense: {problem}", Cause.DRAFT_FAILED)
            return Speculation(whole, draft_ms, draft_failed=True)
        selection = select(importance, settings, protected, prompt.borders, prompt.role_spans)
        if importance is None:
            return Speculation(selection)
        draft_ms = (time.perf_counter() - started) * 1e3
        return Speculation(selection, draft_ms, importance=importance)

    def _break_even_reason(
        self,
        prompt: Prompt,
        settings: SelectionSettings,
        protected: npt.NDArray[np.bool_],
    ) -> str:
        """Tell why pruning would not pay; empty if it may."""
        if self._gate is None:
            return ""
        length = len(prompt.token_ids)
        kept = max(least_kept_tokens(settings, length), int(protected.sum()))
        draft_tokens = length if prompt.draft_ids is None else len(prompt.draft_ids)
        return self._gate.dense_reason(make_rule(settings), length, draft_tokens, kept)

    def _importance(
        self, prompt: Prompt, settings: SelectionSettings, cancelled: Callable[[], bool]
    ) -> npt.NDArray[np.float32] | None:
        """Let the draft read the prompt; return float32 [M], or None if the rule needs no draft."""
        rule = make_rule(settings)
        if not rule.needs_draft:
            return None
        importance = observe_in_segments(
            self._draft,
            prompt.token_ids if prompt.draft_ids is None else prompt.draft_ids,
            lambda tokens: AttentionObserver(rule, tokens, self._score_layers, self._score_heads),
            self._segment_tokens,
            max(rule.prompt_queries, settings.protect_last),
            cancelled,
        )
        if prompt.draft_ids is None:
            return importance
        if prompt.draft_ranges is None:
            raise EngineError("the prompt has draft_ids but no draft_ranges")
        return carry_importance(importance, prompt.draft_ranges)


def _dense_reason(prompt: Prompt, settings: SelectionSettings) -> tuple[Cause, str] | None:
    """Tell why a prompt is dense without asking the draft; None if the draft has to be asked."""
    length = len(prompt.token_ids)
    if settings.keep_rate == 1:
        return Cause.KEEP_ALL, "keep_rate is 1"
    if prompt.dense_reason:
        return Cause.GUARD, prompt.dense_reason.removeprefix("dense: ")
    if length < settings.min_prompt_tokens:
        least = settings.min_prompt_tokens
        return Cause.SHORT, f"{length} prompt tokens, fewer than {least} (min_prompt_tokens)"
    if settings.budget == "tokens" and settings.keep_tokens >= length:
        most = settings.keep_tokens
        return Cause.KEEP_ALL, f"{length} prompt tokens, no more than {most} (keep_tokens)"
    keep_rate, source = keep_rate_for(settings, length)
    if settings.budget == "rate" and keep_rate == 1 and not settings.role_keep_rates:
        return Cause.KEEP_ALL, f"{source} is 1 for {length} prompt tokens"
    return None
