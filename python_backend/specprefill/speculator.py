# SPDX-License-Identifier: Apache-2.0
"""Speculator: prompt -> selection, through the draft; a failing draft means a dense prompt."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from specprefill.draft.base import DraftEngine
from specprefill.errors import RequestCancelledError, SpecPrefillError
from specprefill.observer import AttentionObserver
from specprefill.prompt import Prompt
from specprefill.scoring import make_rule
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
    """

    selection: Selection
    draft_ms: float = 0.0
    draft_failed: bool = False


class Speculator:
    """Decides which prompt tokens the target prefills."""

    def __init__(self, draft: DraftEngine, score_layers: tuple[int, int] | None) -> None:
        """Use a draft engine, counting the given layers' attention (None counts all)."""
        self._draft = draft
        self._score_layers = score_layers

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
        if settings.keep_rate == 1:
            return Speculation(keep_all(length, "dense: keep_rate is 1"))
        if length < settings.min_prompt_tokens:
            reason = f"dense: {length} prompt tokens, fewer than {settings.min_prompt_tokens}"
            return Speculation(keep_all(length, f"{reason} (min_prompt_tokens)"))
        protected = protected_mask(
            length, settings.protect_first, settings.protect_last, prompt.protected
        )
        if protected.all():
            return Speculation(keep_all(length, "dense: every token is protected"))
        started = time.perf_counter()
        try:
            observer = AttentionObserver(make_rule(settings), length, self._score_layers)
            self._draft.observe(prompt.token_ids, observer, cancelled)
            importance = observer.importance().cpu().numpy()
        except RequestCancelledError:
            raise
        except Exception as error:  # whatever the draft does, the target can still answer
            _log.warning("the draft failed, prefilling densely", exc_info=True)
            draft_ms = (time.perf_counter() - started) * 1e3
            problem = str(error) if isinstance(error, SpecPrefillError) else repr(error)
            return Speculation(keep_all(length, f"dense: {problem}"), draft_ms, draft_failed=True)
        selection = select(importance, settings.keep_rate, protected, settings.chunk_size)
        return Speculation(selection, (time.perf_counter() - started) * 1e3)
