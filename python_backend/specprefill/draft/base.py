# SPDX-License-Identifier: Apache-2.0
"""The contract of every draft engine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from specprefill.observer import AttentionObserver


class DraftEngine(ABC):
    """Runs a draft model over a prompt and shows its attention to an observer."""

    @property
    @abstractmethod
    def context_length(self) -> int:
        """Most prompt tokens that the draft can read."""

    @abstractmethod
    def observe(
        self,
        prompt_ids: npt.NDArray[np.int32],
        observer: AttentionObserver,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        """Read the prompt (and decode the rule's look-ahead), calling `observer.update`.

        Args:
            prompt_ids: int32 [M].
            observer: receives post-RoPE queries and keys layer by layer; its rule says how many
                prompt queries and look-ahead steps it needs.
            cancelled: asked between pieces of work; True ends the reading.

        Raises:
            EngineError: the draft failed; the request then goes on densely.
            RequestCancelledError: `cancelled` returned True.
        """

    def close(self) -> None:  # noqa: B027 - most engines hold nothing to release
        """Release what the engine holds."""
