# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import os
import pickle
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from specprefill.errors import ConfigurationError, EngineError
from specprefill.explicit_rotary.cos_sin_table import build_cos_sin_table, inverse_frequencies_of
from specprefill.settings import Settings, load_settings
from transformers import LlamaConfig
from typer.testing import CliRunner

from build_engines.__main__ import app, engine_folder
from build_engines.digest import LARGEST_WHOLE_FILE, file_digest, folder_digest
from build_engines.engines import layers_that_read
from build_engines.isolation import run_in_own_process
from build_engines.plan import make_plan
from build_engines.rope import cos_sin_table, inverse_frequencies, rope_from_config
from build_engines.runner import check_inputs
from build_engines.source_model import (
    config_for_tensorrt_llm,
    read_model_folder,
    stage_model_folder,
)

ROOT = Path(__file__).parents[2]
MODELS = Path(__file__).parent / "data" / "models"
CONFIGS = {
    "llama-3.1-8b-fp8": "llama-3.1-8b",
    "llama-3.1-70b-fp8": "llama-3.1-70b",
    "llama-3.1-405b-fp8": "llama-3.1-405b",
}


def read_config(name: str) -> dict:
    return json.loads((MODELS / name / "config.json").read_text())


def deployment(
    target_name: str = "llama-3.1-70b", draft_name: str = "llama-3.2-1b", **sections
) -> Settings:
    values = {
        "engine": "tensorrt_llm",
        "target": {"model": str(MODELS / target_name)},
        "draft": {"model": str(MODELS / draft_name)},
        "build": {"tp_size": 4},
    }
    for name, fields in sections.items():
        if isinstance(fields, dict):
            values[name] = {**values.get(name, {}), **fields}
        else:
            values[name] = fields
    return Settings.model_validate(values)


def refuse(match: str, settings: Settings, output: Path = Path("/engines")) -> None:
    with pytest.raises(ConfigurationError, match=match):
        make_plan(settings, output)


