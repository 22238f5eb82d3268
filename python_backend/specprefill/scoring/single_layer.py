# SPDX-License-Identifier: Apache-2.0
"""One layer's attention from the last prompt token (after GemFilter, arXiv 2409.17422).

importance[i] = pool(sum over heads h of a[l, h, last, i]) at one layer l. The published code sums
raw dot products; the softmax used here, as in every other rule, gives all heads one weight.
"""

from __future__ import annotations

import torch

from specprefill.scoring.attention import Pooling, pool


def reduce_layer(attention: torch.Tensor, kernel: int, pooling: Pooling = "avg") -> torch.Tensor:
    """Sum over heads, then pool along the prompt.

    Args:
        attention: float32 [heads, 1, M].
        kernel: W, odd.
        pooling: `avg` as published, or `max`.

    Returns:
        float32 [1, M].
    """
    return pool(attention.sum(dim=0, keepdim=True), pooling, kernel)[0]
