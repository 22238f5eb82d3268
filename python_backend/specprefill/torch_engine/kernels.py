# SPDX-License-Identifier: Apache-2.0
"""Attention kernels as pure functions of tensors, with grouped keys never repeated."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch.nn.functional import scaled_dot_product_attention

# Queries that share one mask: small blocks waste less of the window, large ones call less often.
_LOCAL_BLOCK = 128


def causal_attention(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scaling: float
) -> torch.Tensor:
    """Attention of the last n of L tokens to all tokens up to themselves.

    Args:
        query: [heads, n, d].
        keys: [kv_heads, L, d] with L >= n; the query's own tokens are the last n.
        values: [kv_heads, L, d].
        scaling: factor on the dot products.

    Returns:
        [heads, n, d].
    """
    heads, n, head_dim = query.shape
    kv_heads, length, _ = keys.shape
    past = length - n
    if n == 1:
        grouped = query.reshape(1, kv_heads, heads // kv_heads, head_dim)
        out = scaled_dot_product_attention(grouped, keys[None], values[None], scale=scaling)
        return out.reshape(heads, 1, head_dim)
    if past == 0:
        return scaled_dot_product_attention(
            query[None], keys[None], values[None], is_causal=True, scale=scaling, enable_gqa=True
        )[0]
    if query.device.type == "cpu":
        return _past_and_own(query, keys, values, past, scaling)
    mask = torch.ones(n, length, dtype=torch.bool, device=query.device).tril(past)
    return scaled_dot_product_attention(
        query[None], keys[None], values[None], attn_mask=mask, scale=scaling, enable_gqa=True
    )[0]


def _past_and_own(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, past: int, scaling: float
) -> torch.Tensor:
    """Attend to earlier tokens without a mask and to the own chunk causally, then combine.

    Both parts run at the flash kernel's full rate, which a mask over the whole length would
    halve; log-sum-exps weigh them exactly.
    """
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    heads, n, head_dim = query.shape
    kv_heads = keys.shape[0]
    group = heads // kv_heads
    own_keys = keys[:, past:].repeat_interleave(group, dim=0)  # [heads, n, d]
    own_values = values[:, past:].repeat_interleave(group, dim=0)
    own, own_lse = flash(query[None], own_keys[None], own_values[None], 0.0, True, scale=scaling)
    grouped = query.reshape(1, kv_heads, group * n, head_dim)
    before, before_lse = flash(
        grouped, keys[None, :, :past], values[None, :, :past], 0.0, False, scale=scaling
    )
    before = before.reshape(heads, n, head_dim)
    weight = torch.sigmoid(before_lse.reshape(heads, n) - own_lse[0])  # [heads, n]
    return torch.lerp(own[0], before, weight.to(own.dtype)[..., None])


def windowed_attention(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scaling: float,
    window: int,
    sinks: int,
) -> torch.Tensor:
    """Causal attention to the first `sinks` tokens and to the last `window` tokens only.

    Linear in n: each block of queries reads the sinks and its own window.

    Args:
        query: [heads, n, d], the last n of L tokens.
        keys: [kv_heads, L, d].
        values: [kv_heads, L, d].
        scaling: factor on the dot products.
        window: a token sees itself and the window - 1 tokens before it.
        sinks: number of first tokens that every later token sees.

    Returns:
        [heads, n, d].
    """
    n = query.shape[1]
    past = keys.shape[1] - n
    # Rows that see every token before them need no window.
    full = min(n, max(0, window + sinks - past))
    outputs = []
    if full:
        end = past + full
        outputs.append(causal_attention(query[:, :full], keys[:, :end], values[:, :end], scaling))
    whole = (n - full) // _LOCAL_BLOCK * _LOCAL_BLOCK
    for start, end in ((full, full + whole), (full + whole, n)):
        if start < end:
            seen = past + end
            outputs.append(
                _window_blocks(
                    query[:, start:end], keys[:, :seen], values[:, :seen], scaling, window, sinks
                )
            )
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)


def _window_blocks(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scaling: float,
    window: int,
    sinks: int,
) -> torch.Tensor:
    """Attend in blocks of queries, all in one batch; every window starts behind the sinks.

    Args and result as `windowed_attention`; n is at most, or a multiple of, the block size.
    """
    heads, n, head_dim = query.shape
    kv_heads, length, _ = keys.shape
    group = heads // kv_heads
    block = min(n, _LOCAL_BLOCK)
    blocks = n // block
    columns = window - 1 + block
    first = length - n - window + 1  # earliest key inside the first block's windows

    def gather(tensor: torch.Tensor) -> torch.Tensor:  # -> [blocks, kv_heads, sinks+columns, d]
        windows = tensor[:, first:].unfold(1, columns, block)  # [kv_heads, blocks, d, columns]
        begin = tensor[None, :, :sinks].expand(blocks, -1, -1, -1)
        return torch.cat((begin, windows.permute(1, 0, 3, 2)), dim=2)

    rows = query.reshape(kv_heads, group, blocks, block, head_dim)
    rows = rows.permute(2, 0, 1, 3, 4).reshape(blocks, kv_heads, group * block, head_dim)
    mask = _window_mask(block, window, sinks, group, query.dtype, query.device)
    out = scaled_dot_product_attention(
        rows, gather(keys), gather(values), attn_mask=mask, scale=scaling
    )
    out = out.reshape(blocks, kv_heads, group, block, head_dim).permute(1, 2, 0, 3, 4)
    return out.reshape(heads, n, head_dim)


@lru_cache(maxsize=16)
def _window_mask(
    block: int, window: int, sinks: int, group: int, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Build the additive mask [group * block, sinks + window - 1 + block] of any block."""
    row = torch.arange(block, device=device)[:, None]
    column = torch.arange(-sinks, window - 1 + block, device=device)[None]
    visible = (column < 0) | ((column >= row) & (column < row + window))
    mask = torch.zeros(visible.shape, dtype=dtype, device=device)
    return mask.masked_fill_(~visible, float("-inf")).repeat(group, 1)
