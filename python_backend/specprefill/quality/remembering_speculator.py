# SPDX-License-Identifier: Apache-2.0
"""RememberingSpeculator: scores a prompt once, however many selections are made from it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from specprefill.draft.base import DraftEngine
from specprefill.embedded_model import resolve_model
from specprefill.prompt import Prompt
from specprefill.quality.cache import Cache, code_digest, model_digest
from specprefill.settings import SelectionSettings, Settings
from specprefill.speculator import Speculator

# Settings that choose from scores; all others are taken to decide the scores themselves.
_CHOOSE_ONLY = frozenset(
    (
        "keep_rate",
        "chunk_size",
        "chunk_borders",
        "neighbours",
        "coverage",
        "budget",
        "keep_rate_by_length",
        "role_keep_rates",
        "keep_tokens",
        "keep_mass",
        "keep_threshold",
        "min_keep_rate",
        "max_keep_rate",
        "flat_guard",
        "flat_threshold",
        "flat_keep_rate",
        "protect_first",
        "protect_last_user_tokens",
        "verbatim_guard",
        "min_prompt_tokens",
    )
)
_CODE = ("draft", "scoring", "torch_engine", "observer.py", "segments.py", "speculator.py")


class RememberingSpeculator(Speculator):
    """A speculator that looks up importance before it asks the draft.

    Attributes:
        scoring_ms: what the last prompt's importance took when it was computed; 0 if no draft is
            needed for it.
    """

    def __init__(self, make_draft: Callable[[], DraftEngine], settings: Settings, cache: Cache):
        """Use a draft that is loaded when the cache first lacks something."""
        draft = settings.draft
        self._late_draft = _LateDraft(make_draft)
        super().__init__(
            self._late_draft, draft.score_layers, draft.score_heads, draft.segment_tokens
        )
        self._cache = cache
        self._identity = {
            "draft": draft.model_dump(mode="json", exclude={"deadline_seconds", "memo_entries"}),
            "model": model_digest(resolve_model(draft.model)),
            "code": code_digest(*_CODE),
        }
        self.scoring_ms = 0.0

    def _importance(
        self, prompt: Prompt, settings: SelectionSettings, cancelled: Callable[[], bool]
    ) -> npt.NDArray[np.float32] | None:
        scoring = settings.model_dump(mode="json", exclude=set(_CHOOSE_ONLY))
        key = Cache.key(prompt=prompt.token_ids, scoring=scoring, **self._identity)
        stored = self._cache.get(key)
        if stored is not None:
            self.scoring_ms = float(stored["ms"])
            return stored["importance"]
        if settings.scorer != "none":
            self._late_draft.load()
        started = time.perf_counter()
        importance = super()._importance(prompt, settings, cancelled)
        self.scoring_ms = 0.0
        if importance is not None:
            self.scoring_ms = (time.perf_counter() - started) * 1e3
            self._cache.put(key, {"importance": importance, "ms": np.asarray(self.scoring_ms)})
        return importance


class _LateDraft(DraftEngine):
    """Loads the draft when it is first needed."""

    def __init__(self, make_draft: Callable[[], DraftEngine]) -> None:
        self._make_draft = make_draft
        self._draft: DraftEngine | None = None

    @property
    def context_length(self) -> int:
        return self.load().context_length

    def observe(self, *arguments: Any, **options: Any) -> None:
        self.load().observe(*arguments, **options)

    def load(self) -> DraftEngine:
        """Return the draft, loaded once."""
        if self._draft is None:
            self._draft = self._make_draft()
        return self._draft
