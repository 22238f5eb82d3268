# SPDX-License-Identifier: Apache-2.0
"""HeadObserver: how well each attention head alone would find the answer's chunk."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import numpy.typing as npt
import torch

from specprefill.chunks import chunk_scores, chunk_starts
from specprefill.observer import AttentionObserver
from specprefill.scoring import make_rule
from specprefill.scoring.attention import pool, prompt_attention
from specprefill.settings import SelectionSettings


class HeadObserver(AttentionObserver):
    """Ranks the prompt's chunks by every head's attention in turn.

    The queries are those of the rule's prompt window, pooled as the rule pools them; look-ahead
    steps are left out, so that one reading of the prompt is enough.

    Attributes:
        reciprocal_rank: (layer, head) -> 1 / rank of the best-ranked chunk that holds evidence.
        recall: (layer, head) -> share of the evidence within the kept chunks.
    """

    def __init__(
        self,
        settings: SelectionSettings,
        evidence: npt.NDArray[np.bool_],
        protected: npt.NDArray[np.bool_],
        score_layers: tuple[int, int] | None = None,
    ) -> None:
        """Prepare for one prompt.

        Args:
            settings: scoring rule, chunk size and keep rate.
            evidence: bool [M], tokens that hold the answer, at least one of them.
            protected: bool [M], tokens that are kept anyway: attention to them does not count, and
                chunks of nothing else have no rank.
            score_layers: first and last layer to look at; None looks at all.
        """
        rule = dataclasses.replace(make_rule(settings), look_ahead=1, layer=None)
        super().__init__(rule, len(evidence), score_layers)
        self._settings = settings
        self._starts = chunk_starts(len(evidence), settings.chunk_size)
        self._protected = torch.from_numpy(protected)
        self._evidence = np.add.reduceat((evidence & ~protected).astype(np.int64), self._starts)
        self._ranked = ~np.logical_and.reduceat(protected, self._starts)  # [chunks]
        self._budget = math.ceil(settings.keep_rate * self._ranked.sum())
        self.reciprocal_rank: dict[tuple[int, int], float] = {}
        self.recall: dict[tuple[int, int], float] = {}

    def update(
        self, layer: int, step: int, queries: torch.Tensor, keys: torch.Tensor, scaling: float
    ) -> None:
        """Rank the chunks by each head of one layer; see `AttentionObserver.update`."""
        if step > 0 or not self.wants(layer):
            return
        n, last = queries.shape[1], self.prompt_length
        visible = torch.arange(last - n + 1, last + 1, device=keys.device)  # [n]
        attention = prompt_attention(queries, keys, scaling, visible)  # [heads, n, M]
        # The first token draws most attention of most heads, whatever stands beside it.
        attention[..., self._protected.to(attention.device)] = 0.0
        pooled = pool(attention, self._settings.pooling, self._settings.pool_kernel)
        for head, scores in enumerate(pooled.mean(dim=1).cpu().numpy()):  # [M]
            self._rank(layer, head, chunk_scores(scores, self._starts))

    def _rank(self, layer: int, head: int, scores: npt.NDArray[np.float64]) -> None:
        ranked, evidence = scores[self._ranked], self._evidence[self._ranked]
        best = ranked[evidence > 0].max()
        # Chunks that score the same count as better: a head that cannot tell gets no credit.
        rank = int(((ranked >= best) & (evidence == 0)).sum()) + 1
        chosen = np.argsort(-ranked, kind="stable")[: self._budget]
        self.reciprocal_rank[layer, head] = 1 / rank
        self.recall[layer, head] = float(evidence[chosen].sum() / evidence.sum())
