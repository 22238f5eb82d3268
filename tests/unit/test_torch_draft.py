# SPDX-License-Identifier: Apache-2.0
import gc
import shutil

import numpy as np
import psutil
import pytest
import torch
from specprefill.draft.torch_draft import TorchDraft
from specprefill.errors import ConfigurationError, EngineError, RequestCancelledError
from specprefill.observer import AttentionObserver
from specprefill.scoring import make_rule
from specprefill.settings import DraftSettings, SelectionSettings
from specprefill.torch_engine.kv_cache import KVCache
from transformers import AutoModelForCausalLM

LOOKAHEAD = SelectionSettings(scorer="lookahead", look_ahead=5, pool_kernel=3)


def prompt(length, seed=0):
    return np.random.default_rng(seed).integers(10, 40_000, length).astype(np.int32)


def importance(draft, ids, settings, score_layers=None, score_heads=None):
    observer = AttentionObserver(make_rule(settings), len(ids), score_layers, score_heads)
    draft.observe(ids, observer)
    return observer.importance()


def hugging_face_attention(folder, ids, steps, mask=None, layers=None):
    """Run transformers' own eager attention; per step and layer, its weights over the prompt."""
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    tokens = torch.from_numpy(ids.astype(np.int64))[None]
    out = []
    with torch.inference_mode():
        for _ in range(steps):
            result = model(tokens, output_attentions=True, attention_mask=mask)
            rows = torch.cat(result.attentions)[: layers or None, :, -1:, : len(ids)]
            out.append(rows / rows.sum(-1, keepdim=True))  # softmax over the prompt alone
            tokens = torch.cat((tokens, result.logits[:, -1:].argmax(-1)), dim=1)
    return out, tokens[0, len(ids) :]


def pooled(weights, kernel):
    padded = torch.nn.functional.pad(weights, (kernel // 2, kernel // 2))
    return padded.unfold(-1, kernel, 1).mean(-1)


@pytest.mark.parametrize("length", [40, 1025, 1500])
def test_lookahead_equals_transformers_own_attention(tiny_llama, length):
    draft = TorchDraft(tiny_llama, DraftSettings(dtype="float32"))
    ids = prompt(length)
    attention, _ = hugging_face_attention(tiny_llama, ids, steps=5)
    expected = torch.cat([pooled(a, 3).flatten(0, 1).amax(0) for a in attention]).mean(0)
    actual = importance(draft, ids, LOOKAHEAD)
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-6)


def test_zscore_queries_that_cross_a_chunk_border(tiny_llama):
    """256 scoring queries of a prompt one token longer than a chunk."""
    draft = TorchDraft(tiny_llama, DraftSettings(dtype="float32"))
    ids = prompt(1025)
    model = AutoModelForCausalLM.from_pretrained(tiny_llama, attn_implementation="eager").eval()
    with torch.inference_mode():
        attentions = model(
            torch.from_numpy(ids.astype(np.int64))[None], output_attentions=True
        ).attentions
    weights = pooled(torch.cat(attentions)[:, :, -256:], 13)
    body = weights[..., 4:-40]
    z = (weights - body.mean(-1, keepdim=True)) / body.std(-1, correction=0, keepdim=True)
    expected = z.flatten(0, 1).amax(0).mean(0)
    actual = importance(draft, ids, SelectionSettings(query_window=256))
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-3)


def test_early_exit_scores_as_the_whole_model_does(tiny_llama):
    ids = prompt(300)
    settings = SelectionSettings()
    whole = TorchDraft(tiny_llama, DraftSettings(dtype="float32", score_layers=(1, 2)))
    early = TorchDraft(tiny_llama, DraftSettings(dtype="float32", layers=3, score_layers=(1, 2)))
    torch.testing.assert_close(
        importance(early, ids, settings, (1, 2)), importance(whole, ids, settings, (1, 2))
    )


