# SPDX-License-Identifier: Apache-2.0
"""The observer against plain, slow, whole-tensor versions of the rules, written here."""

import math
import tracemalloc

import pytest
import torch
from specprefill.errors import ConfigurationError, EngineError
from specprefill.observer import AttentionObserver
from specprefill.scoring import make_rule
from specprefill.scoring.attention import average_pool, prompt_attention
from specprefill.settings import SelectionSettings


def slow_attention(queries, keys, positions):
    """[steps][layers] queries [heads, n, d] -> list over steps of [layers, heads, n, M]."""
    out = []
    for step, layers in enumerate(queries):
        rows = []
        for layer, q in enumerate(layers):
            k = keys[layer].repeat_interleave(q.shape[0] // keys[layer].shape[0], dim=0)
            logits = torch.einsum("hnd,hmd->hnm", q.double(), k.double()) / math.sqrt(q.shape[-1])
            for j, position in enumerate(positions[step]):
                logits[:, j, position + 1 :] = -math.inf
            rows.append(torch.softmax(logits, dim=-1))
        out.append(torch.stack(rows))
    return out


def slow_pool(a, kernel):
    """Average over `kernel` neighbours one token at a time; outside counts as zero."""
    out = torch.zeros_like(a)
    half = kernel // 2
    for i in range(a.shape[-1]):
        out[..., i] = a[..., max(0, i - half) : i + half + 1].sum(-1) / kernel
    return out


def slow_lookahead(attention, kernel):
    steps = [slow_pool(a, kernel).flatten(0, 1).amax(0) for a in attention]  # [n, M]
    return torch.cat(steps).mean(0)


def slow_zscore(attention, kernel):
    (a,) = attention
    pooled = slow_pool(a, kernel)
    body = pooled[..., 4:-40] if pooled.shape[-1] >= 88 else pooled
    mean, std = body.mean(-1, keepdim=True), body.std(-1, correction=0, keepdim=True)
    z = torch.where(std > 1e-5 * mean.abs(), (pooled - mean) / std, 0)  # a constant head says 0
    return z.flatten(0, 1).amax(0).mean(0)


def random_attention(length, heads, kv_heads, layers, steps, queries, dim=8, seed=0):
    draw = torch.Generator().manual_seed(seed)
    keys = [torch.randn(kv_heads, length, dim, generator=draw) * 2 for _ in range(layers)]
    counts = [min(queries, length)] + [1] * (steps - 1)
    qs = [[torch.randn(heads, n, dim, generator=draw) * 2 for _ in range(layers)] for n in counts]
    positions = [list(range(length - counts[0], length))] + [[length]] * (steps - 1)
    return qs, keys, positions


def observe(settings, qs, keys, length, score_layers=None):
    observer = AttentionObserver(make_rule(settings), length, score_layers)
    for step, layers in enumerate(qs):
        for layer, q in enumerate(layers):
            observer.update(layer, step, q, keys[layer], q.shape[-1] ** -0.5)
    return observer.importance()


@pytest.mark.parametrize("steps", [1, 2, 3, 8, 16])
@pytest.mark.parametrize("kernel", [1, 3, 13])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (6, 2), (9, 3), (8, 1)])
def test_lookahead_equals_the_whole_tensor_rule(steps, kernel, heads, kv_heads):
    qs, keys, positions = random_attention(150, heads, kv_heads, 3, steps, 1, seed=steps)
    settings = SelectionSettings(scorer="lookahead", look_ahead=steps, pool_kernel=kernel)
    expected = slow_lookahead(slow_attention(qs, keys, positions), kernel)
    torch.testing.assert_close(
        observe(settings, qs, keys, 150).double(), expected, rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize("window", [1, 2, 16, 64])
@pytest.mark.parametrize("kernel", [1, 3, 13])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (6, 2), (8, 1)])
def test_zscore_equals_the_whole_tensor_rule(window, kernel, heads, kv_heads):
    qs, keys, positions = random_attention(150, heads, kv_heads, 3, 1, window, seed=window)
    settings = SelectionSettings(scorer="zscore", query_window=window, pool_kernel=kernel)
    expected = slow_zscore(slow_attention(qs, keys, positions), kernel)
    torch.testing.assert_close(
        observe(settings, qs, keys, 150).double(), expected, rtol=1e-3, atol=1e-3
    )


@pytest.mark.parametrize("length", [1, 2, 5, 12, 31, 45, 87, 88])
@pytest.mark.parametrize("scorer", ["lookahead", "zscore"])
def test_prompts_shorter_than_chunk_kernel_or_body(length, scorer):
    qs, keys, positions = random_attention(length, 6, 2, 2, 1, 1 if scorer == "lookahead" else 16)
    settings = SelectionSettings(scorer=scorer, look_ahead=1, pool_kernel=13)
    slow = slow_lookahead if scorer == "lookahead" else slow_zscore
    expected = slow(slow_attention(qs, keys, positions), 13)
    actual = observe(settings, qs, keys, length)
    assert actual.shape == (length,)
    if length > 1:  # the deviation of a single value is zero or rounding
        torch.testing.assert_close(actual.double(), expected, rtol=1e-3, atol=1e-3)


