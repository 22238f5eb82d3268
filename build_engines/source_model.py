# SPDX-License-Identifier: Apache-2.0
"""What a Hugging Face folder holds, and the copy of it that TensorRT-LLM is given to read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specprefill.errors import ConfigurationError
from specprefill.memory_plan import ModelShape, shape_from_config

from build_engines.rope import Rope, rope_from_config

# Both are built by TensorRT-LLM's LLaMAForCausalLM, whose attention the hook of network.py is for.
SUPPORTED_ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM")

_REFUSED_ARCHITECTURES: Mapping[str, str] = {
    "Qwen2ForCausalLM": "TensorRT-LLM fuses its QKV bias into attention, past the draft's hook",
    "Qwen3ForCausalLM": "its TensorRT-LLM class was not checked against the hook",
}

# TensorRT-LLM 1.2.1 chooses another architecture when the folder's path contains one of these.
_MISREAD_PATH_PARTS = ("llava", "vila", "exaone")


@dataclass(frozen=True, slots=True)
class SourceModel:
    """A Hugging Face folder that passed every check that its configuration allows.

    Attributes:
        folder: where it lies.
        architecture: name of its class.
        shape: its numbers.
        rope: its rotary embedding.
        config: the parsed `config.json`.
        is_fp8: its weights are already quantised, in the format of NVIDIA's Model Optimizer.
    """

    folder: Path
    architecture: str
    shape: ModelShape
    rope: Rope
    config: Mapping[str, Any]
    is_fp8: bool

    def with_layers(self, layers: int | None, field: str) -> SourceModel:
        """Keep only the first layers.

        Args:
            layers: how many; None keeps all.
            field: the setting, for the error message.

        Raises:
            ConfigurationError: the model has fewer.
        """
        if layers is None:
            return self
        if layers > self.shape.layers:
            raise ConfigurationError(
                f"{field}: got {layers}; allowed: 1 to {self.shape.layers}, the model's layers"
            )
        return replace(self, shape=replace(self.shape, layers=layers))


def read_model_folder(folder: str | Path, field: str) -> SourceModel:
    """Read and check a Hugging Face folder's configuration.

    Args:
        folder: the folder.
        field: the setting that names it, for error messages.

    Raises:
        ConfigurationError: no configuration, a model family that cannot be built, no RoPE, a
            sliding window, or weights in a format that is not known.
    """
    path = Path(folder)
    try:
        config = json.loads((path / "config.json").read_text())
    except OSError as error:
        raise ConfigurationError(
            f"{field}: {path / 'config.json'}: {error.strerror}; "
            "allowed: a Hugging Face folder on this machine"
        ) from error
    except ValueError as error:
        raise ConfigurationError(f"{field}: {path / 'config.json'} is no JSON: {error}") from error
    architecture = _architecture(config, field)
    if config.get("sliding_window") and config.get("use_sliding_window", True):
        raise ConfigurationError(
            f"{field}: sliding_window: got {config['sliding_window']}; allowed: none (dropped "
            "tokens would move the window)"
        )
    try:
        shape = shape_from_config(config)
    except ConfigurationError as error:
        raise ConfigurationError(f"{field}: {error}") from error
    return SourceModel(
        folder=path,
        architecture=architecture,
        shape=shape,
        rope=rope_from_config(config, field),
        config=config,
        is_fp8=_is_fp8(path, config, field),
    )


def _architecture(config: Mapping[str, Any], field: str) -> str:
    names = config.get("architectures") or ["(none)"]
    name = str(names[0])
    if name in SUPPORTED_ARCHITECTURES:
        return name
    reason = _REFUSED_ARCHITECTURES.get(name)
    raise ConfigurationError(
        f"{field}: architectures: got {name}{f' ({reason})' if reason else ''}; "
        f"allowed: {', '.join(SUPPORTED_ARCHITECTURES)}"
    )


def _is_fp8(folder: Path, config: Mapping[str, Any], field: str) -> bool:
    file = folder / "hf_quant_config.json"
    if file.is_file():
        try:
            quantization = json.loads(file.read_text())["quantization"]
            formats = (quantization["quant_algo"], quantization.get("kv_cache_quant_algo"))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigurationError(f"{field}: {file} cannot be read: {error!r}") from error
        if formats != ("FP8", "FP8"):
            raise ConfigurationError(
                f"{field}: {file.name}: got quant_algo {formats[0]}, kv_cache_quant_algo "
                f"{formats[1]}; allowed: FP8 and FP8"
            )
        return True
    if config.get("quantization_config"):
        method = config["quantization_config"].get("quant_method")
        raise ConfigurationError(
            f"{field}: quantization_config.quant_method: got {method!r}; allowed: unquantised "
            "weights, or FP8 of NVIDIA's Model Optimizer (hf_quant_config.json)"
        )
    return False


def check_path(folder: Path, field: str) -> None:
    """Refuse a path that would make TensorRT-LLM take the model for another one.

    Raises:
        ConfigurationError: names the offending part.
    """
    text = str(folder.absolute()).lower()
    for part in _MISREAD_PATH_PARTS:
        if part in text:
            raise ConfigurationError(
                f"{field}: {folder} contains {part!r}, which TensorRT-LLM 1.2.1 reads as the name "
                "of another architecture; allowed: a path without it"
            )


def config_for_tensorrt_llm(model: SourceModel) -> dict[str, Any]:
    """Write a model's configuration as TensorRT-LLM 1.2.1 and its transformers 4 read it.

    The rotary settings take the old form (the new one would silently become theta 10000), layers
    that are left out are left out, and code that the folder brings is not named any more.
    """
    dropped = ("rope_parameters", "auto_map", "dtype")
    config = {key: value for key, value in model.config.items() if key not in dropped}
    config.update(model.rope.in_transformers_4_form())
    config["num_hidden_layers"] = model.shape.layers
    config["torch_dtype"] = "bfloat16"
    return config


def stage_model_folder(model: SourceModel, destination: Path) -> None:
    """Make a folder of links to a model's files, with the configuration rewritten.

    Python files are left out, so nothing that the folder brings can run.

    Args:
        model: what to stage.
        destination: created; links that are already there are replaced.
    """
    destination.mkdir(parents=True, exist_ok=True)
    for old in destination.iterdir():
        old.unlink()
    for file in sorted(model.folder.iterdir()):
        if file.is_file() and file.name != "config.json" and file.suffix != ".py":
            (destination / file.name).symlink_to(file.resolve())
    config = json.dumps(config_for_tensorrt_llm(model), indent=2)
    (destination / "config.json").write_text(config + "\n")