def test_reading_ends_at_the_last_layer_that_counts(tiny_llama, monkeypatch):
    """Layers behind it never append their keys; the scores are those of transformers."""
    ids = prompt(300)
    deepest = []
    append = KVCache.append

    def noting(cache, layer, keys, values):
        deepest.append(layer)
        return append(cache, layer, keys, values)

    monkeypatch.setattr(KVCache, "append", noting)
    draft = TorchDraft(tiny_llama, DraftSettings(dtype="float32"))
    (attention,), _ = hugging_face_attention(tiny_llama, ids, steps=1)  # [layers, heads, 1, M]
    settings = SelectionSettings(scorer="single_layer", single_layer=1, pool_kernel=3)
    actual = importance(draft, ids, settings)
    assert max(deepest) == 1
    torch.testing.assert_close(actual, pooled(attention[1].sum(0), 3)[0], rtol=1e-3, atol=1e-6)
    deepest.clear()
    settings = SelectionSettings(scorer="lookahead", look_ahead=1, pool_kernel=3)
    actual = importance(draft, ids, settings, (0, 3), [(2, 5), (0, 1)])
    assert max(deepest) == 2
    only = torch.stack((attention[2, 5], attention[0, 1]))
    torch.testing.assert_close(actual, pooled(only, 3).amax(0)[0], rtol=1e-3, atol=1e-6)


def test_a_layer_that_the_draft_lacks_is_an_engine_error(tiny_llama):
    draft = TorchDraft(tiny_llama, DraftSettings(dtype="float32"))
    settings = SelectionSettings(scorer="single_layer", single_layer=4)
    with pytest.raises(EngineError, match="single_layer is 4 but the draft scores 0 to 3"):
        importance(draft, prompt(50), settings)


@pytest.mark.parametrize(("window", "sinks"), [(64, 8), (200, 0), (32, 64)])
def test_local_attention_equals_a_masked_model(tiny_llama, window, sinks):
    """Hidden states see sinks and a window; the scoring query sees every key."""
    ids = prompt(700)
    settings = DraftSettings(dtype="float32", attention_window=window, sink_tokens=sinks)
    actual = importance(
        TorchDraft(tiny_llama, settings), ids, SelectionSettings(query_window=1, pool_kernel=1)
    )
    row, column = torch.arange(700)[:, None], torch.arange(700)[None]
    visible = (column <= row) & ((column > row - window) | (column < sinks))
    mask = torch.zeros(700, 700).masked_fill(~visible, torch.finfo(torch.float32).min)[None, None]
    captured = {}
    model = AutoModelForCausalLM.from_pretrained(tiny_llama, attn_implementation="eager").eval()
    from transformers.models.llama import modeling_llama

    original = modeling_llama.eager_attention_forward

    def capture(module, query, key, value, *args, **kwargs):
        captured[module.layer_idx] = (query[0, :, -1:], key[0], kwargs["scaling"])
        return original(module, query, key, value, *args, **kwargs)

    modeling_llama.eager_attention_forward = capture
    try:
        with torch.inference_mode():
            model(torch.from_numpy(ids.astype(np.int64))[None], attention_mask=mask)
    finally:
        modeling_llama.eager_attention_forward = original
    scores = []
    for query, key, scaling in captured.values():
        keys = key.repeat_interleave(3, dim=0)
        weights = torch.softmax(query @ keys.transpose(1, 2) * scaling, dim=-1)[:, 0]
        body = weights[:, 4:-40]
        z = (weights - body.mean(-1, keepdim=True)) / body.std(-1, correction=0, keepdim=True)
        scores.append(z.amax(0))
    torch.testing.assert_close(actual, torch.stack(scores).amax(0), rtol=1e-3, atol=1e-3)


def test_a_stop_token_ends_the_look_ahead(tiny_llama, monkeypatch):
    draft = TorchDraft(tiny_llama, DraftSettings(dtype="float32"))
    ids = prompt(60)
    attention, generated = hugging_face_attention(tiny_llama, ids, steps=5)
    monkeypatch.setattr(draft, "_stop_ids", frozenset((int(generated[1]),)))
    first = list(generated).index(generated[1])  # greedy text may repeat a token
    expected = torch.cat([pooled(a, 3).flatten(0, 1).amax(0) for a in attention[: first + 1]])
    actual = importance(draft, ids, LOOKAHEAD)
    torch.testing.assert_close(actual, expected.mean(0), rtol=1e-3, atol=1e-6)
    everything = importance(draft, ids, LOOKAHEAD.model_copy(update={"ignore_eos": True}))
    full = torch.cat([pooled(a, 3).flatten(0, 1).amax(0) for a in attention]).mean(0)
    torch.testing.assert_close(everything, full, rtol=1e-3, atol=1e-6)


