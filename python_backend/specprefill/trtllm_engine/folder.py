# SPDX-License-Identifier: Apache-2.0
"""Reads the folder that the engine build writes.

<engine_dir>/manifest.json, <engine_dir>/draft/ and <engine_dir>/target/; the latter two hold
config.json and rank<r>.engine as TensorRT-LLM's own Engine.save writes them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import GenerationConfig

from specprefill.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """The facts of one compiled engine that its adapter needs.

    Attributes:
        folder: where config.json and the ranks' engines lie.
        version: TensorRT-LLM version that built it.
        layers: decoder layers.
        heads: query heads.
        kv_heads: key-value heads.
        head_size: d.
        vocab_size: tokens that exist; logits may have more columns.
        max_batch_size: most sequences per step.
        max_input_len: most prompt tokens of a sequence.
        max_seq_len: most prompt and generated tokens of a sequence.
        max_num_tokens: most tokens per step.
    """

    folder: Path
    version: str
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    vocab_size: int
    max_batch_size: int
    max_input_len: int
    max_seq_len: int
    max_num_tokens: int


@dataclass(frozen=True, slots=True)
class EngineFolder:
    """A built pair of engines.

    Attributes:
        draft: the draft's engine.
        target: the target's engine.
        context_length: largest position + 1 that the target's rotary tables hold.
        query_window: most prompt queries that the draft gives in one pass.
        kv_cache_fraction: share of the free GPU memory that the build planned for the target's
            keys and values; None if it planned none.
    """

    draft: EngineConfig
    target: EngineConfig
    context_length: int
    query_window: int
    kv_cache_fraction: float | None


def read_engine_folder(path: str | None) -> EngineFolder:
    """Read the manifest and both configurations.

    Raises:
        ConfigurationError: no folder is configured, a file is missing or no JSON, or a value that
            the adapters need is not in it.
    """
    if path is None:
        raise ConfigurationError(
            "tensorrt_llm.engine_dir: not set; engine: tensorrt_llm needs a folder of built engines"
        )
    root = Path(path)
    if not root.is_dir():
        raise ConfigurationError(f"tensorrt_llm.engine_dir: {path} does not exist")
    manifest_file = root / "manifest.json"
    manifest = _read_json(manifest_file)
    return EngineFolder(
        draft=_read_engine_config(root / "draft"),
        target=_read_engine_config(root / "target"),
        context_length=_integer(manifest, "context_length", manifest_file),
        query_window=_integer(manifest, "query_window", manifest_file),
        kv_cache_fraction=manifest.get("kv_cache_free_gpu_memory_fraction"),
    )


def read_stop_token_ids(folder: str | Path, config: Any) -> frozenset[int]:
    """Read a Hugging Face folder's stop tokens.

    Args:
        folder: the folder that tokenizer and configuration come from.
        config: its configuration, used if the folder has no generation configuration.

    Raises:
        ConfigurationError: generation_config.json is there but cannot be read.
    """
    if (Path(folder) / "generation_config.json").is_file():
        try:
            eos = GenerationConfig.from_pretrained(folder, local_files_only=True).eos_token_id
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"model folder {folder}: {error}") from error
    else:
        eos = config.eos_token_id
    if eos is None:
        return frozenset()
    return frozenset([eos] if isinstance(eos, int) else eos)


def _read_engine_config(folder: Path) -> EngineConfig:
    file = folder / "config.json"
    config = _read_json(file)
    model = _section(config, "pretrained_config", file)
    build = _section(config, "build_config", file)
    mapping = _section(model, "mapping", file)
    world_size = _integer(mapping, "tp_size", file) * _integer(mapping, "pp_size", file)
    for rank in range(world_size):
        if not (folder / f"rank{rank}.engine").is_file():
            raise ConfigurationError(f"{folder / f'rank{rank}.engine'} does not exist")
    version = config.get("version")
    if not isinstance(version, str):
        raise ConfigurationError(f"{file}: version: missing")
    return EngineConfig(
        folder=folder,
        version=version,
        layers=_integer(model, "num_hidden_layers", file),
        heads=_integer(model, "num_attention_heads", file),
        kv_heads=_integer(model, "num_key_value_heads", file),
        head_size=_integer(model, "head_size", file),
        vocab_size=_integer(model, "vocab_size", file),
        max_batch_size=_integer(build, "max_batch_size", file),
        max_input_len=_integer(build, "max_input_len", file),
        max_seq_len=_integer(build, "max_seq_len", file),
        max_num_tokens=_integer(build, "max_num_tokens", file),
    )


def _read_json(file: Path) -> dict[str, Any]:
    try:
        values = json.loads(file.read_text())
    except OSError as error:
        raise ConfigurationError(f"{file}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigurationError(f"{file} is no JSON: {error}") from error
    if not isinstance(values, dict):
        raise ConfigurationError(f"{file} must hold a JSON object")
    return values


def _section(values: dict[str, Any], key: str, file: Path) -> dict[str, Any]:
    section = values.get(key)
    if not isinstance(section, dict):
        raise ConfigurationError(f"{file}: {key}: missing")
    return section


def _integer(values: dict[str, Any], key: str, file: Path) -> int:
    value = values.get(key)
    if not isinstance(value, int) or value < 1:
        raise ConfigurationError(f"{file}: {key}: got {value!r}; allowed: integer from 1")
    return value
