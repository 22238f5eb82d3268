# SPDX-License-Identifier: Apache-2.0
"""A tiny random model, engine files of the double made from it, and both kinds of engines."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fake_tensorrt_llm
import pytest
import torch
from fake_tensorrt_llm import api
from specprefill.explicit_rotary import loader
from specprefill.settings import TargetSettings, TensorRTSettings
from specprefill.target.base import TargetEngine
from specprefill.target.torch_target import TorchTarget
from specprefill.target.trtllm_target import TrtllmTarget
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    DynamicCache,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

VOCABULARY = 300
CONTEXT = 512
STOP_IDS = (297, 298, 299)
SCORE_LAYERS = (1, 2)
QUERY_WINDOW = 16
MAX_PROMPT = 400

ENGINES = ("torch", "tensorrt_llm")


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face folder: 3 layers, 4 query heads on 2 key-value heads, a word tokenizer."""
    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        initializer_range=0.2,
        bos_token_id=0,
        eos_token_id=list(STOP_IDS),
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    words = {f"w{index}": index for index in range(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def engine_folder(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_engine_folder(tmp_path_factory.mktemp("engines"), model_folder)


def write_engine_folder(
    root: Path,
    model_folder: Path,
    draft: dict[str, Any] | None = None,
    target_world_size: int = 1,
    **limits: int,
) -> Path:
    """Write what the engine build writes, with the double's engine files.

    Args:
        root: the folder to fill.
        model_folder: the model of both engines.
        draft: changes to the draft's engine file.
        target_world_size: ranks of the target.
        limits: changes to the build configurations.
    """
    build = {
        "max_batch_size": 8,
        "max_input_len": MAX_PROMPT,
        "max_seq_len": MAX_PROMPT + 20,
        "max_num_tokens": MAX_PROMPT,
        **limits,
    }
    inputs = {
        fact["name"]: fact["dtype"]
        for fact in api.FACTS["engine_inputs"]
        if "only" not in fact["note"]
    }
    engine = {
        "hugging_face": str(model_folder),
        "inputs": inputs,
        "limits": build,
    }
    scoring = {**inputs, "scoring_query_index": "int32"}
    drafts = {**engine, "inputs": scoring, "score_layers": list(SCORE_LAYERS), **(draft or {})}
    for name, description, world_size in (
        ("draft", drafts, 1),
        ("target", engine, target_world_size),
    ):
        folder = root / name
        folder.mkdir()
        pretrained = {
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_size": 16,
            "vocab_size": VOCABULARY,
            "mapping": {"world_size": world_size, "tp_size": world_size, "pp_size": 1},
        }
        config = {"version": "1.2.1", "pretrained_config": pretrained, "build_config": build}
        (folder / "config.json").write_text(json.dumps(config))
        for rank in range(world_size):
            (folder / f"rank{rank}.engine").write_text(json.dumps(description))
    manifest = {
        "context_length": CONTEXT,
        "query_window": QUERY_WINDOW,
        "score_layers": list(SCORE_LAYERS),
        "kv_cache_free_gpu_memory_fraction": 0.7,
    }
    (root / "manifest.json").write_text(json.dumps(manifest))
    return root


@pytest.fixture
def install_double(
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., fake_tensorrt_llm.Double]:
    """Install the double, and let loading the plugin be noted by it."""

    def install(**options: Any) -> fake_tensorrt_llm.Double:
        double = fake_tensorrt_llm.install(monkeypatch, **options)
        monkeypatch.setattr(loader, "load_plugin", lambda: setattr(double, "plugin_loaded", True))
        return double

    return install


@pytest.fixture
def double(install_double: Callable[..., fake_tensorrt_llm.Double]) -> fake_tensorrt_llm.Double:
    return install_double()


MakeTarget = Callable[..., TargetEngine]


@pytest.fixture
def make_trtllm_target(
    double: fake_tensorrt_llm.Double, model_folder: Path, engine_folder: Path
) -> Iterator[Callable[..., TrtllmTarget]]:
    """Make TensorRT-LLM targets; they are closed afterwards."""
    targets: list[TrtllmTarget] = []

    def make(
        target: dict[str, Any] | None = None, folder: Path | None = None, **tensorrt: Any
    ) -> TrtllmTarget:
        engine = TrtllmTarget(
            model_folder,
            TargetSettings(**(target or {})),
            TensorRTSettings(engine_dir=str(folder or engine_folder), **tensorrt),
        )
        targets.append(engine)
        return engine

    yield make
    for engine in targets:
        engine.close()


@pytest.fixture(params=ENGINES)
def make_target(request: pytest.FixtureRequest, model_folder: Path) -> Iterator[MakeTarget]:
    """Make a target of either kind; everything in the contract holds for both."""
    if request.param == "tensorrt_llm":
        make_trtllm = request.getfixturevalue("make_trtllm_target")
        yield lambda **settings: make_trtllm(settings)
        return
    targets: list[TorchTarget] = []

    def make(**settings: Any) -> TorchTarget:
        # As many tokens per request as the engine files were built for.
        defaults = {"dtype": "float32", "kv_cache_tokens": MAX_PROMPT + 20}
        engine = TorchTarget(model_folder, TargetSettings(**{**defaults, **settings}))
        targets.append(engine)
        return engine

    yield make
    for engine in targets:
        engine.close()


@pytest.fixture
def target(make_target: MakeTarget) -> TargetEngine:
    return make_target()


@pytest.fixture(scope="session")
def greedy_reference(model_folder: Path) -> Callable[..., list[int]]:
    """Greedy tokens of Hugging Face's own model with explicit positions; none of our code."""
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)

    @torch.inference_mode()
    def generate(token_ids: Any, position_ids: Any, first_position: int, count: int) -> list[int]:
        cache = DynamicCache(config=model.config)
        ids = torch.as_tensor(token_ids).long()[None]
        positions = torch.as_tensor(position_ids).long()[None]
        tokens: list[int] = []
        while len(tokens) < count:
            logits = model(ids, position_ids=positions, cache=cache).logits[0, -1]
            positions = torch.tensor([[first_position + len(tokens)]])
            tokens.append(int(logits.argmax()))
            ids = torch.tensor([[tokens[-1]]])
        return tokens

    return generate
