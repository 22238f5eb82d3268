# SPDX-License-Identifier: Apache-2.0
"""What a scoring rule asks of the draft, and how it reduces what it sees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from specprefill.errors import ConfigurationError
from specprefill.scoring import lookahead, single_layer, window, zscore
from specprefill.settings import SelectionSettings


@dataclass(frozen=True, slots=True)
class ScoringRule:
    """One scoring rule, fixed for one prompt.

    Attributes:
        name: the rule's name in the settings.
        prompt_queries: how many of the last prompt tokens are queries of step 0; 0 needs no draft.
        look_ahead: N, number of steps: step 0 uses prompt queries, steps 1..N-1 are greedily
            generated tokens.
        ignore_eos: look-ahead goes on after a stop token.
        reduce_layer: float32 [heads, n, M] of one layer and step -> float32 [n or 1, M]; layers
            are then combined by an elementwise maximum, rows and steps by their mean.
        layer: the one layer that counts, whatever the deployment's score_layers; None leaves the
            layers to the deployment.
    """

    name: str
    prompt_queries: int
    look_ahead: int
    ignore_eos: bool
    reduce_layer: Callable[[torch.Tensor], torch.Tensor]
    layer: int | None = None

    @property
    def needs_draft(self) -> bool:
        """Whether the rule looks at any attention at all."""
        return self.prompt_queries > 0


def make_rule(settings: SelectionSettings) -> ScoringRule:
    """Build the rule that the settings name.

    Raises:
        ConfigurationError: the settings name no known rule.
    """
    name = settings.scorer
    reductions = {
        "lookahead": lookahead.reduce_layer,
        "zscore": zscore.reduce_layer,
        "window": window.reduce_layer,
        "single_layer": single_layer.reduce_layer,
    }
    if name in reductions:
        reduce_layer = partial(
            reductions[name], kernel=settings.pool_kernel, pooling=settings.pooling
        )
        if name == "lookahead":
            return ScoringRule(name, 1, settings.look_ahead, settings.ignore_eos, reduce_layer)
        if name == "single_layer":
            return ScoringRule(name, 1, 1, False, reduce_layer, settings.single_layer)
        return ScoringRule(name, settings.query_window, 1, False, reduce_layer)
    if name == "none":
        return ScoringRule(name, 0, 1, False, _reduce_nothing)
    raise ConfigurationError(f"selection.scorer: {name!r} is not a scoring rule")


def _reduce_nothing(attention: torch.Tensor) -> torch.Tensor:
    raise ConfigurationError("selection.scorer: none scores no attention")