def test_int8_weights_rank_almost_alike(smollm2):
    ids = prompt(400)
    settings = {"layers": 8, "score_layers": (6, 7), "dtype": "float32"}
    exact = importance(
        TorchDraft(smollm2, DraftSettings(**settings)), ids, SelectionSettings(), (6, 7)
    )
    rounded = importance(
        TorchDraft(smollm2, DraftSettings(**settings, weights="int8")),
        ids,
        SelectionSettings(),
        (6, 7),
    )
    assert torch.corrcoef(torch.stack((exact, rounded)))[0, 1] > 0.95


def test_memory_is_flat_over_twenty_prompts_of_4000_tokens(tiny_llama):
    draft = TorchDraft(tiny_llama, DraftSettings(attention_window=128))
    process = psutil.Process()
    resident = []
    for seed in range(20):
        importance(draft, prompt(4000, seed), SelectionSettings())
        gc.collect()
        resident.append(process.memory_info().rss)
    # One prompt's keys and values in this model; a leak would keep nineteen of them.
    cache_bytes = 4000 * 4 * 2 * 2 * 8 * 4
    assert max(resident[10:]) - resident[4] < 5 * cache_bytes


def test_cancellation_ends_the_reading(tiny_llama):
    draft = TorchDraft(tiny_llama, DraftSettings())
    observer = AttentionObserver(make_rule(SelectionSettings()), 3000)
    asked = iter([False, True])
    with pytest.raises(RequestCancelledError):
        draft.observe(prompt(3000), observer, lambda: next(asked))


def test_prompts_longer_than_the_draft_are_an_engine_error(tiny_llama):
    draft = TorchDraft(tiny_llama, DraftSettings())
    observer = AttentionObserver(make_rule(SelectionSettings()), 8193)
    with pytest.raises(EngineError, match=r"8193 tokens.*at most 8192"):
        draft.observe(prompt(8193), observer)


def test_out_of_memory_is_an_engine_error(tiny_llama, monkeypatch):
    draft = TorchDraft(tiny_llama, DraftSettings())
    monkeypatch.setattr(
        "specprefill.torch_engine.kv_cache.KVCache.append",
        lambda *_: (_ for _ in ()).throw(RuntimeError("not enough memory")),
    )
    with pytest.raises(EngineError, match="not enough memory"):
        importance(draft, prompt(50), SelectionSettings())


def test_a_folder_that_lacks_weights_is_refused(tiny_llama, tmp_path):
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "damaged"
    shutil.copytree(tiny_llama, folder)
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.2.self_attn.k_proj.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ConfigurationError, match=r"lacks 1 weights, first .*k_proj"):
        TorchDraft(folder, DraftSettings())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"layers": 9}, "has 4 layers"),
        ({"score_layers": (2, 7)}, "draft has 4 layers"),
        ({"score_heads": ((3, 5), (4, 0))}, r"\[4, 0\] but the draft has 4 layers of 6 heads"),
        ({"score_heads": ((3, 6),)}, r"\[3, 6\] but the draft has 4 layers of 6 heads"),
    ],
)
def test_layers_that_the_model_lacks_are_refused(tiny_llama, settings, message):
    with pytest.raises(ConfigurationError, match=message):
        TorchDraft(tiny_llama, DraftSettings(**settings))


def test_models_without_usable_positions_are_refused(tmp_path, tiny_llama):
    from transformers import AutoConfig, GPT2Config

    GPT2Config(n_layer=1).save_pretrained(tmp_path / "gpt2")
    with pytest.raises(ConfigurationError, match="no rotary position embedding"):
        TorchDraft(tmp_path / "gpt2", DraftSettings())
    config = AutoConfig.from_pretrained(tiny_llama)
    config.rope_parameters = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    config.save_pretrained(tmp_path / "dynamic")
    with pytest.raises(ConfigurationError, match="'dynamic' depends on the sequence"):
        TorchDraft(tmp_path / "dynamic", DraftSettings())
    with pytest.raises(ConfigurationError, match="does not exist"):
        TorchDraft(tmp_path / "nowhere", DraftSettings())
