# SPDX-License-Identifier: Apache-2.0
"""Z-score per layer, head and query before the maximum (after CLAA, arXiv 2602.16054).

importance[i] = mean over the last w prompt queries j of max over layers l and heads h of
(a[l, h, j, i] - mean_body(a[l, h, j])) / std_body(a[l, h, j]), with a average-pooled. One sharp
head can then not own the ranking, and no look-ahead step has to be decoded.
"""

from __future__ import annotations

import torch

from specprefill.scoring.attention import average_pool

# Attention sinks at the start and the question at the end draw most of the attention; statistics
# that include them would squash the differences in between.
_SINK_TOKENS = 4
_TAIL_TOKENS = 40


def reduce_layer(attention: torch.Tensor, kernel: int) -> torch.Tensor:
    """Pool along the prompt, standardise over its body, then take the maximum over heads.

    Args:
        attention: float32 [heads, n, M].
        kernel: W, odd.

    Returns:
        float32 [n, M]. A head whose pooled attention is constant over the body scores 0.
    """
    pooled = average_pool(attention, kernel)
    end = pooled.shape[-1] - _TAIL_TOKENS
    # A prompt that is all sinks and question has no body of its own.
    body = pooled[..., _SINK_TOKENS:end] if end - _SINK_TOKENS >= 2 else pooled
    std, mean = torch.std_mean(body, dim=-1, keepdim=True, correction=0)  # [heads, n, 1]
    inverse = torch.where(std > 0, 1.0 / std.clamp_min(torch.finfo(std.dtype).tiny), 0.0)
    return torch.sub(pooled, mean).mul_(inverse).amax(dim=0)
