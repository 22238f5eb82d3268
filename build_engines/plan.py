# SPDX-License-Identifier: Apache-2.0
"""Settings -> everything that will be built, or the reason why it cannot work.

Nothing here needs a GPU, TensorRT or the weights: a plan is made from configurations alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from specprefill.errors import ConfigurationError
from specprefill.memory_plan import (
    GIB,
    Load,
    MemoryPlan,
    ModelMemory,
    NumberFormat,
    check_draft_alone,
    kept_tokens_at_most,
    model_memory,
    plan_gpu,
)
from specprefill.settings import Settings

from build_engines.source_model import SourceModel, check_path, read_model_folder

# Room for what a request may ask for: the upper bounds of selection.look_ahead and query_window.
LOOK_AHEAD_ROOM = 64
SCORING_QUERY_ROOM = 256

# TensorRT addresses the numbers of a tensor with 32 bits.
LARGEST_TENSOR = 2**31 - 1

SCORING_QUERY_INDEX = "scoring_query_index"


def scoring_queries_name(layer: int) -> str:
    """Name the draft engine's output with the queries of a layer."""
    return f"scoring_queries_{layer}"


@dataclass(frozen=True, slots=True)
class EngineTensor:
    """One input or output of an engine.

    Attributes:
        name: its name.
        is_input: False for an output.
        dtype: type of its numbers.
        shape: sizes; a word for one that varies.
        on_host: it is read from host memory.
    """

    name: str
    is_input: bool
    dtype: str
    shape: tuple[int | str, ...]
    on_host: bool = False


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """One model's engine.

    Attributes:
        name: `draft` or `target`, also the folder.
        model: what it is built from.
        weights: format of the matrix products' weights.
        kv_cache: format of keys and values.
        tp_size: GPUs that share every layer.
        pp_size: groups of GPUs that share the layers.
        max_batch_size: sequences of a step.
        max_input_len: longest prompt.
        max_seq_len: longest prompt and answer.
        max_num_tokens: tokens of a step.
        score_layers: layers whose queries leave the engine; none for the target.
        is_paged: keys and values lie in blocks of the executor's pool.
        tokens_per_block: tokens of one of them.
        gpus_per_node: GPUs of one machine.
        checkpoint: a TensorRT-LLM checkpoint to start from.
    """

    name: str
    model: SourceModel
    weights: NumberFormat
    kv_cache: NumberFormat
    tp_size: int
    pp_size: int
    max_batch_size: int
    max_input_len: int
    max_seq_len: int
    max_num_tokens: int
    score_layers: tuple[int, ...]
    is_paged: bool
    tokens_per_block: int
    gpus_per_node: int
    checkpoint: Path | None = None

    @property
    def world_size(self) -> int:
        """Ranks, each with an engine of its own."""
        return self.tp_size * self.pp_size

    @property
    def needs_calibration(self) -> bool:
        """Weights have to be quantised before the engine can be built."""
        return self.weights == "fp8" and not self.model.is_fp8 and self.checkpoint is None

    def layers_of(self, rank: int) -> range:
        """Return the indices of a rank's layers."""
        count = self.model.shape.layers // self.pp_size
        first = rank // self.tp_size * count
        return range(first, first + count)

    def tensors(self, rank: int) -> list[EngineTensor]:
        """List the inputs and outputs of a rank's engine."""
        return list(_tensors(self, rank))


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to do.

    Attributes:
        name: what the record of it is called.
        detail: one line for a reader.
        output: the file or folder that it makes, inside the engine folder.
    """

    name: str
    detail: str
    output: str


@dataclass(frozen=True, slots=True)
class BuildPlan:
    """Everything that will be built.

    Attributes:
        output: the engine folder.
        draft: the draft's engine.
        target: the target's engines.
        draft_memory: what the draft takes.
        target_memory: what the target's fullest rank takes.
        gpu: the GPU that is divided between both, or a target GPU where the draft has its own.
        other_gpu: a GPU of the target without the draft, where there is one.
        load: what must fit.
    """

    output: Path
    draft: EnginePlan
    target: EnginePlan
    draft_memory: ModelMemory
    target_memory: ModelMemory
    gpu: MemoryPlan
    other_gpu: MemoryPlan | None
    load: Load

    def steps(self) -> list[Step]:
        """List what has to be done, in order."""
        return list(_steps(self))


def make_plan(settings: Settings, output: Path) -> BuildPlan:
    """Plan both engines.

    Args:
        settings: the deployment.
        output: the engine folder.

    Raises:
        ConfigurationError: what was asked for cannot work; names field, value and what is allowed.
    """
    check_path(output, "--output")
    _check_engine_kind(settings)
    draft, target = _plan_draft(settings), _plan_target(settings)
    _check_tensor_volume(draft, "build.max_prompt_tokens")
    _check_tensor_volume(target, "build.max_num_tokens")
    build = settings.build
    load = Load(
        prompt_tokens=build.max_prompt_tokens,
        kept_tokens=kept_tokens_at_most(build.max_prompt_tokens, settings.selection),
        new_tokens=build.max_new_tokens,
        look_ahead=LOOK_AHEAD_ROOM,
        tokens_per_block=build.tokens_per_block,
    )
    draft_memory, target_memory = _memory(draft), _memory(target)
    total, reserve = int(build.gpu_memory_gib * GIB), int(build.gpu_reserve_gib * GIB)

    def divide(with_draft: bool) -> MemoryPlan:
        return plan_gpu(
            total=total,
            reserve=reserve,
            target=target_memory,
            draft=draft_memory if with_draft else None,
            load=load,
        )

    shares = build.draft_shares_gpu
    if not shares:
        check_draft_alone(total, reserve, draft_memory, load)
    gpu = divide(shares)
    _check_fraction(settings.tensorrt_llm.kv_cache_free_gpu_memory_fraction, gpu)
    return BuildPlan(
        output=output,
        draft=draft,
        target=target,
        draft_memory=draft_memory,
        target_memory=target_memory,
        gpu=gpu,
        other_gpu=divide(False) if shares and target.world_size > 1 else None,
        load=load,
    )


def _check_engine_kind(settings: Settings) -> None:
    facts: tuple[tuple[str, object, object], ...] = (
        ("engine", settings.engine, "tensorrt_llm"),
        ("draft.weights", settings.draft.weights, "as_dtype"),
        ("draft.attention_window", settings.draft.attention_window, None),
    )
    for field, found, allowed in facts:
        if found != allowed:
            word = "unset" if allowed is None else allowed
            raise ConfigurationError(f"{field}: got {found}; allowed: {word}, to build engines")


def _check_fraction(fraction: float | None, gpu: MemoryPlan) -> None:
    largest = gpu.kv_cache_free_gpu_memory_fraction
    if fraction is not None and fraction > largest:
        raise ConfigurationError(
            f"tensorrt_llm.kv_cache_free_gpu_memory_fraction: got {fraction}; allowed: up to "
            f"{largest}, so that the draft's weights, activations and keys still fit when the "
            "target was loaded first"
        )


def _plan_draft(settings: Settings) -> EnginePlan:
    build = settings.build
    field = "draft.model"
    model = read_model_folder(settings.draft.model, field)
    model = model.with_layers(settings.draft.layers, "draft.layers")
    if model.is_fp8 and build.draft_weights != "fp8":
        raise ConfigurationError(
            f"build.draft_weights: got {build.draft_weights}; allowed: fp8 (the weights of "
            f"{model.folder} are FP8 already)"
        )
    first, last = settings.draft.score_layers or (0, model.shape.layers - 1)
    if last >= model.shape.layers:
        raise ConfigurationError(
            f"draft.score_layers: got [{first}, {last}]; allowed: 0 to {model.shape.layers - 1}"
        )
    plan = EnginePlan(
        name="draft",
        model=model,
        weights=build.draft_weights,
        kv_cache="bfloat16",
        tp_size=1,
        pp_size=1,
        max_batch_size=1,
        max_input_len=build.max_prompt_tokens,
        max_seq_len=build.max_prompt_tokens + LOOK_AHEAD_ROOM,
        max_num_tokens=build.max_prompt_tokens,
        score_layers=tuple(range(first, last + 1)),
        is_paged=False,
        tokens_per_block=build.tokens_per_block,
        gpus_per_node=build.gpus_per_node,
    )
    _check_context(plan)
    return plan


def _plan_target(settings: Settings) -> EnginePlan:
    build = settings.build
    model = read_model_folder(settings.target.model, "target.model")
    if model.is_fp8 and build.target_weights != "fp8":
        raise ConfigurationError(
            f"build.target_weights: got {build.target_weights}; allowed: fp8 (the weights of "
            f"{model.folder} are FP8 already)"
        )
    max_num_tokens = build.max_num_tokens or build.max_prompt_tokens
    kept = kept_tokens_at_most(build.max_prompt_tokens, settings.selection)
    least = kept + build.max_batch_size
    if max_num_tokens < min(least, build.max_prompt_tokens):
        raise ConfigurationError(
            f"build.max_num_tokens: got {max_num_tokens}; allowed: from {least}, so that the "
            f"{kept} kept tokens of a prompt of {build.max_prompt_tokens} and one token of every "
            "running sequence fit in one step"
        )
    checkpoint = Path(build.target_checkpoint) if build.target_checkpoint else None
    plan = EnginePlan(
        name="target",
        model=model,
        weights=build.target_weights,
        kv_cache=build.target_kv_cache,
        tp_size=build.tp_size,
        pp_size=build.pp_size,
        max_batch_size=build.max_batch_size,
        max_input_len=build.max_prompt_tokens,
        max_seq_len=build.max_prompt_tokens + build.max_new_tokens,
        max_num_tokens=max_num_tokens,
        score_layers=(),
        is_paged=True,
        tokens_per_block=build.tokens_per_block,
        gpus_per_node=build.gpus_per_node,
        checkpoint=checkpoint,
    )
    _check_parallelism(plan)
    _check_context(plan)
    if checkpoint is not None:
        _check_checkpoint(plan, checkpoint)
    return plan


def _check_parallelism(plan: EnginePlan) -> None:
    shape, tp_size = plan.model.shape, plan.tp_size
    for what, number in (
        ("query heads", shape.query_heads),
        ("intermediate_size", shape.intermediate_size),
    ):
        if number % tp_size:
            raise ConfigurationError(
                f"build.tp_size: got {tp_size}; allowed: a divisor of the target's {number} {what}"
            )
    if shape.kv_heads % tp_size and tp_size % shape.kv_heads:
        raise ConfigurationError(
            f"build.tp_size: got {tp_size}; allowed: a divisor or a multiple of the target's "
            f"{shape.kv_heads} key-value heads"
        )
    if shape.layers % plan.pp_size:
        raise ConfigurationError(
            f"build.pp_size: got {plan.pp_size}; allowed: a divisor of the target's "
            f"{shape.layers} layers"
        )


def _check_context(plan: EnginePlan) -> None:
    longest = plan.model.shape.max_positions
    if plan.max_seq_len > longest:
        behind = plan.max_seq_len - plan.max_input_len
        raise ConfigurationError(
            f"build.max_prompt_tokens: got {plan.max_input_len}; allowed: up to "
            f"{longest - behind}: {plan.name}.model has {longest} positions and {behind} are "
            "needed behind the prompt"
        )


def _check_tensor_volume(plan: EnginePlan, field: str) -> None:
    shape = plan.model.shape
    kv_heads = max(shape.kv_heads, plan.tp_size)
    qkv_width = (shape.query_heads + 2 * kv_heads) * shape.head_size // plan.tp_size
    # TensorRT-LLM computes gate and up in one product.
    widest = max(2 * shape.intermediate_size // plan.tp_size, qkv_width, shape.hidden_size)
    if plan.max_num_tokens * widest > LARGEST_TENSOR:
        raise ConfigurationError(
            f"{field}: got {plan.max_num_tokens}; allowed: up to {LARGEST_TENSOR // widest}: the "
            f"{plan.name}'s widest tensor has {widest} numbers per token and TensorRT's limit for "
            "one tensor is 2^31 - 1"
        )


def _check_checkpoint(plan: EnginePlan, folder: Path) -> None:
    field = "build.target_checkpoint"
    try:
        config = json.loads((folder / "config.json").read_text())
        mapping = config["mapping"]
        quantization = config["quantization"]
        facts = {
            "architecture": (config["architecture"], plan.model.architecture),
            "num_hidden_layers": (config["num_hidden_layers"], plan.model.shape.layers),
            "hidden_size": (config["hidden_size"], plan.model.shape.hidden_size),
            "mapping.tp_size": (mapping.get("tp_size", 1), plan.tp_size),
            "mapping.pp_size": (mapping.get("pp_size", 1), plan.pp_size),
            "quantization.quant_algo": (
                quantization["quant_algo"],
                "FP8" if plan.weights == "fp8" else None,
            ),
            "quantization.kv_cache_quant_algo": (
                quantization.get("kv_cache_quant_algo"),
                "FP8" if plan.kv_cache == "fp8" else None,
            ),
            "max_draft_len": (config.get("max_draft_len", 0), 0),
        }
    except OSError as error:
        raise ConfigurationError(
            f"{field}: {folder / 'config.json'}: {error.strerror}; allowed: a folder with "
            "config.json and rank*.safetensors"
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigurationError(f"{field}: {folder} is no checkpoint: {error!r}") from error
    for name, (found, expected) in facts.items():
        if found != expected:
            raise ConfigurationError(f"{field}: {name}: got {found}; allowed: {expected}")


def _memory(plan: EnginePlan) -> ModelMemory:
    return model_memory(
        plan.model.shape,
        step_tokens=plan.max_num_tokens,
        batch_size=plan.max_batch_size,
        weights=plan.weights,
        kv_cache=plan.kv_cache,
        tp_size=plan.tp_size,
        pp_size=plan.pp_size,
        # The draft's attention has a table of its own beside the plugin's.
        rotary_tables=1 if plan.is_paged else 2,
    )


def _tensors(plan: EnginePlan, rank: int) -> Iterator[EngineTensor]:
    first_stage = rank < plan.tp_size
    last_stage = rank >= plan.world_size - plan.tp_size
    shape = plan.model.shape
    layers = plan.layers_of(rank)
    if first_stage:
        yield EngineTensor("input_ids", True, "int32", ("tokens",))
    else:
        hidden = ("tokens", shape.hidden_size)
        yield EngineTensor("hidden_states_input", True, "bfloat16", hidden)
    yield EngineTensor("position_ids", True, "int32", ("tokens",))
    if last_stage:
        yield EngineTensor("last_token_ids", True, "int32", ("sequences",))
    for name in ("context_lengths", "sequence_length"):
        yield EngineTensor(name, True, "int32", ("sequences",))
    yield EngineTensor("cache_indirection", True, "int32", ("sequences", 1, "cache length"))
    for name in ("host_request_types", "host_past_key_value_lengths", "host_context_lengths"):
        yield EngineTensor(name, True, "int32", ("sequences",), on_host=True)
    windows = (len(layers),)
    yield EngineTensor("host_max_attention_window_sizes", True, "int32", windows, on_host=True)
    yield EngineTensor("host_sink_token_length", True, "int32", (1,), on_host=True)
    yield EngineTensor("host_runtime_perf_knobs", True, "int64", (16,), on_host=True)
    yield EngineTensor("host_context_progress", True, "int64", (1,), on_host=True)
    if plan.tp_size > 1:
        yield EngineTensor("all_reduce_workspace", True, "int64", ("workspace",))
    yield from _cache_tensors(plan, layers)
    if plan.score_layers:
        yield EngineTensor(SCORING_QUERY_INDEX, True, "int32", ("rows",))
        row = shape.query_heads * shape.head_size
        for layer in plan.score_layers:
            name = scoring_queries_name(layer)
            yield EngineTensor(name, False, "bfloat16", ("rows", row))
    if last_stage:
        logits = ("sequences", shape.vocabulary_size)
        yield EngineTensor("logits", False, "float32", logits)
    else:
        hidden = ("tokens", shape.hidden_size)
        yield EngineTensor("hidden_states_output", False, "bfloat16", hidden)


def _cache_tensors(plan: EnginePlan, layers: range) -> Iterator[EngineTensor]:
    if plan.is_paged:
        offsets = ("pools", "sequences", 2, "blocks")
        yield EngineTensor("kv_cache_block_offsets", True, "int32", offsets)
        yield EngineTensor("host_kv_cache_block_offsets", True, "int32", offsets, on_host=True)
        pointers = ("pools", 2)
        yield EngineTensor("host_kv_cache_pool_pointers", True, "int64", pointers, on_host=True)
        mapping = (len(layers), 2)
        yield EngineTensor("host_kv_cache_pool_mapping", True, "int32", mapping, on_host=True)
        return
    shape = plan.model.shape
    cache = ("sequences", 2, shape.kv_heads, "cache length", shape.head_size)
    for layer in layers:
        yield EngineTensor(f"past_key_value_{layer}", True, plan.kv_cache, cache)
        yield EngineTensor(f"present_key_value_{layer}", False, plan.kv_cache, cache)


def _steps(plan: BuildPlan) -> Iterator[Step]:
    for engine in (plan.draft, plan.target):
        if engine.checkpoint is None:
            layers = engine.model.shape.layers
            detail = f"link {engine.model.folder}, rewrite its config.json ({layers} layers)"
            yield Step(f"stage_{engine.name}", detail, f"work/{engine.name}_model")
        if engine.needs_calibration:
            cache = "FP8 keys and values" if engine.kv_cache == "fp8" else "bfloat16 keys"
            detail = f"FP8 weights, {cache}, {engine.world_size} rank(s), by Model Optimizer"
            yield Step(f"quantize_{engine.name}", detail, f"work/{engine.name}_checkpoint")
        for rank in range(engine.world_size):
            layers_of_rank = engine.layers_of(rank)
            detail = (
                f"layers {layers_of_rank.start} to {layers_of_rank.stop - 1}, "
                f"1/{engine.tp_size} of each, {engine.weights}"
            )
            name = f"build_{engine.name}_rank{rank}"
            yield Step(name, detail, f"{engine.name}/rank{rank}.engine")
