# SPDX-License-Identifier: Apache-2.0
"""The observer against plain, slow, whole-tensor versions of the rules, written here."""

import math
import tracemalloc

import pytest
import torch
from specprefill.errors import ConfigurationError, EngineError
from specprefill.observer import AttentionObserver
from specprefill.scoring import make_rule
from specprefill.scoring.attention import average_pool, max_pool, prompt_attention
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


def slow_max_pool(a, kernel):
    """The largest of `kernel` neighbours one token at a time; outside does not count."""
    out = torch.zeros_like(a)
    half = kernel // 2
    for i in range(a.shape[-1]):
        out[..., i] = a[..., max(0, i - half) : i + half + 1].amax(-1)
    return out


SLOW_POOLS = {"avg": slow_pool, "max": slow_max_pool}


def slow_window(attention, kernel, pooling):
    """Every weighted query of every head and layer pooled on its own, then the largest."""
    (a,) = attention  # [layers, heads, n, M]
    n = a.shape[2]
    weighted = a * torch.tensor([(j + 1) / n for j in range(n)])[None, None, :, None]
    return SLOW_POOLS[pooling](weighted, kernel).flatten(0, 2).amax(0)


def slow_single_layer(attention, kernel, pooling, layer):
    (a,) = attention
    return SLOW_POOLS[pooling](a[layer, :, -1].sum(0), kernel)


def random_attention(length, heads, kv_heads, layers, steps, queries, dim=8, seed=0):
    draw = torch.Generator().manual_seed(seed)
    keys = [torch.randn(kv_heads, length, dim, generator=draw) * 2 for _ in range(layers)]
    counts = [min(queries, length)] + [1] * (steps - 1)
    qs = [[torch.randn(heads, n, dim, generator=draw) * 2 for _ in range(layers)] for n in counts]
    positions = [list(range(length - counts[0], length))] + [[length]] * (steps - 1)
    return qs, keys, positions


def observe(settings, qs, keys, length, score_layers=None, score_heads=None):
    observer = AttentionObserver(make_rule(settings), length, score_layers, score_heads)
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


