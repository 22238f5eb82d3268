# SPDX-License-Identifier: Apache-2.0
"""Grown models compute the same function; random models have the published shape."""

import json
import shutil

import numpy as np
import pytest
import torch
from specprefill.embedded_model import resolve_model
from specprefill.errors import ConfigurationError
from specprefill.memory_plan import ModelShape, shape_from_config
from specprefill.model_sources import cache, shapes
from specprefill.model_sources.grown import write_grown_model
from specprefill.settings import SamplingSettings, TargetSettings
from specprefill.target.base import GenerationRequest
from specprefill.target.torch_target import TorchTarget
from transformers import AutoModelForCausalLM

SMALL = ModelShape(2, 4, 2, 8, 32, 64, 49152, True, 2048)


@pytest.fixture
def own_cache(tmp_path, smollm2, monkeypatch):
    """A cache of our own that holds the embedded model."""
    (tmp_path / "smollm2").symlink_to(smollm2)
    monkeypatch.setenv("SPECPREFILL_CACHE", str(tmp_path))
    yield tmp_path
    # pytest keeps the folders of its last runs, and a grown model is large.
    for folder in tmp_path.glob("grown-*"):
        shutil.rmtree(folder)


@pytest.mark.parametrize("factor", [2, 4])
def test_a_grown_model_has_equal_logits_and_more_layers(tiny_llama, tmp_path, factor):
    write_grown_model(tiny_llama, factor, f"grown:tiny-x{factor}", tmp_path / "grown")
    original = AutoModelForCausalLM.from_pretrained(tiny_llama)
    grown = AutoModelForCausalLM.from_pretrained(tmp_path / "grown")
    assert grown.config.num_hidden_layers == factor * original.config.num_hidden_layers
    ids = torch.arange(50, 130)[None]
    with torch.inference_mode():
        assert torch.equal(grown(ids).logits, original(ids).logits)


def test_idle_layers_do_real_work(tiny_llama, tmp_path):
    """Zero matrices could be cheaper; only the two output projections may be zero."""
    write_grown_model(tiny_llama, 2, "grown:tiny-x2", tmp_path / "grown")
    grown = AutoModelForCausalLM.from_pretrained(tmp_path / "grown")
    zero = {name for name, weight in grown.named_parameters() if not weight.any()}
    assert zero == {
        f"model.layers.{layer}.{name}.weight"
        for layer in (1, 3, 5, 7)
        for name in ("self_attn.o_proj", "mlp.down_proj")
    }


def greedy(folder, tokens=12):
    engine = TorchTarget(folder, TargetSettings(model=str(folder), dtype="float32"))
    ids = np.arange(300, 460, dtype=np.int32)
    kept = np.flatnonzero((np.arange(160) // 16) % 3 == 0).astype(np.int32)
    kept = np.union1d(kept, [159]).astype(np.int32)
    request = GenerationRequest(
        "r", ids[kept], kept, 160, SamplingSettings(max_tokens=tokens), frozenset()
    )
    try:
        steps = list(engine.submit(request))
    finally:
        engine.close()
    return [(step.token_id, step.log_prob) for step in steps]


def test_the_grown_embedded_model_answers_as_the_original_through_the_target(own_cache, smollm2):
    said = []
    folder = resolve_model("grown:smollm2-x2", said.append)
    assert said == ["writing grown:smollm2-x2 (once)"]
    assert cache.remark(folder) == "grown x2"
    assert greedy(folder) == greedy(smollm2)
    resolve_model("grown:smollm2-x2", lambda _: pytest.fail("written again"))


@pytest.mark.parametrize("name", ["grown:smollm2-x3", "grown:smollm2", "grown:other-x2"])
def test_unknown_grown_models_are_refused(name):
    with pytest.raises(ConfigurationError, match="allowed: grown:smollm2-x2"):
        resolve_model(name)


def test_a_published_shape_is_written_with_random_weights(own_cache, monkeypatch):
    monkeypatch.setattr(shapes, "PUBLISHED_SHAPES", {"small": SMALL})
    folder = resolve_model("shape:small")
    assert shape_from_config(json.loads((folder / "config.json").read_text())) == SMALL
    assert cache.remark(folder) == "random weights"
    model = AutoModelForCausalLM.from_pretrained(folder)
    for name, weight in model.named_parameters():
        if "norm" not in name:
            assert 0.01 < float(weight.detach().float().std()) < 0.03, name


def test_a_random_model_with_more_tokens_than_the_tokenizer_still_gives_text(
    own_cache, monkeypatch, tokenizer
):
    wide = ModelShape(2, 4, 2, 8, 32, 64, len(tokenizer) + 5000, False, 2048)
    monkeypatch.setattr(shapes, "PUBLISHED_SHAPES", {"wide": wide})
    from specprefill.pipeline import Pipeline
    from specprefill.settings import load_settings

    settings = load_settings(
        overrides={"target": {"model": "shape:wide"}, "draft": {"model": "shape:wide"}},
        environment={},
    )
    pipeline = Pipeline(settings)
    try:
        pieces = list(pipeline.start("some words", sampling={"max_tokens": 20}).pieces)
    finally:
        pipeline.close()
    assert sum(len(piece.token_ids) for piece in pieces) > 0


def test_unknown_shapes_are_refused():
    with pytest.raises(ConfigurationError, match=r"'gpt-9' is no published shape; .*llama-3.1-8b"):
        resolve_model("shape:gpt-9")


def test_a_damaged_folder_is_written_again(own_cache, monkeypatch):
    monkeypatch.setattr(shapes, "PUBLISHED_SHAPES", {"small": SMALL})
    folder = resolve_model("shape:small")
    (folder / "model.safetensors").write_bytes(b"half")
    said = []
    resolve_model("shape:small", said.append)
    assert said == ["writing shape:small (once)"]


def test_a_full_disk_is_told_before_anything_is_written(own_cache, monkeypatch):
    usage = cache.shutil.disk_usage(own_cache)._replace(free=1000)
    monkeypatch.setattr(cache.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(ConfigurationError, match=r"needs 2.5 GB .* SPECPREFILL_CACHE"):
        resolve_model("shape:llama-3.2-1b")
    assert not list(own_cache.glob("shape*"))
