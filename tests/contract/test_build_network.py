# SPDX-License-Identifier: Apache-2.0
"""The network changes and the build, against a double of TensorRT-LLM 1.2.1."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import build_double
import numpy as np
import pytest
import torch
from rich.console import Console
from specprefill.errors import ConfigurationError, EngineError
from specprefill.settings import Settings
from specprefill.trtllm_engine.folder import read_engine_folder
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from build_engines import engines, network, runner
from build_engines.plan import BuildPlan, make_plan

# Positions of kept tokens: with gaps, the last one is the prompt's last.
POSITIONS = np.array([0, 1, 2, 40, 41, 300, 4000], dtype=np.int32)
QUERY_ROWS = np.array([4, 5, 6], dtype=np.int32)

TINY = {
    "architectures": ["LlamaForCausalLM"],
    "auto_map": {"AutoConfig": "code.Config"},
    "head_dim": 16,
    "hidden_size": 64,
    "intermediate_size": 96,
    "max_position_embeddings": 8192,
    "num_attention_heads": 4,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "rope_parameters": {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 1024,
    },
    "tie_word_embeddings": False,
    "vocab_size": 320,
}


@pytest.fixture
def world(monkeypatch, tmp_path):
    plugin = tmp_path / "libexplicit_rotary_trt10.so"
    plugin.write_bytes(b"plugin")
    monkeypatch.setattr(engines, "load_plugin", lambda: plugin)
    feeds = {"position_ids": POSITIONS, "scoring_query_index": QUERY_ROWS}
    return build_double.install(monkeypatch, feeds)


def make_folder(path: Path, config: dict) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    (path / "model.safetensors").write_bytes(b"weights")
    (path / "code.py").write_text("raise SystemExit")
    return path


def tiny_settings(tmp_path: Path, **build) -> Settings:
    models = tmp_path / "models"
    if not models.exists():
        models.mkdir()
        make_folder(models / "target", TINY)
        make_folder(models / "draft", TINY)
    calibration = tmp_path / "texts"
    calibration.mkdir(exist_ok=True)
    return Settings.model_validate(
        {
            "engine": "tensorrt_llm",
            "draft": {"model": str(models / "draft"), "layers": 3, "score_layers": [1, 2]},
            "target": {"model": str(models / "target")},
            "build": {
                "max_prompt_tokens": 4096,
                "max_new_tokens": 64,
                "calibration_dataset": str(calibration),
                **build,
            },
        }
    )


def build(world, tmp_path: Path, **build) -> BuildPlan:
    settings = tiny_settings(tmp_path, **build)
    plan = make_plan(settings, tmp_path / "engines")
    versions = engines.load_tensorrt_llm()
    build_all(plan, settings, versions)
    return plan


def build_all(plan: BuildPlan, settings: Settings, versions: dict[str, str]):
    """Build in this process, where the double is."""
    quiet = Console(quiet=True)
    return runner.build_all(plan, settings, versions, quiet, lambda call, *args: call(*args))


def hugging_face_rotation(qkv: np.ndarray, positions: np.ndarray, heads: int, kv_heads: int):
    """Rotate q and k of [T, (heads + 2 kv_heads) d] with transformers; returns q, k, v."""
    config = LlamaConfig(**{k: v for k, v in TINY.items() if k != "auto_map"})
    rows = torch.from_numpy(qkv).view(1, len(qkv), heads + 2 * kv_heads, -1).transpose(1, 2)
    q, k, v = rows.split([heads, kv_heads, kv_heads], dim=1)
    position_ids = torch.from_numpy(positions.astype(np.int64))[None]
    cos, sin = LlamaRotaryEmbedding(config)(q, position_ids)
    q, k = apply_rotary_pos_emb(q, k, cos, sin)
    return tuple(t.transpose(1, 2).reshape(len(qkv), -1).numpy() for t in (q, k, v))


def producer_of(world, tensor):
    return next(layer for layer in world.network.layers if layer.output is tensor)


def load_target(plan: BuildPlan, rank: int):
    shape = plan.target.model.shape
    table = network_table(plan)
    model_class = network.target_model_class(build_double.LLaMAForCausalLM, table)
    mapping = build_double.Mapping(
        world_size=plan.target.world_size,
        rank=rank,
        tp_size=plan.target.tp_size,
        pp_size=plan.target.pp_size,
    )
    hf = {**TINY, "rope_theta": 500000.0}
    del hf["rope_parameters"], hf["auto_map"]
    assert shape.layers == TINY["num_hidden_layers"]
    return model_class(build_double.make_config(hf, mapping))


def network_table(plan: BuildPlan) -> np.ndarray:
    from build_engines.rope import cos_sin_table

    shape = plan.target.model.shape
    return cos_sin_table(plan.target.model.rope, shape.head_size, shape.max_positions)


@pytest.mark.parametrize(("tp_size", "pp_size"), [(1, 1), (2, 1), (1, 2), (2, 2), (4, 1)])
def test_target_attention_gets_what_the_plugin_made(world, tmp_path, tp_size, pp_size):
    plan = make_plan(tiny_settings(tmp_path, tp_size=tp_size, pp_size=pp_size), tmp_path / "e")
    for rank in range(tp_size * pp_size):
        world.attention_calls.clear()
        world.plugin_fields.clear()
        model = load_target(plan, rank)
        build_double.build(
            model,
            engines._build_config(
                plan.target, sys.modules["tensorrt_llm.builder"], tmp_path / "timing.cache"
            ),
        )
        layers = model.transformer.layers
        assert len(layers) == TINY["num_hidden_layers"] // pp_size
        assert len(world.attention_calls) == len(world.plugin_fields) == len(layers)
        heads, kv_heads = TINY["num_attention_heads"] // tp_size, max(1, 2 // tp_size)
        for call, fields, layer in zip(
            world.attention_calls, world.plugin_fields, layers, strict=True
        ):
            rotary = producer_of(world, call["qkv"].trt_tensor)
            assert rotary.kind == "ExplicitRotary"
            raw, positions, table = rotary.inputs
            assert producer_of(world, raw).kind == "Gemm"
            assert positions is world.network.inputs["position_ids"].trt_tensor
            assert producer_of(world, table).kind == "Constant"
            assert fields == {
                "num_q_heads": heads,
                "num_kv_heads": kv_heads,
                "head_size": 16,
                "rotary_dim": 16,
                "rotary_style": 0,
                "field_version": 1,
            }
            expected = hugging_face_rotation(raw.value, POSITIONS, heads, kv_heads)
            got = call["qkv"].trt_tensor.value
            np.testing.assert_allclose(got, np.concatenate(expected, axis=1), atol=2e-6)
            assert call["position_embedding_type"].name == "learned_absolute"
            assert call["rotary_embedding_dim"] == 0
            assert call["rotary_embedding_scale_type"].name == "none"
            assert layer.attention.position_embedding_type.name == "learned_absolute"
            assert layer.attention.rotary_embedding_dim == 0


def test_every_rank_declares_position_ids_with_the_range_of_its_tokens(world, tmp_path):
    plan = make_plan(tiny_settings(tmp_path, pp_size=2), tmp_path / "e")
    config = engines._build_config(
        plan.target, sys.modules["tensorrt_llm.builder"], tmp_path / "timing.cache"
    )
    for rank in range(2):
        build_double.build(load_target(plan, rank), config)
        tensor = world.network.inputs["position_ids"]
        (profile,) = tensor.profiles
        assert (profile.min, profile.max) == ([1], [4096])
        assert tensor.dtype == "int32"


def test_attention_is_put_back_even_after_an_error(world, tmp_path):
    plan = make_plan(tiny_settings(tmp_path), tmp_path / "e")
    world.plugin_is_registered = False
    config = engines._build_config(
        plan.target, sys.modules["tensorrt_llm.builder"], tmp_path / "timing.cache"
    )
    with pytest.raises(EngineError, match="load_plugin"):
        build_double.build(load_target(plan, 0), config)
    module = sys.modules["tensorrt_llm.layers.attention"]
    assert module.gpt_attention is build_double.gpt_attention


def test_a_layer_that_would_rotate_twice_is_refused():
    hook = network._RotateBeforeAttention(None, None)
    with pytest.raises(EngineError, match="second time"):
        hook(lambda **_: None, rotary_embedding_dim=128, layer_idx=3, qkv=None)


def test_a_partial_rotary_layer_is_refused(world, tmp_path):
    plan = make_plan(tiny_settings(tmp_path), tmp_path / "e")
    attention = load_target(plan, 0).transformer.layers[0].attention
    attention.rotary_embedding_dim = 8
    with pytest.raises(EngineError, match="8 of 16"):
        network.disable_builtin_rotary(attention)


def test_an_attention_that_bypasses_the_hook_is_noticed(world, tmp_path, monkeypatch):
    plan = make_plan(tiny_settings(tmp_path), tmp_path / "e")
    model = load_target(plan, 0)
    monkeypatch.setattr(build_double.LLaMAForCausalLM, "forward", lambda self, **inputs: None)
    config = engines._build_config(
        plan.target, sys.modules["tensorrt_llm.builder"], tmp_path / "timing.cache"
    )
    with pytest.raises(EngineError, match="another way"):
        build_double.build(model, config)


def test_position_ids_that_nobody_reads_are_noticed(world):
    build_double.declare("position_ids", tokens=[[1, 1, 1]])
    with pytest.raises(EngineError, match="0 layers of the network read position_ids"):
        network._check_consumed("position_ids", 1)


def test_separate_projections_are_refused():
    with pytest.raises(EngineError, match="separate products"):
        network._fused([1, 2, 3])


def test_build_of_both_engines(world, tmp_path):
    plan = build(world, tmp_path, tp_size=2, pp_size=2)
    output = plan.output
    assert {f.name for f in (output / "draft").iterdir()} == {"config.json", "rank0.engine"}
    assert {f.name for f in (output / "target").iterdir()} == {
        "config.json",
        *(f"rank{rank}.engine" for rank in range(4)),
    }
    (calibration,) = world.quantize_calls
    assert calibration["quant_config"].quant_algo == "FP8"
    assert calibration["quant_config"].kv_cache_quant_algo == "FP8"
    draft_build, *target_builds = world.build_configs
    assert draft_build.kv_cache_type.name == "CONTINUOUS"
    assert draft_build.force_num_profiles == 1
    assert draft_build.plugin_config.paged_kv_cache is False
    assert draft_build.max_num_tokens == 4096
    assert len(target_builds) == 4
    for config in target_builds:
        assert config.kv_cache_type.name == "PAGED"
        assert config.plugin_config.use_fp8_context_fmha is True
        assert config.plugin_config.gemm_plugin is None
    folder = read_engine_folder(str(output))
    assert folder.draft.layers == 3
    assert folder.kv_cache_fraction == plan.gpu.kv_cache_free_gpu_memory_fraction
    assert folder.context_length == 8192
    assert folder.query_window == 256
    manifest = json.loads((output / "manifest.json").read_text())
    assert manifest["score_layers"] == [1, 2]
    assert manifest["versions"]["tensorrt"] == "10.14.1.48"
    assert manifest["files"]["target/rank3.engine"]["bytes"] > 0
    staged = json.loads((output / "work" / "draft_model" / "config.json").read_text())
    assert staged["num_hidden_layers"] == 3
    assert staged["rope_scaling"]["rope_type"] == "llama3"
    assert not (output / "work" / "draft_model" / "code.py").exists()


def test_draft_exports_rotated_queries_of_the_chosen_rows(world, tmp_path):
    settings = tiny_settings(tmp_path)
    plan = make_plan(settings, tmp_path / "engines")
    table = network_table(plan)
    model_class = network.draft_model_class(build_double.LLaMAForCausalLM, table, (1, 2), 16, 256)
    hf = {**TINY, "rope_theta": 500000.0, "num_hidden_layers": 3}
    del hf["rope_parameters"], hf["auto_map"]
    mapping = build_double.Mapping(world_size=1, rank=0, tp_size=1, pp_size=1)
    model = model_class(build_double.make_config(hf, mapping))
    config = engines._build_config(
        plan.draft, sys.modules["tensorrt_llm.builder"], tmp_path / "timing.cache"
    )
    build_double.build(model, config)
    assert [call["layer_idx"] for call in world.attention_calls] == [0, 1, 2]
    for call in world.attention_calls:
        assert producer_of(world, call["qkv"].trt_tensor).kind == "Gemm"
        assert call["position_embedding_type"].name == "rope_gpt_neox"
        assert call["rotary_embedding_dim"] == 16
    queries = {n: v for n, v in world.network.outputs.items() if n.startswith("scoring")}
    assert sorted(queries) == ["scoring_queries_1", "scoring_queries_2"]
    for layer in (1, 2):
        qkv = world.attention_calls[layer]["qkv"].trt_tensor.value
        expected, _, _ = hugging_face_rotation(qkv, POSITIONS, 4, 2)
        got = queries[f"scoring_queries_{layer}"]
        assert got.shape == (len(QUERY_ROWS), 4 * 16)
        np.testing.assert_allclose(got, expected[QUERY_ROWS], atol=2e-6)
    # No layer but attention's own takes part in anything of the prompt's length.
    for layer in world.network.layers:
        if layer.kind == "ExplicitRotary":
            assert len(layer.output.value) == len(QUERY_ROWS)
    index = world.network.inputs["scoring_query_index"]
    assert all((p.min, p.opt, p.max) == ([1], [16], [256]) for p in index.profiles)


def test_fp8_draft_has_a_range_for_each_profile_and_bfloat16_keys(world, tmp_path):
    plan = build(world, tmp_path, draft_weights="fp8")
    draft_build = world.build_configs[0]
    assert draft_build.plugin_config.gemm_plugin is None
    draft_calibration, target_calibration = world.quantize_calls
    assert draft_calibration["quant_config"].kv_cache_quant_algo is None
    assert target_calibration["quant_config"].kv_cache_quant_algo == "FP8"
    assert plan.draft.kv_cache == "bfloat16"


def test_unquantised_target_needs_no_calibration(world, tmp_path):
    build(
        world,
        tmp_path,
        target_weights="bfloat16",
        target_kv_cache="bfloat16",
        calibration_dataset=None,
    )
    assert not world.quantize_calls


def test_steps_are_skipped_until_an_input_changes(world, tmp_path):
    settings = tiny_settings(tmp_path)
    plan = make_plan(settings, tmp_path / "engines")
    versions = engines.load_tensorrt_llm()

    def outcomes(changed: Settings = settings, plan: BuildPlan = plan) -> dict[str, str]:
        results = build_all(plan, changed, versions)
        return {result.name: result.outcome for result in results}

    assert set(outcomes().values()) == {"done"}
    assert set(outcomes().values()) == {"already there"}
    (plan.output / "target" / "rank0.engine").unlink()
    assert [n for n, o in outcomes().items() if o == "done"] == ["build_target_rank0"]
    larger = tiny_settings(tmp_path, max_batch_size=4)
    again = outcomes(larger, make_plan(larger, plan.output))
    assert [n for n, o in again.items() if o == "done"] == ["build_target_rank0"]
    calibrated = tiny_settings(tmp_path, max_batch_size=4, calibration_samples=99)
    again = outcomes(calibrated, make_plan(calibrated, plan.output))
    done = [n for n, o in again.items() if o == "done"]
    assert done == ["quantize_target", "build_target_rank0"]
    larger = calibrated
    (tmp_path / "models" / "draft" / "model.safetensors").write_bytes(b"other weights")
    again = outcomes(larger, make_plan(larger, plan.output))
    assert again["build_draft_rank0"] == "done"
    assert again["build_target_rank0"] == "already there"


def test_fewer_ranks_leave_no_engine_of_the_build_before(world, tmp_path):
    build(world, tmp_path, tp_size=4)
    plan = build(world, tmp_path, tp_size=2)
    engines_left = {file.name for file in (plan.output / "target").glob("*.engine")}
    assert engines_left == {"rank0.engine", "rank1.engine"}
    checkpoint = plan.output / "work" / "target_checkpoint"
    assert not (checkpoint / "rank2.safetensors").exists()
    manifest = json.loads((plan.output / "manifest.json").read_text())
    assert "target/rank2.engine" not in manifest["files"]
    assert "IS_BUILDING" not in os.environ


def test_a_failed_build_leaves_no_manifest(world, tmp_path):
    plan = build(world, tmp_path)
    assert (plan.output / "manifest.json").exists()
    world.builds_an_engine = False
    with pytest.raises(EngineError, match="built no engine"):
        build(world, tmp_path, max_batch_size=4)
    assert not (plan.output / "manifest.json").exists()


def test_check_engine_refuses_what_the_runtime_would_not_notice(world, tmp_path):
    plan = build(world, tmp_path)
    file = plan.output / "target" / "rank0.engine"
    content = json.loads(file.read_bytes())

    def check(match: str, **changes: object) -> None:
        file.write_text(json.dumps({**content, **changes}))
        with pytest.raises(EngineError, match=match):
            engines.check_engine(plan.target, 0, file)

    without = [name for name in content["inputs"] if name != "position_ids"]
    check("no tensor position_ids", inputs=without)
    check("not an input", inputs=without, outputs=[*content["outputs"], "position_ids"])
    unread = [{**layer, "Inputs": []} for layer in content["layers"]]
    check("no layer reads position_ids", layers=unread)
    check("inspector", layers=["names", "only"])
    file.write_bytes(b"")
    with pytest.raises(EngineError, match="deserialised"):
        engines.check_engine(plan.target, 0, file)


def test_the_planned_tensors_are_those_of_the_facts(tmp_path):
    plan = make_plan(tiny_settings(tmp_path, tp_size=2, pp_size=2), tmp_path / "e")
    known = set(build_double.FACTS["engine_tensors"])
    ours = {"scoring_query_index", *(f"scoring_queries_{layer}" for layer in (1, 2))}
    for engine in (plan.draft, plan.target):
        for rank in range(engine.world_size):
            for tensor in engine.tensors(rank):
                stem, _, number = tensor.name.rpartition("_")
                generic = f"{stem}_{{i}}" if number.isdigit() else tensor.name
                assert tensor.name in ours or generic in known


def test_a_checkpoint_with_another_rotary_base_is_refused(world, tmp_path):
    plan = make_plan(tiny_settings(tmp_path), tmp_path / "e")
    config = load_target(plan, 0).config
    config.rotary_base = 10000.0
    with pytest.raises(ConfigurationError, match="rotary_base 10000"):
        engines.check_model_config(plan.target, config)


def test_versions_and_block_reuse_are_checked_before_anything_is_built(
    world, tmp_path, monkeypatch
):
    reuse = Settings.model_validate({"tensorrt_llm": {"enable_block_reuse": True}})
    engines.check_block_reuse(reuse)
    executor = sys.modules["tensorrt_llm.bindings.executor"]
    monkeypatch.setattr(executor, "Request", object)
    with pytest.raises(ConfigurationError, match="enable_block_reuse"):
        engines.check_block_reuse(reuse)
    engines.check_block_reuse(Settings())
    monkeypatch.setattr(sys.modules["tensorrt_llm"], "__version__", "1.4.0")
    with pytest.raises(ConfigurationError, match=r"got 1\.4\.0; allowed: 1\.2\.x"):
        engines.load_tensorrt_llm()


def test_without_tensorrt_llm_the_error_says_what_still_works(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorrt_llm", None)
    with pytest.raises(ConfigurationError, match="--dry-run"):
        engines.load_tensorrt_llm()
