# SPDX-License-Identifier: Apache-2.0
"""What a scoring rule asks of the draft, and how it reduces what it sees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from specprefill.errors import ConfigurationError
from specprefill.scoring import lookahead, zscore
from specprefill.settings import SelectionSettings


@dataclass(frozen=True, slots=True)
class ScoringRule:
    """One scoring rule, fixed for one prompt.

    Attributes:
        name: the rule's name in the settings.
        prompt_queries: how many of the last prompt tokens are queries of step 0.
        look_ahead: N, number of steps: step 0 uses prompt queries, steps 1..N-1 are greedily
            generated tokens.
        ignore_eos: look-ahead goes on after a stop token.
        reduce_layer: float32 [heads, n, M] of one layer and step -> float32 [n, M]; layers are
            then combined by an elementwise maximum.
    """

    name: str
    prompt_queries: int
    look_ahead: int
    ignore_eos: bool
    reduce_layer: Callable[[torch.Tensor], torch.Tensor]


def make_rule(settings: SelectionSettings) -> ScoringRule:
    """Build the rule that the settings name.

    Raises:
        ConfigurationError: the settings name no known rule.
    """
    if settings.scorer == "lookahead":
        reduce_layer = partial(lookahead.reduce_layer, kernel=settings.pool_kernel)
        return ScoringRule("lookahead", 1, settings.look_ahead, settings.ignore_eos, reduce_layer)
    if settings.scorer == "zscore":
        reduce_layer = partial(zscore.reduce_layer, kernel=settings.pool_kernel)
        return ScoringRule("zscore", settings.query_window, 1, False, reduce_layer)
    raise ConfigurationError(f"selection.scorer: {settings.scorer!r} is not a scoring rule")