def changed_model(tmp_path: Path, name: str = "llama-3.1-8b", **changes) -> str:
    config = {**read_config(name), **changes}
    config = {key: value for key, value in config.items() if value != "absent"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    return str(tmp_path)


# Dry run


@pytest.mark.parametrize(("config", "target"), CONFIGS.items())
def test_dry_run_of_every_deployment(config, target, monkeypatch):
    monkeypatch.setenv("SPECPREFILL__TARGET__MODEL", str(MODELS / target))
    monkeypatch.setenv("SPECPREFILL__DRAFT__MODEL", str(MODELS / "llama-3.2-1b"))
    monkeypatch.setenv("COLUMNS", "160")
    result = CliRunner().invoke(
        app, ["--config", str(ROOT / "configs" / f"{config}.yaml"), "--dry-run"]
    )
    assert result.exit_code == 0, result.output
    text = result.output
    world_size = load_settings(ROOT / "configs" / f"{config}.yaml").build.tp_size
    for rank in range(world_size):
        assert f"build_target_rank{rank}" in text
    assert f"build_target_rank{world_size}" not in text
    for part in (
        "position_ids",
        "scoring_query_index",
        "scoring_queries_{0..15}",
        "(rows, 2048)",
        "past_key_value_{0..15}",
        "kv_cache_block_offsets",
        "ExplicitRotary plugin, before attention",
        "bfloat16, contiguous",
        "fp8, blocks of 32 tokens",
        "llama3, theta 500000",
        "target key-value pool",
        "kv_cache_free_gpu_memory_fraction",
        "manifest.json",
    ):
        assert part in text, part
    assert ("all_reduce_workspace" in text) == (world_size > 1)


def test_dry_run_shows_every_kind_of_pipeline_stage(monkeypatch, tmp_path):
    settings = deployment("llama-3.1-405b", build={"tp_size": 4, "pp_size": 3})
    file = tmp_path / "deployment.yaml"
    file.write_text(yaml.safe_dump(settings.model_dump(mode="json")))
    result = CliRunner().invoke(
        app, ["--config", str(file), "--dry-run", "--output", str(tmp_path / "e")]
    )
    assert result.exit_code == 0, result.output
    for rank in (0, 4, 8):
        assert f"target/rank{rank}.engine" in result.output
    assert not (tmp_path / "e").exists()


def test_a_refusal_is_one_line_on_stderr(monkeypatch):
    monkeypatch.setenv("SPECPREFILL__TARGET__MODEL", "/nowhere")
    monkeypatch.setenv("SPECPREFILL__DRAFT__MODEL", str(MODELS / "llama-3.2-1b"))
    config = str(ROOT / "configs" / "llama-3.1-8b-fp8.yaml")
    result = CliRunner().invoke(app, ["--config", config, "--dry-run"])
    assert result.exit_code == 1
    assert "target.model: /nowhere/config.json" in result.stderr
    assert "Traceback" not in result.output


def test_the_engine_folder_comes_from_settings_or_the_command_line():
    named = Settings.model_validate({"tensorrt_llm": {"engine_dir": "/engines/a"}})
    assert engine_folder(named, None) == Path("/engines/a")
    assert engine_folder(named, Path("/b")) == Path("/b")
    with pytest.raises(ConfigurationError, match=r"tensorrt_llm\.engine_dir: unset"):
        engine_folder(Settings(), None)


# Plan


def test_plan_of_the_70b():
    plan = make_plan(deployment(), Path("/engines"))
    assert plan.target.max_seq_len == 32768 + 2048
    assert plan.target.max_num_tokens == 32768
    assert plan.draft.max_seq_len == 32768 + 64
    assert plan.draft.max_num_tokens == 32768
    assert plan.draft.score_layers == tuple(range(16))
    assert plan.target.world_size == 4
    assert plan.other_gpu is not None
    assert plan.other_gpu.pool > plan.gpu.pool
    names = [step.name for step in plan.steps()]
    assert names[:2] == ["stage_draft", "build_draft_rank0"]
    assert "quantize_target" in names
    assert "quantize_draft" not in names


def test_a_draft_on_its_own_gpu_leaves_the_pool_alone():
    plan = make_plan(deployment(build={"draft_shares_gpu": False}), Path("/engines"))
    assert plan.gpu.draft_weights == 0
    assert plan.other_gpu is None
    refuse(
        "too small for the draft alone",
        deployment(build={"draft_shares_gpu": False, "gpu_memory_gib": 6}),
    )


def test_early_exit_drops_layers_and_their_tensors():
    settings = deployment(draft={"layers": 10, "score_layers": [6, 9]})
    plan = make_plan(settings, Path("/engines"))
    names = {tensor.name for tensor in plan.draft.tensors(0)}
    assert "past_key_value_9" in names
    assert "past_key_value_10" not in names
    exported = {name for name in names if name.startswith("scoring_queries")}
    assert exported == {f"scoring_queries_{layer}" for layer in (6, 7, 8, 9)}
    assert make_plan(deployment(), Path("/e")).draft_memory.weights > plan.draft_memory.weights


def test_pipeline_stages_have_their_own_inputs_and_outputs_but_all_have_position_ids():
    plan = make_plan(deployment(build={"tp_size": 2, "pp_size": 4}), Path("/engines"))
    for rank in range(8):
        tensors = {t.name: t for t in plan.target.tensors(rank)}
        assert tensors["position_ids"].is_input
        assert ("input_ids" in tensors) == (rank < 2)
        assert ("hidden_states_input" in tensors) == (rank >= 2)
        assert ("logits" in tensors) == (rank >= 6)
        assert ("last_token_ids" in tensors) == (rank >= 6)
        assert plan.target.layers_of(rank) == range(rank // 2 * 20, rank // 2 * 20 + 20)


def test_an_fp8_folder_needs_no_calibration(tmp_path):
    folder = changed_model(tmp_path)
    quantization = {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(quantization))
    settings = deployment(target={"model": folder}, build={"tp_size": 1})
    plan = make_plan(settings, Path("/engines"))
    assert not plan.target.needs_calibration
    refuse(
        r"build\.target_weights: got bfloat16",
        deployment(
            target={"model": folder},
            build={"target_weights": "bfloat16", "target_kv_cache": "bfloat16"},
        ),
    )
    quantization["quantization"]["quant_algo"] = "NVFP4"
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(quantization))
    refuse("got quant_algo NVFP4", settings)


def checkpoint_config(**changes) -> dict:
    return {
        "architecture": "LlamaForCausalLM",
        "num_hidden_layers": 80,
        "hidden_size": 8192,
        "mapping": {"tp_size": 4, "pp_size": 1},
        "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"},
        **changes,
    }


