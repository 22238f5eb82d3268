# SPDX-License-Identifier: Apache-2.0
"""Attention of a few queries to every prompt token, shared by all scoring rules."""

from __future__ import annotations

from typing import Literal

import torch

Pooling = Literal["avg", "max"]

# Keys are widened to float32 a block at a time, so that a long prompt never needs a second,
# wider copy of all its keys.
_KEY_BLOCK = 16384


def prompt_attention(
    queries: torch.Tensor,
    keys: torch.Tensor,
    scaling: float,
    visible: torch.Tensor | None = None,
) -> torch.Tensor:
    """Softmax of the queries over the prompt's keys alone (arXiv 2502.02789, Algorithm 1).

    Args:
        queries: [heads, n, d] after rotary position embedding, any floating dtype.
        keys: [kv_heads, M, d] after rotary position embedding; heads is a multiple of kv_heads.
        scaling: factor on the dot products, usually 1 / sqrt(d).
        visible: optional int64 [n], how many leading keys each query may look at (causality for
            queries inside the prompt).

    Returns:
        float32 [heads, n, M]; rows sum to 1 over the visible keys, other entries are 0.
    """
    heads, n, head_dim = queries.shape
    kv_heads, prompt_length, _ = keys.shape
    grouped = (queries.float() * scaling).reshape(kv_heads, -1, head_dim)  # [kv_heads, group*n, d]
    logits = queries.new_empty((kv_heads, grouped.shape[1], prompt_length), dtype=torch.float32)
    for start in range(0, prompt_length, _KEY_BLOCK):
        block = keys[:, start : start + _KEY_BLOCK].float()
        logits[..., start : start + _KEY_BLOCK] = torch.matmul(grouped, block.transpose(1, 2))
    logits = logits.view(heads, n, prompt_length)
    if visible is not None:
        hidden = torch.arange(prompt_length, device=keys.device) >= visible[:, None]  # [n, M]
        logits.masked_fill_(hidden, float("-inf"))
    return torch.softmax(logits, dim=-1)


def average_pool(attention: torch.Tensor, kernel: int) -> torch.Tensor:
    """Average over neighbouring prompt tokens, zero-padded, the padding counted in the divisor.

    Args:
        attention: float32 [heads, n, M].
        kernel: W, odd.

    Returns:
        float32 [heads, n, M].
    """
    if kernel == 1:
        return attention
    length = attention.shape[-1]
    # Sums over 1, 2, 4, ... tokens, of which those in the kernel's binary form are added up:
    # log2(W) vectorised passes, where torch's own avg_pool1d took seven times as long on a CPU.
    sums = torch.nn.functional.pad(attention, (kernel // 2, kernel // 2))
    total = sums[..., :length].clone()  # an odd kernel has the bit of 1
    covered = width = 1
    while covered < kernel:
        sums = sums[..., :-width] + sums[..., width:]
        width *= 2
        if kernel & width:
            total += sums[..., covered : covered + length]
            covered += width
    return total.div_(kernel)


def max_pool(attention: torch.Tensor, kernel: int) -> torch.Tensor:
    """Maximum over neighbouring prompt tokens; what lies outside the prompt does not count.

    Args:
        attention: float32 [..., M].
        kernel: W, odd.

    Returns:
        float32 [..., M].
    """
    length = attention.shape[-1]
    # Windows of doubling width, log2(W) passes; the last two may overlap.
    widest = torch.nn.functional.pad(attention, (kernel // 2, kernel // 2), value=float("-inf"))
    width = 1
    while width < kernel:
        step = min(width, kernel - width)
        widest = torch.maximum(widest[..., :-step], widest[..., step:])
        width += step
    return widest[..., :length]


def pool(attention: torch.Tensor, pooling: Pooling, kernel: int) -> torch.Tensor:
    """Pool along the prompt by average or by maximum: float32 [heads, n, M], same shape out."""
    return max_pool(attention, kernel) if pooling == "max" else average_pool(attention, kernel)


def pooled_max(attention: torch.Tensor, pooling: Pooling, kernel: int) -> torch.Tensor:
    """Pool along the prompt, then take the maximum over heads.

    Args:
        attention: float32 [heads, n, M].
        pooling: `avg` or `max`.
        kernel: W, odd.

    Returns:
        float32 [n, M].
    """
    if pooling == "max":  # two maxima commute, and after the heads there is less to pool
        return max_pool(attention.amax(dim=0), kernel)
    return average_pool(attention, kernel).amax(dim=0)
