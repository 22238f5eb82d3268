# SPDX-License-Identifier: Apache-2.0
"""What each of the draft's layers alone says: recorded in one reading, told one at a time."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import torch

from specprefill.draft.base import DraftEngine
from specprefill.observer import AttentionObserver


class ProfilingObserver(AttentionObserver):
    """Passes everything on to another observer, and keeps each layer's own importance too."""

    def __init__(self, observer: AttentionObserver) -> None:
        """Stand in for `observer`."""
        # The rule, the layers and whatever else decides what a draft shows are the same.
        vars(self).update(vars(observer))
        self._observer = observer
        self._alone: dict[int, torch.Tensor] = {}  # layer -> sum over steps, [M]
        self._steps: dict[int, int] = {}

    def update(
        self, layer: int, step: int, queries: torch.Tensor, keys: torch.Tensor, scaling: float
    ) -> None:
        """Take in one layer of one step; see `AttentionObserver.update`."""
        self._observer.update(layer, step, queries, keys, scaling)
        if not self.wants(layer):
            return
        alone = copy.copy(self._observer)
        alone._step_scores = {}
        alone.update(layer, step, queries, keys, scaling)
        importance = alone.importance()  # [M]
        steps = self._steps.get(layer, 0)
        self._alone[layer] = self._alone[layer] + importance if steps else importance
        self._steps[layer] = steps + 1

    def importance(self) -> torch.Tensor:
        """Return the importance by all layers: float32 [M]."""
        return self._observer.importance()

    @property
    def layers(self) -> list[int]:
        """The layers that counted."""
        return sorted(self._alone)

    def importance_of(self, layer: int) -> torch.Tensor:
        """Return the importance by one layer alone: float32 [M]."""
        return self._alone[layer] / self._steps[layer]


class ProfilingDraft(DraftEngine):
    """A draft that remembers its readings layer by layer."""

    def __init__(self, draft: DraftEngine) -> None:
        """Stand in for `draft`."""
        self._draft = draft
        self._readings: list[ProfilingObserver] = []

    @property
    def context_length(self) -> int:
        """Most prompt tokens that the draft can read."""
        return self._draft.context_length

    def observe(
        self,
        prompt_ids: npt.NDArray[np.int32],
        observer: AttentionObserver,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        """Read the prompt, or one segment of it; see `DraftEngine.observe`."""
        profile = ProfilingObserver(observer)
        self._draft.observe(prompt_ids, profile, cancelled)
        self._readings.append(profile)

    @property
    def layers(self) -> list[int]:
        """The layers that counted; empty if nothing was read."""
        return self._readings[0].layers if self._readings else []

    def only(self, layer: int) -> DraftEngine:
        """Return a draft that repeats the readings, in their order, as this layer alone saw them.

        Segments, tokenizers and selection then treat one layer as they treat all of them.
        """
        return _OneLayer(self.context_length, iter(self._readings), layer)

    def close(self) -> None:
        """Release what the draft holds."""
        self._draft.close()


class _OneLayer(DraftEngine):
    def __init__(
        self, context_length: int, readings: Iterator[ProfilingObserver], layer: int
    ) -> None:
        self._context_length = context_length
        self._readings = readings
        self._layer = layer

    @property
    def context_length(self) -> int:
        return self._context_length

    def observe(
        self,
        prompt_ids: npt.NDArray[np.int32],
        observer: AttentionObserver,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        observer._step_scores = {0: next(self._readings).importance_of(self._layer)[None]}