def test_a_quantised_checkpoint_replaces_staging_and_quantising(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(checkpoint_config()))
    plan = make_plan(deployment(build={"target_checkpoint": str(tmp_path)}), Path("/engines"))
    names = [step.name for step in plan.steps()]
    assert "quantize_target" not in names
    assert "stage_target" not in names


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mapping": {"tp_size": 2}}, r"mapping\.tp_size: got 2; allowed: 4"),
        ({"architecture": "MedusaForCausalLM"}, "architecture: got MedusaForCausalLM"),
        ({"max_draft_len": 4}, "max_draft_len: got 4; allowed: 0"),
        ({"num_hidden_layers": 32}, "num_hidden_layers: got 32"),
        ({"quantization": {"quant_algo": "W4A16"}}, "quant_algo: got W4A16; allowed: FP8"),
        ({"quantization": None}, "is no checkpoint"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused(tmp_path, changes, message):
    (tmp_path / "config.json").write_text(json.dumps(checkpoint_config(**changes)))
    refuse(message, deployment(build={"target_checkpoint": str(tmp_path)}))


def test_a_checkpoint_that_is_not_there_is_refused(tmp_path):
    refuse("target_checkpoint", deployment(build={"target_checkpoint": str(tmp_path / "no")}))


# Refusals


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["Qwen2ForCausalLM"]}, r"Qwen2ForCausalLM \(TensorRT-LLM fuses"),
        ({"architectures": ["Qwen3ForCausalLM"]}, "Qwen3ForCausalLM"),
        ({"architectures": ["GPT2LMHeadModel"]}, "got GPT2LMHeadModel; allowed: LlamaForCausalLM"),
        ({"architectures": "absent"}, r"got \(none\)"),
        ({"rope_theta": "absent", "rope_scaling": None}, "neither rope_theta nor"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "got 'yarn'; allowed: default"),
        ({"rope_scaling": {"type": "dynamic", "factor": 4.0}}, "got 'dynamic'"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "low_freq_factor: got None"),
        ({"rope_parameters": {"full_attention": {}, "rope_theta": 1e4}}, "between kinds of layers"),
        ({"partial_rotary_factor": 0.5}, r"partial_rotary_factor: got 0\.5; allowed: 1"),
        ({"sliding_window": 4096}, "sliding_window: got 4096; allowed: none"),
        ({"quantization_config": {"quant_method": "fbgemm_fp8"}}, "got 'fbgemm_fp8'"),
        ({"num_hidden_layers": "many"}, r"target\.model: .*num_hidden_layers: got 'many'"),
        ({"max_position_embeddings": 4096}, "max_prompt_tokens: got 32768; allowed: up to 2048"),
    ],
)
def test_a_model_that_cannot_be_built_is_refused_by_field_value_and_allowed(
    tmp_path, changes, message
):
    folder = changed_model(tmp_path, **changes)
    refuse(message, deployment(target={"model": folder}, build={"tp_size": 1}))


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"engine": "torch"}, "engine: got torch; allowed: tensorrt_llm"),
        ({"draft": {"weights": "int8"}}, r"draft\.weights: got int8"),
        ({"draft": {"attention_window": 512}}, r"draft\.attention_window: got 512; allowed: unset"),
        ({"draft": {"layers": 17}}, r"draft\.layers: got 17; allowed: 1 to 16"),
        ({"draft": {"score_layers": [4, 16]}}, r"draft\.score_layers: got \[4, 16\]"),
        ({"build": {"max_num_tokens": 4096}}, r"build\.max_num_tokens: got 4096; allowed: from"),
        ({"build": {"tp_size": 3}}, r"build\.tp_size: got 3; allowed: a divisor .* 64 query heads"),
        ({"build": {"pp_size": 3}}, r"build\.pp_size: got 3; allowed: .* 80 layers"),
        ({"build": {"tp_size": 1}}, "a GPU of 80.0 GiB is too small"),
        ({"build": {"gpu_memory_gib": 24}}, "a GPU of 24.0 GiB is too small"),
        ({"build": {"max_prompt_tokens": 130000}}, "max_prompt_tokens: got 130000; allowed: up to"),
        (
            {"tensorrt_llm": {"kv_cache_free_gpu_memory_fraction": 0.9}},
            r"kv_cache_free_gpu_memory_fraction: got 0\.9; allowed: up to 0\.8",
        ),
    ],
)
def test_settings_that_cannot_work_are_refused(sections, message):
    refuse(message, deployment(**sections))


def test_a_tensor_beyond_31_bits_is_refused():
    settings = deployment(
        draft_name="llama-3.1-8b", build={"max_prompt_tokens": 100000, "max_num_tokens": 32768}
    )
    refuse(r"build\.max_prompt_tokens: got 100000; allowed: up to 74898: the draft's", settings)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"speculative_decoding": "eagle"}, r"build\.speculative_decoding: got 'eagle'.*'none'"),
        (
            {"capacity_scheduler": "max_utilization"},
            r"build\.capacity_scheduler: got 'max_utilization'.*'guaranteed_no_evict'",
        ),
        ({"target_weights": "bfloat16"}, "target_kv_cache fp8 needs target_weights fp8"),
        ({"tp_size": 0}, r"build\.tp_size: got 0"),
    ],
)
def test_settings_refuse_what_loses_positions(section, message):
    with pytest.raises(ConfigurationError, match=message):
        load_settings(overrides={"build": section}, environment={})


