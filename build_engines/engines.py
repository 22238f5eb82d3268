# SPDX-License-Identifier: Apache-2.0
"""Quantising, building and checking with TensorRT-LLM; imports it only when called.

Written against TensorRT-LLM 1.2.1. Not run with a real TensorRT-LLM and not run on a GPU.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from specprefill.errors import ConfigurationError, EngineError
from specprefill.explicit_rotary.loader import load_plugin
from specprefill.settings import BuildSettings, Settings

from build_engines.network import POSITION_IDS, draft_model_class, target_model_class
from build_engines.plan import SCORING_QUERY_ROOM, EnginePlan
from build_engines.rope import cos_sin_table

SUPPORTED_VERSIONS = ("1.2.",)

_BUILDING_VARIABLE = "IS_BUILDING"


def load_tensorrt_llm() -> dict[str, str]:
    """Import TensorRT-LLM, then load the plugin.

    Returns:
        Versions of tensorrt_llm and tensorrt, and the plugin's path.

    Raises:
        ConfigurationError: TensorRT-LLM is not installed or is another line.
        EngineError: the plugin cannot be loaded.
    """
    try:
        tensorrt_llm = importlib.import_module("tensorrt_llm")
        tensorrt = importlib.import_module("tensorrt")
    except ImportError as error:
        raise ConfigurationError(
            f"TensorRT-LLM cannot be imported ({error}); engines are built inside its container, "
            "and only --dry-run works without it"
        ) from error
    version = str(tensorrt_llm.__version__)
    if not version.startswith(SUPPORTED_VERSIONS):
        raise ConfigurationError(
            f"TensorRT-LLM: got {version}; allowed: 1.2.x (later lines have no compiled engines)"
        )
    return {
        "tensorrt_llm": version,
        "tensorrt": str(tensorrt.__version__),
        "plugin": str(load_plugin()),
    }


def check_block_reuse(settings: Settings) -> None:
    """Refuse shared cache blocks where prompts cannot be told apart by their positions.

    Raises:
        ConfigurationError: reuse is on and this TensorRT-LLM's requests take no cache salt.
    """
    request = importlib.import_module("tensorrt_llm.bindings.executor").Request
    if settings.tensorrt_llm.enable_block_reuse and not hasattr(request, "cache_salt_id"):
        raise ConfigurationError(
            "tensorrt_llm.enable_block_reuse: got true; allowed: false, because this TensorRT-LLM "
            "has no cache salt and equal tokens at other positions would share keys"
        )


def quantize(plan: EnginePlan, source: Path, destination: Path, build: BuildSettings) -> None:
    """Calibrate and quantise a model to FP8, all ranks at once.

    Args:
        plan: the engine that the checkpoint is for.
        source: staged Hugging Face folder.
        destination: gets config.json and rank<r>.safetensors.
        build: calibration settings.

    Raises:
        EngineError: no checkpoint came out.
    """
    load_tensorrt_llm()
    # Ranks of an earlier, wider checkpoint would pass for this one's.
    shutil.rmtree(destination, ignore_errors=True)
    _base_class().quantize(
        str(source),
        str(destination),
        dtype="bfloat16",
        mapping=_mapping(plan, 0),
        quant_config=_quantization(plan),
        calib_dataset=str(build.calibration_dataset),
        calib_batches=build.calibration_samples,
        calib_batch_size=1,
        calib_max_seq_length=build.calibration_tokens,
        tokenizer_max_seq_length=max(2048, build.calibration_tokens),
    )
    missing = [
        name
        for name in ("config.json", *(f"rank{r}.safetensors" for r in range(plan.world_size)))
        if not (destination / name).is_file()
    ]
    if missing:
        raise EngineError(f"quantising {source} made no {missing[0]} in {destination}")


def build_and_check(
    plan: EnginePlan, rank: int, source: Path, destination: Path, query_window: int, work: Path
) -> None:
    """Build one rank's engine, open it again, and list its tensors in the work folder.

    Takes and raises what `build_engine` and `check_engine` do.
    """
    load_tensorrt_llm()
    build_engine(plan, rank, source, destination, query_window, work)
    names = check_engine(plan, rank, destination / f"rank{rank}.engine")
    listing = work / f"{plan.name}_rank{rank}_tensors.json"
    listing.write_text(json.dumps(names, indent=2) + "\n")


def build_engine(
    plan: EnginePlan, rank: int, source: Path, destination: Path, query_window: int, work: Path
) -> None:
    """Build one rank's engine.

    Args:
        plan: what to build.
        rank: which rank.
        source: a TensorRT-LLM checkpoint, or a staged Hugging Face folder where none is needed.
        destination: gets rank<r>.engine and, from rank 0, config.json.
        query_window: usual number of scoring queries.
        work: folder of the timing cache.

    Raises:
        ConfigurationError: the checkpoint is not the model that was planned.
        EngineError: TensorRT built nothing.
    """
    shape = plan.model.shape
    table = cos_sin_table(plan.model.rope, shape.head_size, shape.max_positions)
    if plan.score_layers:
        model_class = draft_model_class(
            _base_class(), table, plan.score_layers, query_window, SCORING_QUERY_ROOM
        )
    else:
        model_class = target_model_class(_base_class(), table)
    if (source / "rank0.safetensors").is_file():
        model = model_class.from_checkpoint(str(source), rank=rank)
    else:
        model = model_class.from_hugging_face(
            str(source),
            dtype="bfloat16",
            mapping=_mapping(plan, rank),
            quant_config=_quantization(plan),
        )
    check_model_config(plan, model.config)
    builder = importlib.import_module("tensorrt_llm.builder")
    engine = builder.build(model, _build_config(plan, builder, work / "timing.cache"))
    if engine.engine is None:
        raise EngineError(f"TensorRT built no engine for rank {rank} of the {plan.name}")
    engine.save(str(destination))


def check_model_config(plan: EnginePlan, config: Any) -> None:
    """Compare what TensorRT-LLM understood with what was planned.

    Args:
        plan: the plan.
        config: a LLaMAConfig.

    Raises:
        ConfigurationError: a number differs; rotary settings would differ without a word.
    """
    shape, rope = plan.model.shape, plan.model.rope
    scaling = config.rotary_scaling or {}
    expected = {
        "num_hidden_layers": (config.num_hidden_layers, shape.layers),
        "num_attention_heads": (config.num_attention_heads, shape.query_heads),
        "num_key_value_heads": (config.num_key_value_heads, shape.kv_heads),
        "head_size": (config.head_size, shape.head_size),
        "rotary_base": (float(config.rotary_base), rope.theta),
        "rotary_scaling type": (
            scaling.get("rope_type", scaling.get("type", "default")),
            rope.rope_type,
        ),
        **{name: (scaling.get(name), value) for name, value in rope.scaling.items()},
    }
    for name, (found, planned) in expected.items():
        if found != planned:
            raise ConfigurationError(
                f"{plan.name}: TensorRT-LLM read {name} {found} from the checkpoint; the model "
                f"has {planned}"
            )


def check_engine(plan: EnginePlan, rank: int, file: Path) -> list[str]:
    """Open a serialised engine and check that it takes and reads what the runtime will give.

    Args:
        plan: the plan.
        rank: which rank.
        file: the engine.

    Returns:
        Names of all its inputs and outputs.

    Raises:
        EngineError: the engine cannot be opened, a tensor is missing or of the wrong kind, or no
            layer reads position_ids.
    """
    trt = importlib.import_module("tensorrt")
    runtime = trt.Runtime(trt.Logger(trt.Logger.WARNING))
    with _alone():
        engine = runtime.deserialize_cuda_engine(file.read_bytes())
    if engine is None:
        raise EngineError(f"{file} cannot be deserialised")
    names = [str(engine.get_tensor_name(index)) for index in range(engine.num_io_tensors)]
    for tensor in plan.tensors(rank):
        if tensor.name not in names:
            raise EngineError(f"{file} has no tensor {tensor.name}; it has {', '.join(names)}")
        is_input = engine.get_tensor_mode(tensor.name) == trt.TensorIOMode.INPUT
        if is_input != tensor.is_input:
            kind = "an input" if tensor.is_input else "an output"
            raise EngineError(f"{file}: {tensor.name} is not {kind}")
    inspector = engine.create_engine_inspector()
    text = inspector.get_engine_information(trt.LayerInformationFormat.JSON)
    if not layers_that_read(text, POSITION_IDS):
        raise EngineError(f"{file}: no layer reads {POSITION_IDS}")
    return names


@contextmanager
def _alone() -> Iterator[None]:
    """Keep the communication plugins of a rank from waiting for the other ranks.

    They look at the same variable that TensorRT-LLM sets while it builds.
    """
    os.environ[_BUILDING_VARIABLE] = "1"
    try:
        yield
    finally:
        del os.environ[_BUILDING_VARIABLE]


def layers_that_read(inspection: str, tensor: str) -> list[str]:
    """Find the layers of an engine that read a tensor.

    Args:
        inspection: what TensorRT's engine inspector says in JSON, of an engine that was built with
            detailed profiling verbosity.
        tensor: the tensor's name.

    Raises:
        EngineError: the text has no layers with their inputs.
    """
    try:
        layers = json.loads(inspection)["Layers"]
        return [
            str(layer["Name"])
            for layer in layers
            # Tensors of further optimisation profiles carry the profile behind their name.
            if any(str(one["Name"]).split(" ")[0] == tensor for one in layer["Inputs"])
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise EngineError(f"the engine inspector's answer has no layers: {error!r}") from error


def _base_class() -> Any:
    return importlib.import_module("tensorrt_llm.models").LLaMAForCausalLM


def _mapping(plan: EnginePlan, rank: int) -> Any:
    mapping = importlib.import_module("tensorrt_llm").Mapping
    return mapping(
        world_size=plan.world_size,
        rank=rank,
        gpus_per_node=plan.gpus_per_node,
        tp_size=plan.tp_size,
        pp_size=plan.pp_size,
    )


def _quantization(plan: EnginePlan) -> Any:
    modeling = importlib.import_module("tensorrt_llm.models.modeling_utils")
    fp8 = importlib.import_module("tensorrt_llm.quantization").QuantAlgo.FP8
    if plan.weights != "fp8":
        return modeling.QuantConfig()
    return modeling.QuantConfig(
        quant_algo=fp8,
        kv_cache_quant_algo=fp8 if plan.kv_cache == "fp8" else None,
        exclude_modules=["lm_head"],
    )


def _build_config(plan: EnginePlan, builder: Any, timing_cache: Path) -> Any:
    plugin_config = importlib.import_module("tensorrt_llm.plugin").PluginConfig
    is_fp8 = plan.weights == "fp8"
    kv_cache_type = builder.KVCacheType.PAGED if plan.is_paged else builder.KVCacheType.CONTINUOUS
    return builder.BuildConfig(
        max_input_len=plan.max_input_len,
        max_seq_len=plan.max_seq_len,
        max_batch_size=plan.max_batch_size,
        max_beam_width=1,
        max_num_tokens=plan.max_num_tokens,
        # The draft's work is prefill; the target's, most of the time, is decoding.
        opt_num_tokens=None if plan.is_paged else min(plan.max_num_tokens, 8192),
        kv_cache_type=kv_cache_type,
        strongly_typed=True,
        # Contiguous keys would give one profile for prefill and one for decoding; the first of
        # them covers both, and the draft's runtime uses no other.
        force_num_profiles=None if plan.is_paged else 1,
        # The inspector names the inputs of layers, which check_engine reads, only then.
        profiling_verbosity="detailed",
        input_timing_cache=str(timing_cache) if timing_cache.is_file() else None,
        output_timing_cache=str(timing_cache),
        plugin_config=plugin_config(
            gpt_attention_plugin="auto",
            gemm_plugin=None if is_fp8 else "auto",
            paged_kv_cache=plan.is_paged,
            remove_input_padding=True,
            tokens_per_block=plan.tokens_per_block,
            use_paged_context_fmha=plan.is_paged,
            use_fp8_context_fmha=plan.is_paged and is_fp8 and plan.kv_cache == "fp8",
        ),
    )