def test_a_stop_token_inside_the_look_ahead_shortens_the_mean():
    qs, keys, positions = random_attention(90, 6, 2, 2, 5, 1)
    settings = SelectionSettings(scorer="lookahead", look_ahead=8, pool_kernel=3)
    expected = slow_lookahead(slow_attention(qs, keys, positions), 3)
    torch.testing.assert_close(
        observe(settings, qs, keys, 90).double(), expected, rtol=1e-4, atol=1e-6
    )


def test_only_score_layers_count():
    qs, keys, positions = random_attention(90, 6, 2, 5, 1, 16)
    settings = SelectionSettings()
    chosen = observe(settings, qs, keys, 90, score_layers=(1, 3))
    expected = slow_zscore(slow_attention([qs[0][1:4]], keys[1:4], positions), 13)
    torch.testing.assert_close(chosen.double(), expected, rtol=1e-3, atol=1e-3)


def test_long_prompts_are_read_in_key_blocks(monkeypatch):
    monkeypatch.setattr("specprefill.scoring.attention._KEY_BLOCK", 17)
    qs, keys, positions = random_attention(150, 6, 2, 2, 1, 16)
    expected = slow_zscore(slow_attention(qs, keys, positions), 13)
    torch.testing.assert_close(
        observe(SelectionSettings(), qs, keys, 150).double(), expected, rtol=1e-3, atol=1e-3
    )


def test_half_precision_keys_are_scored_in_float32():
    q, k = torch.randn(4, 3, 8).bfloat16(), torch.randn(2, 50, 8).bfloat16()
    actual = prompt_attention(q, k, 0.3)
    expected = prompt_attention(q.float(), k.float(), 0.3)
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual, expected)


def test_pooling_keeps_the_length_and_counts_the_padding():
    ones = torch.ones(1, 1, 5)
    assert average_pool(ones, 3)[0, 0].tolist() == pytest.approx([2 / 3, 1, 1, 1, 2 / 3])


def test_memory_stays_at_a_few_blocks_of_one_layer():
    """Peak memory must not grow with the number of layers."""
    heads, n, length, dim = 8, 16, 20_000, 16
    block = heads * n * length * 4
    rule = make_rule(SelectionSettings())
    observer = AttentionObserver(rule, length)
    q, k = torch.randn(heads, n, dim), torch.randn(2, length, dim)
    peak = 0
    import torch.utils._python_dispatch as dispatch

    class Peak(dispatch.TorchDispatchMode):
        """Tracks bytes of live tensors made inside; views share their storage."""

        def __init__(self):
            super().__init__()
            self.live = {}

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal peak
            import weakref

            result = func(*args, **(kwargs or {}))
            for tensor in result if isinstance(result, (tuple, list)) else (result,):
                if isinstance(tensor, torch.Tensor):
                    storage = tensor.untyped_storage()
                    key = storage.data_ptr()
                    if key not in self.live:
                        self.live[key] = storage.nbytes()
                        weakref.finalize(tensor, self.live.pop, key, None)
            peak = max(peak, sum(self.live.values()))
            return result

    with Peak():
        for layer in range(12):
            observer.update(layer, 0, q, k, 0.25)
    assert block < peak < 8 * block
    assert not tracemalloc.is_tracing()


def test_faults_of_the_draft_are_told():
    rule = make_rule(SelectionSettings())
    with pytest.raises(EngineError, match="no layer"):
        AttentionObserver(rule, 10, (2, 3)).importance()
    observer = AttentionObserver(rule, 10)
    with pytest.raises(EngineError, match="keys for 9 tokens"):
        observer.update(0, 0, torch.randn(2, 1, 4), torch.randn(2, 9, 4), 1.0)
    observer.update(0, 0, torch.full((2, 1, 4), float("nan")), torch.randn(2, 10, 4), 1.0)
    with pytest.raises(EngineError, match="not finite"):
        observer.importance()


def test_a_head_that_looks_everywhere_alike_scores_nothing():
    keys = torch.zeros(1, 200, 4)
    observer = AttentionObserver(make_rule(SelectionSettings(pool_kernel=1)), 200)
    observer.update(0, 0, torch.randn(2, 1, 4), keys, 1.0)
    assert observer.importance().abs().max() == 0


def test_an_unknown_rule_is_a_configuration_error():
    settings = SelectionSettings.model_construct(scorer="guess")
    with pytest.raises(ConfigurationError, match="guess"):
        make_rule(settings)
