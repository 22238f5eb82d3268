# SPDX-License-Identifier: Apache-2.0
"""Speculator: prompt -> selection, through the draft; a failing draft means a dense prompt."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from specprefill.budget import keep_rate_for
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
    ) -> None:
        """Use a draft engine.

        Args:
            draft: the engine.
            score_layers: first and last layer whose attention counts; None counts all.
            score_heads: (layer, query head) pairs that count; None counts all.
            segment_tokens: longer prompts are read in segments; None reads every prompt at once.

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

    def speculate(
        self,
        prompt: Prompt,
        settings: SelectionSettings,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> Speculation:
        """Select the kept tokens of one prompt.

        Raises:
            RequestCancelledError: `cancelled` returned True while the draft ran.
        """
        length = len(prompt.token_ids)
        reason = _dense_reason(prompt, settings)
        if reason:
            return Speculation(keep_all(length, f"dense: {reason}"))
        protected = protected_mask(
            length, settings.protect_first, settings.protect_last, prompt.protected
        )
        if protected.all():
            return Speculation(keep_all(length, "dense: every token is protected"))
        started = time.perf_counter()
        try:
            importance = self._importance(prompt, settings, cancelled)
        except RequestCancelledError:
            raise
        except Exception as error:  # whatever the draft does, the target can still answer
            _log.warning("the draft failed, prefilling densely", exc_info=True)
            draft_ms = (time.perf_counter() - started) * 1e3
            problem = str(error) if isinstance(error, SpecPrefillError) else repr(error)
            return Speculation(keep_all(length, f"dense: {problem}"), draft_ms, draft_failed=True)
        selection = select(importance, settings, protected, prompt.borders, prompt.role_spans)
        if importance is None:
            return Speculation(selection)
        draft_ms = (time.perf_counter() - started) * 1e3
        return Speculation(selection, draft_ms, importance=importance)

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


def _dense_reason(prompt: Prompt, settings: SelectionSettings) -> str:
    """Tell why a prompt is dense without asking the draft; empty if the draft has to be asked."""
    length = len(prompt.token_ids)
    if settings.keep_rate == 1:
        return "keep_rate is 1"
    if prompt.dense_reason:
        return prompt.dense_reason.removeprefix("dense: ")
    if length < settings.min_prompt_tokens:
        return (
            f"{length} prompt tokens, fewer than {settings.min_prompt_tokens} (min_prompt_tokens)"
        )
    if settings.budget == "tokens" and settings.keep_tokens >= length:
        return f"{length} prompt tokens, no more than {settings.keep_tokens} (keep_tokens)"
    keep_rate, source = keep_rate_for(settings, length)
    if settings.budget == "rate" and keep_rate == 1 and not settings.role_keep_rates:
        return f"{source} is 1 for {length} prompt tokens"
    return ""