@pytest.mark.parametrize("window", [1, 2, 16, 64])
@pytest.mark.parametrize("pooling", ["avg", "max"])
@pytest.mark.parametrize(("kernel", "heads", "kv_heads"), [(1, 4, 4), (13, 6, 2), (33, 8, 1)])
def test_window_equals_the_whole_tensor_rule(window, pooling, kernel, heads, kv_heads):
    qs, keys, positions = random_attention(150, heads, kv_heads, 3, 1, window, seed=window)
    settings = SelectionSettings(
        scorer="window", query_window=window, pool_kernel=kernel, pooling=pooling
    )
    expected = slow_window(slow_attention(qs, keys, positions), kernel, pooling)
    actual = observe(settings, qs, keys, 150)
    torch.testing.assert_close(actual.double(), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("layer", [0, 2])
@pytest.mark.parametrize("pooling", ["avg", "max"])
@pytest.mark.parametrize("kernel", [1, 5])
def test_single_layer_equals_the_whole_tensor_rule(layer, pooling, kernel):
    qs, keys, positions = random_attention(150, 6, 2, 3, 1, 1)
    settings = SelectionSettings(
        scorer="single_layer", single_layer=layer, pool_kernel=kernel, pooling=pooling
    )
    expected = slow_single_layer(slow_attention(qs, keys, positions), kernel, pooling, layer)
    actual = observe(settings, qs, keys, 150, score_layers=(1, 1))  # the rule's layer goes first
    torch.testing.assert_close(actual.double(), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kernel", [3, 7, 13, 33, 255])
@pytest.mark.parametrize("steps", [1, 3])
def test_lookahead_and_zscore_with_max_pooling(kernel, steps):
    qs, keys, positions = random_attention(150, 6, 2, 3, steps, 1)
    options = {"pool_kernel": kernel, "pooling": "max"}
    attention = slow_attention(qs, keys, positions)
    expected = torch.cat([slow_max_pool(a, kernel).flatten(0, 1).amax(0) for a in attention])
    actual = observe(
        SelectionSettings(scorer="lookahead", look_ahead=steps, **options), qs, keys, 150
    )
    torch.testing.assert_close(actual.double(), expected.mean(0), rtol=1e-4, atol=1e-6)
    pooled = slow_max_pool(attention[0], kernel)
    body = pooled[..., 4:-40]
    mean, std = body.mean(-1, keepdim=True), body.std(-1, correction=0, keepdim=True)
    z = torch.where(std > 1e-5 * mean.abs(), (pooled - mean) / std, 0).flatten(0, 1).amax(0)
    actual = observe(SelectionSettings(query_window=1, **options), qs[:1], keys, 150)
    torch.testing.assert_close(actual.double(), z.mean(0), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("scorer", ["lookahead", "zscore", "window", "single_layer"])
def test_only_score_heads_count(scorer):
    """Heads of one group and of several, against attention of those heads alone."""
    qs, keys, positions = random_attention(120, 6, 2, 3, 1, 1 if scorer != "zscore" else 16)
    settings = SelectionSettings(
        scorer=scorer, look_ahead=1, query_window=16, single_layer=1, pool_kernel=3
    )
    heads = [(1, 4), (2, 0), (1, 1), (1, 2), (2, 5), (2, 5)]
    chosen = observe(settings, qs, keys, 120, score_heads=heads)
    (attention,) = slow_attention(qs, keys, positions)  # [layers, heads, n, M]
    if scorer == "single_layer":
        expected = slow_single_layer([attention[:, [1, 2, 4]]], 3, "avg", 1)
    else:
        only = torch.stack([attention[layer, head] for layer, head in heads])[None]
        slow = {"lookahead": slow_lookahead, "zscore": slow_zscore}
        expected = slow[scorer]([only], 3) if scorer in slow else slow_window([only], 3, "avg")
    torch.testing.assert_close(chosen.double(), expected, rtol=1e-3, atol=1e-3)


def test_layers_and_heads_narrow_each_other():
    rule = make_rule(SelectionSettings())
    observer = AttentionObserver(rule, 10, (2, 5), [(1, 0), (4, 2), (5, 0)])
    assert observer.wanted_of(range(8)) == [4, 5]
    assert observer.wanted_of([3, 4]) == [4]
    with pytest.raises(EngineError, match="leave none of the draft's layers 0 to 3"):
        observer.wanted_of(range(4))
    single = make_rule(SelectionSettings(scorer="single_layer", single_layer=7))
    assert AttentionObserver(single, 10, (2, 5)).wanted_of(range(8)) == [7]
    with pytest.raises(EngineError, match="single_layer is 7 but the draft scores 0 to 6"):
        AttentionObserver(single, 10).wanted_of(range(7))
    with pytest.raises(EngineError, match="leave none"):
        AttentionObserver(single, 10, None, [(6, 0)]).wanted_of(range(8))


def test_a_head_that_the_draft_lacks_is_told():
    observer = AttentionObserver(make_rule(SelectionSettings()), 50, None, [(0, 6)])
    with pytest.raises(EngineError, match="layer 0 of the draft has no head 6, only 6"):
        observer.update(0, 0, torch.randn(6, 1, 4), torch.randn(2, 50, 4), 1.0)


def test_only_the_rule_none_needs_no_draft():
    needs = {
        name: make_rule(SelectionSettings(scorer=name)).needs_draft
        for name in ("lookahead", "zscore", "window", "single_layer", "none")
    }
    assert [name for name, needed in needs.items() if not needed] == ["none"]


@pytest.mark.parametrize("length", [1, 2, 5, 12, 31, 45, 87, 88])
@pytest.mark.parametrize("scorer", ["lookahead", "zscore", "window"])
def test_prompts_shorter_than_chunk_kernel_or_body(length, scorer):
    qs, keys, positions = random_attention(length, 6, 2, 2, 1, 1 if scorer == "lookahead" else 16)
    settings = SelectionSettings(scorer=scorer, look_ahead=1, pool_kernel=13)
    slow = {"lookahead": slow_lookahead, "zscore": slow_zscore}.get(
        scorer, lambda attention, kernel: slow_window(attention, kernel, "avg")
    )
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


@pytest.mark.parametrize("kernel", [1, 3, 5, 7, 9, 13, 15, 17, 31, 33, 63, 129, 255])
@pytest.mark.parametrize("length", [1, 6, 300])
def test_pooling_equals_torch_s_own(kernel, length):
    a = torch.rand(2, 3, length)
    average = torch.nn.functional.avg_pool1d(a, kernel, stride=1, padding=kernel // 2)
    largest = torch.nn.functional.max_pool1d(a, kernel, stride=1, padding=kernel // 2)
    before = a.clone()
    torch.testing.assert_close(average_pool(a, kernel), average)
    torch.testing.assert_close(max_pool(a, kernel), largest, rtol=0, atol=0)
    assert (a == before).all()


def test_pooling_keeps_the_length_and_counts_the_padding():
    ones = torch.ones(1, 1, 5)
    assert average_pool(ones, 3)[0, 0].tolist() == pytest.approx([2 / 3, 1, 1, 1, 2 / 3])


@pytest.mark.parametrize(
    "options",
    [{}, {"pooling": "max"}, {"scorer": "window"}, {"scorer": "window", "pooling": "max"}],
    ids=str,
)
def test_memory_stays_at_a_few_blocks_of_one_layer(options):
    """Peak memory must not grow with the number of layers."""
    heads, n, length, dim = 8, 16, 20_000, 16
    block = heads * n * length * 4
    rule = make_rule(SelectionSettings(query_window=n, **options))
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
