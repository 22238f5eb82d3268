# SPDX-License-Identifier: Apache-2.0
"""Attention kernels as pure functions of tensors, with grouped keys never repeated."""

from __future__ import annotations

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

    Linear in L: each block of queries reads the sinks and its own window.

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
    heads, n, head_dim = query.shape
    kv_heads, length, _ = keys.shape
    past = length - n
    if length <= window + sinks:
        return causal_attention(query, keys, values, scaling)
    group = heads // kv_heads
    out = torch.empty_like(query)
    mask: torch.Tensor | None = None
    mask_key: tuple[int, int, int] | None = None
    for start in range(0, n, _LOCAL_BLOCK):
        end = min(n, start + _LOCAL_BLOCK)
        first = max(0, past + start - window + 1)  # earliest key inside the block's windows
        if first <= sinks:
            block_keys, block_values = keys[:, : past + end], values[:, : past + end]
            sink_columns, first = 0, 0
        else:
            block_keys = torch.cat((keys[:, :sinks], keys[:, first : past + end]), dim=1)
            block_values = torch.cat((values[:, :sinks], values[:, first : past + end]), dim=1)
            sink_columns = sinks
        # Interior blocks all have the same mask, so it is built once for them.
        key = (end - start, past + start - first, sink_columns)
        if mask is None or key != mask_key:
            mask_key = key
            mask = _window_mask(
                end - start, past + start - first, window, sinks, sink_columns, group, query
            )
        rows = query[:, start:end].reshape(1, kv_heads, group * (end - start), head_dim)
        block = scaled_dot_product_attention(
            rows, block_keys[None], block_values[None], attn_mask=mask, scale=scaling
        )
        out[:, start:end] = block.reshape(heads, end - start, head_dim)
    return out


def _window_mask(
    n: int, offset: int, window: int, sinks: int, sink_columns: int, group: int, like: torch.Tensor
) -> torch.Tensor:
    """Build an additive mask [group * n, sink_columns + offset + n] for one block of queries.

    `offset` is the number of non-sink columns before the block's first query. Without separate
    sink columns the columns start at token 0, where the first `sinks` are visible to all.
    """
    row = torch.arange(n, device=like.device)[:, None] + offset
    column = torch.arange(offset + n, device=like.device)[None]
    visible = (column <= row) & (column > row - window)
    if sink_columns:
        visible = torch.cat((visible.new_ones(n, sink_columns), visible), dim=1)
    else:
        visible |= (column <= row) & (column < sinks)
    mask = torch.zeros(visible.shape, dtype=like.dtype, device=like.device)
    return mask.masked_fill_(~visible, float("-inf")).repeat(group, 1)
