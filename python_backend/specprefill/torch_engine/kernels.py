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
        before = (keys[None, :, :past], values[None, :, :past])
        own = (keys[None, :, past:], values[None, :, past:])
        return _past_and_own(query[None], before, own, scaling)[0]
    mask = torch.ones(n, length, dtype=torch.bool, device=query.device).tril(past)
    return scaled_dot_product_attention(
        query[None], keys[None], values[None], attn_mask=mask, scale=scaling, enable_gqa=True
    )[0]


def _past_and_own(
    query: torch.Tensor,
    before: tuple[torch.Tensor, torch.Tensor],
    own: tuple[torch.Tensor, torch.Tensor],
    scaling: float,
) -> torch.Tensor:
    """Attend to earlier tokens without a mask and to the own ones causally, then combine.

    Both parts run at the flash kernel's full rate, which a mask over the whole length would
    halve; log-sum-exps weigh them exactly.

    Args:
        query: [batch, heads, n, d].
        before: keys and values that every query sees, [batch, kv_heads, P, d] each.
        own: keys and values of the queries' own tokens, [batch, kv_heads, n, d] each.
        scaling: factor on the dot products.

    Returns:
        [batch, heads, n, d].
    """
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    batch, heads, n, head_dim = query.shape
    kv_heads = own[0].shape[1]
    group = heads // kv_heads
    own_keys, own_values = (tensor.repeat_interleave(group, dim=1) for tensor in own)
    near, near_lse = flash(query, own_keys, own_values, 0.0, True, scale=scaling)
    grouped = query.reshape(batch, kv_heads, group * n, head_dim)
    far, far_lse = flash(grouped, *before, 0.0, False, scale=scaling)
    far = far.reshape(batch, heads, n, head_dim)
    weight = torch.sigmoid(far_lse.reshape(batch, heads, n) - near_lse)  # [batch, heads, n]
    return torch.lerp(near, far, weight.to(near.dtype)[..., None])


def windowed_attention(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scaling: float,
    window: int,
    sinks: int,
    exact: bool = True,
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
        exact: False lets a token see up to a block of tokens more, which needs no mask and runs
            nearly twice as fast on a CPU.

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
                    query[:, start:end],
                    keys[:, :seen],
                    values[:, :seen],
                    scaling,
                    window,
                    sinks,
                    exact,
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
    exact: bool,
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

    rows = query.reshape(heads, blocks, block, head_dim).transpose(0, 1)
    seen = gather(keys), gather(values)
    if query.device.type == "cpu" and not exact:
        before = (seen[0][:, :, :-block], seen[1][:, :, :-block])
        own = (seen[0][:, :, -block:], seen[1][:, :, -block:])
        out = _past_and_own(rows, before, own, scaling)
    else:
        mask = _window_mask(block, window, sinks, group, exact, query.dtype, query.device)
        grouped = rows.reshape(blocks, kv_heads, group * block, head_dim)
        out = scaled_dot_product_attention(grouped, *seen, attn_mask=mask, scale=scaling)
        out = out.reshape(blocks, heads, block, head_dim)
    return out.transpose(0, 1).reshape(heads, n, head_dim)


@lru_cache(maxsize=16)
def _window_mask(
    block: int,
    window: int,
    sinks: int,
    group: int,
    exact: bool,
    dtype: torch.dtype,
    device: torch.device,
) -> torch.Tensor:
    """Build the additive mask [group * block, sinks + window - 1 + block] of any block."""
    row = torch.arange(block, device=device)[:, None]
    column = torch.arange(-sinks, window - 1 + block, device=device)[None]
    visible = (column < 0) | (column < row + window)
    if exact:
        visible &= (column < 0) | (column >= row)
    mask = torch.zeros(visible.shape, dtype=dtype, device=device)
    return mask.masked_fill_(~visible, float("-inf")).repeat(group, 1)
