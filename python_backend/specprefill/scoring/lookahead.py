# SPDX-License-Identifier: Apache-2.0
"""The paper's rule (arXiv 2502.02789, Algorithm 1).

importance[i] = mean over look-ahead steps j of max over layers l and heads h of
average_pool(softmax_i(q[l, h, j] . k[l, h, i] / sqrt(d))).
"""

from __future__ import annotations

import torch

from specprefill.scoring.attention import Pooling, pooled_max


def reduce_layer(attention: torch.Tensor, kernel: int, pooling: Pooling = "avg") -> torch.Tensor:
    """Pool along the prompt, then take the maximum over heads.

    Args:
        attention: float32 [heads, n, M].
        kernel: W, odd.
        pooling: `avg` as published, or `max`.

    Returns:
        float32 [n, M].
    """
    return pooled_max(attention, pooling, kernel)
