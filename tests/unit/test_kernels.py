# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from specprefill.torch_engine.kernels import causal_attention, windowed_attention

SHAPES = [(700, 0), (700, 300), (50, 1000), (1, 1000), (512, 90), (128, 94), (129, 1000), (1, 0)]


def tensors(n, past, heads=6, kv_heads=2, dim=16):
    draw = torch.Generator().manual_seed(n + past)
    q = torch.randn(heads, n, dim, generator=draw)
    k, v = (torch.randn(kv_heads, n + past, dim, generator=draw) for _ in range(2))
    return q, k, v


def masked(q, k, v, scaling, visible):
    group = q.shape[0] // k.shape[0]
    logits = q @ k.repeat_interleave(group, 0).transpose(1, 2) * scaling
    weights = logits.masked_fill(~visible, float("-inf")).softmax(-1)
    return weights @ v.repeat_interleave(group, 0)


@pytest.mark.parametrize(("n", "past"), SHAPES)
def test_causal(n, past):
    q, k, v = tensors(n, past)
    visible = torch.ones(n, n + past, dtype=torch.bool).tril(past)
    torch.testing.assert_close(
        causal_attention(q, k, v, 0.3), masked(q, k, v, 0.3, visible), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize(("window", "sinks"), [(100, 8), (128, 0), (64, 30), (600, 64), (16, 1)])
@pytest.mark.parametrize(("n", "past"), SHAPES)
def test_windowed(n, past, window, sinks):
    q, k, v = tensors(n, past)
    row, column = torch.arange(past, past + n)[:, None], torch.arange(n + past)[None]
    visible = (column <= row) & ((column > row - window) | (column < sinks))
    torch.testing.assert_close(
        windowed_attention(q, k, v, 0.3, window, sinks),
        masked(q, k, v, 0.3, visible),
        rtol=1e-4,
        atol=1e-5,
    )
