# SPDX-License-Identifier: Apache-2.0
"""Window of prompt queries with growing weights (after SpecPC, arXiv 2506.08373).

importance[i] = max over layers l, heads h and the last w prompt queries j of
pool((j + 1) / w * a[l, h, j, i]), j = 0..w-1: the query nearest to the answer counts most. The
published rule adds the query of one generated token; this one decodes nothing.
"""

from __future__ import annotations

import torch

from specprefill.scoring.attention import Pooling, pooled_max


def reduce_layer(attention: torch.Tensor, kernel: int, pooling: Pooling = "max") -> torch.Tensor:
    """Pool along the prompt, then take the maximum over heads and weighted queries.

    Args:
        attention: float32 [heads, n, M], the queries in the prompt's order.
        kernel: W, odd.
        pooling: `max` as published, or `avg`.

    Returns:
        float32 [1, M].
    """
    n = attention.shape[1]
    weights = torch.arange(1, n + 1, dtype=attention.dtype, device=attention.device) / n  # [n]
    # A weight that all heads share may follow the maximum over them.
    scores = pooled_max(attention, pooling, kernel).mul_(weights[:, None])  # [n, M]
    return scores.amax(dim=0, keepdim=True)