@pytest.mark.parametrize("part", ["vila", "LLaVA", "exaone"])
def test_a_path_that_tensorrt_llm_misreads_is_refused(part):
    refuse(f"contains '{part.lower()}'", deployment(), Path(f"/data/{part}/engines"))


# Inputs


def with_files(tmp_path: Path, tokenizers: tuple[Path, Path] | None = None) -> Settings:
    for name, model in (("draft", "llama-3.2-1b"), ("target", "llama-3.1-8b")):
        folder = tmp_path / name
        folder.mkdir()
        shutil.copy(MODELS / model / "config.json", folder)
        (folder / "model.safetensors").write_bytes(b"weights")
    if tokenizers:
        for name, source in zip(("draft", "target"), tokenizers, strict=True):
            for file in source.glob("*token*"):
                shutil.copy(file, tmp_path / name)
    texts = tmp_path / "texts"
    texts.mkdir()
    return deployment(
        target={"model": str(tmp_path / "target")},
        draft={"model": str(tmp_path / "draft")},
        build={"tp_size": 1, "calibration_dataset": str(texts)},
    )


def make_tokenizer(folder: Path, words: list[str]) -> Path:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: index for index, word in enumerate(["[UNK]", *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]").save_pretrained(folder)
    return folder


def test_inputs_with_the_same_tokenizer_are_accepted(tmp_path):
    tokenizer = make_tokenizer(tmp_path / "tokenizer", ["a", "b"])
    settings = with_files(tmp_path, (tokenizer, tokenizer))
    check_inputs(make_plan(settings, tmp_path / "engines"), settings)


def test_a_build_without_tensorrt_llm_ends_before_anything_is_written(tmp_path):
    tokenizer = make_tokenizer(tmp_path / "tokenizer", ["a", "b"])
    settings = with_files(tmp_path, (tokenizer, tokenizer))
    file = tmp_path / "deployment.yaml"
    file.write_text(yaml.safe_dump(settings.model_dump(mode="json")))
    output = tmp_path / "engines"
    result = CliRunner().invoke(app, ["--config", str(file), "--output", str(output)])
    assert result.exit_code == 1
    assert "TensorRT-LLM cannot be imported" in result.stderr
    assert not output.exists()


def test_mismatched_tokenizers_are_refused(tmp_path):
    first = make_tokenizer(tmp_path / "first", ["a", "b"])
    second = make_tokenizer(tmp_path / "second", ["b", "a"])
    settings = with_files(tmp_path, (first, second))
    with pytest.raises(ConfigurationError, match="different tokenizers"):
        check_inputs(make_plan(settings, tmp_path / "engines"), settings)


def test_missing_weights_and_texts_are_refused(tmp_path):
    settings = with_files(tmp_path)
    plan = make_plan(settings, tmp_path / "engines")
    (tmp_path / "texts").rmdir()
    with pytest.raises(ConfigurationError, match=r"build\.calibration_dataset"):
        check_inputs(plan, settings)
    (tmp_path / "draft" / "model.safetensors").unlink()
    with pytest.raises(ConfigurationError, match=r"draft\.model: .*safetensors"):
        check_inputs(plan, settings)


# Rotary embedding and staged folders

ROPES = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": read_config("llama-3.1-8b")["rope_scaling"],
}


@pytest.mark.parametrize("scaling", ROPES.values(), ids=ROPES)
@pytest.mark.parametrize("theta", [10000.0, 500000.0])
@pytest.mark.parametrize("head_size", [64, 128])
def test_frequencies_and_table_have_the_bits_of_hugging_face(scaling, theta, head_size):
    values = {"rope_theta": theta, **scaling}
    hugging_face = LlamaConfig(
        head_dim=head_size, max_position_embeddings=4096, rope_parameters=dict(values)
    )
    rope = rope_from_config({"rope_parameters": values}, "target.model")
    expected, _ = inverse_frequencies_of(hugging_face)
    assert torch.equal(inverse_frequencies(rope, head_size), expected)
    table = torch.from_numpy(cos_sin_table(rope, head_size, 4096))
    assert torch.equal(table, build_cos_sin_table(hugging_face))


