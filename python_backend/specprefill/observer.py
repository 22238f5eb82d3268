# SPDX-License-Identifier: Apache-2.0
"""AttentionObserver: reduces queries and keys to importance, one layer at a time."""

from __future__ import annotations

import torch

from specprefill.errors import EngineError
from specprefill.scoring.attention import prompt_attention
from specprefill.scoring.rule import ScoringRule


class AttentionObserver:
    """Collects the importance of every prompt token while a draft engine runs.

    Only a running maximum over (layer, head) is held: at most a few [heads, n, M] float32 blocks
    are alive during one update.
    """

    def __init__(
        self, rule: ScoringRule, prompt_length: int, score_layers: tuple[int, int] | None = None
    ) -> None:
        """Prepare for one prompt.

        Args:
            rule: the scoring rule.
            prompt_length: M.
            score_layers: first and last layer that count, both included; None counts all.
        """
        self.rule = rule
        self.prompt_length = prompt_length
        self.score_layers = score_layers
        self.prompt_queries = min(rule.prompt_queries, prompt_length)
        self._step_scores: dict[int, torch.Tensor] = {}  # step -> [n, M]

    def wants(self, layer: int) -> bool:
        """Tell whether this layer's attention counts."""
        if self.score_layers is None:
            return True
        first, last = self.score_layers
        return first <= layer <= last

    def update(
        self, layer: int, step: int, queries: torch.Tensor, keys: torch.Tensor, scaling: float
    ) -> None:
        """Take in one layer of one step; layers that do not count are ignored.

        Args:
            layer: index of the layer.
            step: 0 for the prompt, 1..N-1 for generated tokens.
            queries: [heads, n, d] after rotary embedding; for step 0 the last n prompt queries.
            keys: [kv_heads, M, d] after rotary embedding, of the prompt alone.
            scaling: factor on the dot products.

        Raises:
            EngineError: the keys do not cover the prompt.
        """
        if not self.wants(layer):
            return
        if keys.shape[1] != self.prompt_length:
            raise EngineError(
                f"draft layer {layer} gave keys for {keys.shape[1]} tokens of a prompt of "
                f"{self.prompt_length}"
            )
        visible = None
        n = queries.shape[1]
        if step == 0 and n > 1:
            last = self.prompt_length
            visible = torch.arange(last - n + 1, last + 1, device=keys.device)  # [n]
        attention = prompt_attention(queries, keys, scaling, visible)  # [heads, n, M]
        scores = self.rule.reduce_layer(attention)  # [n, M]
        previous = self._step_scores.get(step)
        if previous is None:
            self._step_scores[step] = scores
        else:
            torch.maximum(previous, scores, out=previous)

    def importance(self) -> torch.Tensor:
        """Return the importance of every prompt token: float32 [M], on the draft's device.

        Raises:
            EngineError: nothing was observed, or a score is not a finite number.
        """
        if not self._step_scores:
            raise EngineError("the draft ran no layer that score_layers counts")
        importance = torch.cat(list(self._step_scores.values())).mean(dim=0)  # [M]
        if not bool(torch.isfinite(importance).all()):
            raise EngineError("the draft's attention holds values that are not finite")
        return importance
