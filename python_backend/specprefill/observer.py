# SPDX-License-Identifier: Apache-2.0
"""AttentionObserver: reduces queries and keys to importance, one layer at a time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

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
        self,
        rule: ScoringRule,
        prompt_length: int,
        score_layers: tuple[int, int] | None = None,
        score_heads: Sequence[tuple[int, int]] | None = None,
    ) -> None:
        """Prepare for one prompt.

        Args:
            rule: the scoring rule; its own layer, if it has one, goes before `score_layers`.
            prompt_length: M.
            score_layers: first and last layer that count, both included; None counts all.
            score_heads: (layer, query head) pairs that count; None counts all heads.
        """
        self.rule = rule
        self.prompt_length = prompt_length
        self.prompt_queries = min(rule.prompt_queries, prompt_length)
        self._layers = score_layers if rule.layer is None else (rule.layer, rule.layer)
        self._heads: dict[int, list[int]] | None = None
        if score_heads is not None:
            self._heads = {}
            for layer, head in sorted(set(score_heads)):
                self._heads.setdefault(layer, []).append(head)
        self._step_scores: dict[int, torch.Tensor] = {}  # step -> [n, M]

    def wants(self, layer: int) -> bool:
        """Tell whether this layer's attention counts."""
        if self._heads is not None and layer not in self._heads:
            return False
        if self._layers is None:
            return True
        first, last = self._layers
        return first <= layer <= last

    def wanted_of(self, layers: Iterable[int]) -> list[int]:
        """Return which of the layers that a draft can show count.

        Raises:
            EngineError: none of them does, or the one that the rule asks for is not among them.
        """
        shown = list(layers)
        wanted = [layer for layer in shown if self.wants(layer)]
        if wanted:
            return wanted
        span = f"{shown[0]} to {shown[-1]}"
        if self.rule.layer is not None and self.rule.layer not in shown:
            raise EngineError(f"single_layer is {self.rule.layer} but the draft scores {span}")
        raise EngineError(
            f"score_layers, score_heads and the rule {self.rule.name} leave none of the draft's "
            f"layers {span} to score"
        )

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
            EngineError: the keys do not cover the prompt, or a head that counts is missing.
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
        if self._heads is not None:
            queries, keys = _only_heads(queries, keys, self._heads[layer], layer)
        attention = prompt_attention(queries, keys, scaling, visible)  # [heads, n, M]
        scores = self.rule.reduce_layer(attention)  # [n or 1, M]
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
            raise EngineError("the draft ran no layer that counts")
        importance = torch.cat(list(self._step_scores.values())).mean(dim=0)  # [M]
        if not bool(torch.isfinite(importance).all()):
            raise EngineError("the draft's attention holds values that are not finite")
        return importance


def _only_heads(
    queries: torch.Tensor, keys: torch.Tensor, heads: list[int], layer: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Pick query heads and the keys that each of them reads.

    Args:
        queries: [heads, n, d].
        keys: [kv_heads, M, d].
        heads: indices of k query heads, ascending.
        layer: index of the layer, for the error.

    Returns:
        Queries [k, n, d], and keys [k, M, d], or as they came if all heads count.
    """
    count = queries.shape[0]
    if heads[-1] >= count:
        raise EngineError(
            f"score_heads: layer {layer} of the draft has no head {heads[-1]}, only {count}"
        )
    if len(heads) == count:
        return queries, keys
    group = count // keys.shape[0]
    return queries[heads], keys[[head // group for head in heads]]