def test_both_forms_of_rotary_settings_are_the_same_model():
    old = read_config("llama-3.1-8b")
    new = {key: value for key, value in old.items() if key not in ("rope_theta", "rope_scaling")}
    new["rope_parameters"] = {"rope_theta": old["rope_theta"], **old["rope_scaling"]}
    rope = rope_from_config(new, "target.model")
    assert rope == rope_from_config(old, "target.model")
    assert rope.in_transformers_4_form()["rope_scaling"] == old["rope_scaling"]
    plain = rope_from_config({"rope_theta": 1e4, "rope_scaling": None}, "target.model")
    assert plain.in_transformers_4_form() == {"rope_theta": 1e4, "rope_scaling": None}


def test_a_staged_folder_is_what_transformers_4_reads(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    config = read_config("llama-3.2-1b")
    del config["rope_scaling"]
    config["rope_parameters"] = {"rope_theta": config.pop("rope_theta"), "rope_type": "default"}
    config.update(auto_map={"AutoModel": "code.Model"}, dtype="bfloat16")
    (source / "config.json").write_text(json.dumps(config))
    (source / "model.safetensors").write_bytes(b"weights")
    (source / "code.py").write_text("")
    model = read_model_folder(source, "draft.model").with_layers(4, "draft.layers")
    stage_model_folder(model, tmp_path / "staged")
    stage_model_folder(model, tmp_path / "staged")
    names = {file.name for file in (tmp_path / "staged").iterdir()}
    assert names == {"config.json", "model.safetensors"}
    assert (tmp_path / "staged" / "model.safetensors").read_bytes() == b"weights"
    staged = json.loads((tmp_path / "staged" / "config.json").read_text())
    assert staged == config_for_tensorrt_llm(model)
    assert staged["num_hidden_layers"] == 4
    assert staged["rope_theta"] == 500000.0
    assert staged["rope_scaling"] is None
    assert not {"rope_parameters", "auto_map", "dtype"} & staged.keys()


# Processes, digests and inspection


def raise_configuration_error(message: str) -> None:
    raise ConfigurationError(message)


def test_a_step_in_its_own_process_raises_its_own_error_and_survives_a_crash(tmp_path):
    run_in_own_process(os.mkdir, str(tmp_path / "made"))
    assert (tmp_path / "made").is_dir()
    with pytest.raises(ConfigurationError, match="too small"):
        run_in_own_process(raise_configuration_error, "too small")
    with pytest.raises(EngineError, match="_exit died"):
        run_in_own_process(os._exit, 1)


def test_a_plan_can_be_sent_to_another_process():
    plan = make_plan(deployment(), Path("/engines"))
    assert pickle.loads(pickle.dumps(plan)) == plan


def test_a_digest_follows_content_and_names(tmp_path):
    (tmp_path / "a").write_bytes(b"one")
    before = folder_digest(tmp_path)
    (tmp_path / ".hidden").write_bytes(b"x")
    assert folder_digest(tmp_path) == before
    (tmp_path / "a").write_bytes(b"two")
    assert folder_digest(tmp_path) != before
    (tmp_path / "a").write_bytes(b"one")
    assert folder_digest(tmp_path) == before
    (tmp_path / "a").rename(tmp_path / "b")
    assert folder_digest(tmp_path) != before


def test_a_large_file_is_known_by_size_and_both_ends(tmp_path):
    file = tmp_path / "weights"
    digests = set()
    for offset in (None, 0, LARGEST_WHOLE_FILE):
        with file.open("wb") as stream:
            stream.truncate(LARGEST_WHOLE_FILE + 1)
            if offset is not None:
                stream.seek(offset)
                stream.write(b"x")
        digests.add(file_digest(file))
    with file.open("r+b") as stream:
        stream.truncate(LARGEST_WHOLE_FILE + 2)
    digests.add(file_digest(file))
    assert len(digests) == 4


def test_layers_that_read_an_input_are_found_in_every_profile():
    layers = [
        {"Name": "a", "Inputs": [{"Name": "position_ids"}]},
        {"Name": "b", "Inputs": [{"Name": "position_ids [profile 1]"}]},
        {"Name": "c", "Inputs": [{"Name": "position_ids_2"}]},
    ]
    text = json.dumps({"Layers": layers})
    assert layers_that_read(text, "position_ids") == ["a", "b"]
    for broken in ("", "{}", '{"Layers": ["a"]}', "[]"):
        with pytest.raises(EngineError, match="inspector"):
            layers_that_read(broken, "position_ids")
