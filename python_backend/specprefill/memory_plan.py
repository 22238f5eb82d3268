# SPDX-License-Identifier: Apache-2.0
"""Divides a GPU between weights, activations, the draft's keys and the target's key-value pool.

Pure arithmetic on shapes: nothing here touches a GPU. The draft holds the keys and values of whole
prompts (M tokens each), the target only those of kept and generated tokens (K + G), so the two are
weighed by bytes per token and not by sequences. All results are upper estimates in bytes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from specprefill.budget import keep_rate_for
from specprefill.errors import ConfigurationError
from specprefill.settings import Role, SelectionSettings

GIB = 1024**3

NumberFormat = Literal["bfloat16", "fp8"]
BYTES_PER_NUMBER: Mapping[NumberFormat, int] = {"bfloat16": 2, "fp8": 1}

# Fragmentation, the runtime's own buffers and what the activation formula cannot see.
POOL_SAFETY = 0.95


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The numbers of a decoder that decide its memory.

    Attributes:
        layers: decoder layers.
        query_heads: query heads, over all ranks.
        kv_heads: key-value heads, over all ranks.
        head_size: numbers per head.
        hidden_size: width of the hidden states.
        intermediate_size: width inside the gated feed-forward network.
        vocabulary_size: rows of the embedding.
        tied_embeddings: the output layer is the embedding.
        max_positions: longest context that the model was made for.
    """

    layers: int
    query_heads: int
    kv_heads: int
    head_size: int
    hidden_size: int
    intermediate_size: int
    vocabulary_size: int
    tied_embeddings: bool
    max_positions: int


@dataclass(frozen=True, slots=True)
class ModelMemory:
    """What one rank of one model takes.

    Attributes:
        weights: bytes of parameters and constant tables.
        activations: bytes of intermediate tensors in the largest step.
        kv_per_token: bytes of keys and values of one token.
    """

    weights: int
    activations: int
    kv_per_token: int


@dataclass(frozen=True, slots=True)
class Load:
    """What the deployment must hold at once.

    Attributes:
        prompt_tokens: longest prompt, M.
        kept_tokens: most of its tokens that the target prefills after selection, K.
        new_tokens: longest answer.
        look_ahead: tokens that the draft decodes behind a prompt.
        draft_prompts: prompts that the draft holds at once.
        tokens_per_block: tokens of one block of the target's pool.
    """

    prompt_tokens: int
    kept_tokens: int
    new_tokens: int
    look_ahead: int = 8
    draft_prompts: int = 1
    tokens_per_block: int = 32


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """How one GPU is divided; sizes in bytes.

    Attributes:
        total: memory of the GPU.
        reserve: kept free for the CUDA context, NCCL and fragmentation.
        target_weights: parameters of the target's rank.
        target_activations: intermediate tensors of the target's rank.
        draft_weights: parameters of the draft, 0 where it lives on another GPU.
        draft_activations: intermediate tensors of the draft.
        draft_kv: keys and values of the prompts that the draft holds.
        pool: the target's key-value pool, in the less favourable of the two loading orders.
        pool_tokens: tokens that fit in the pool, in whole blocks.
        pool_blocks: blocks of the pool.
        pruned_sequences: sequences of kept and new tokens that fit at once.
        dense_sequences: sequences of whole prompts and new tokens that fit at once.
        kv_cache_free_gpu_memory_fraction: for the executor; safe whichever model loads first.
    """

    total: int
    reserve: int
    target_weights: int
    target_activations: int
    draft_weights: int
    draft_activations: int
    draft_kv: int
    pool: int
    pool_tokens: int
    pool_blocks: int
    pruned_sequences: int
    dense_sequences: int
    kv_cache_free_gpu_memory_fraction: float


def shape_from_config(config: Mapping[str, Any]) -> ModelShape:
    """Read a shape from a `config.json`, Hugging Face's or the one in an engine folder.

    Args:
        config: the parsed file; of an engine folder, its `pretrained_config`.

    Raises:
        ConfigurationError: a number is missing or below 1.
    """

    def number(name: str, default: int | None = None) -> int:
        value = config.get(name)
        if value is None:
            value = default
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigurationError(f"config.json: {name}: got {value!r}; allowed: integer from 1")
        return value

    heads, hidden = number("num_attention_heads"), number("hidden_size")
    head_size = config.get("head_dim") or config.get("head_size") or hidden // heads
    return ModelShape(
        layers=number("num_hidden_layers"),
        query_heads=heads,
        kv_heads=number("num_key_value_heads", heads),
        head_size=int(head_size),
        hidden_size=hidden,
        intermediate_size=number("intermediate_size", 4 * hidden),
        vocabulary_size=number("vocab_size"),
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        max_positions=number("max_position_embeddings"),
    )


def shape_of(folder: str | Path) -> ModelShape:
    """Read the shape of the model in a folder.

    Raises:
        ConfigurationError: its config.json cannot be read, or lacks a number.
    """
    path = Path(folder) / "config.json"
    try:
        return shape_from_config(json.loads(path.read_text()))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from error


def divide_rounding_up(number: int, divisor: int) -> int:
    """Return the smallest integer that is at least number / divisor."""
    return -(-number // divisor)


def kept_tokens_at_most(prompt_tokens: int, selection: SelectionSettings) -> int:
    """Bound the tokens that a selection can keep of a prompt.

    Protected spans of a chat template are not known in advance and not counted.

    Args:
        prompt_tokens: M.
        selection: the deployment's settings.
    """
    if prompt_tokens < selection.min_prompt_tokens or selection.keep_rate == 1:
        return prompt_tokens
    if selection.flat_guard == "dense":
        return prompt_tokens
    size = selection.chunk_size
    # Borders move a chunk's end by up to half its size.
    reach = 0 if selection.chunk_borders == "fixed" else size // 2
    # The last token of a prompt is always kept.
    protected = selection.protect_first + max(1, selection.protect_last)
    guarded = selection.flat_keep_rate if selection.flat_guard == "raise" else 0.0
    tokens = 0
    if selection.budget == "tokens":
        tokens = selection.keep_tokens + size + reach
        rates = [guarded]
    elif selection.budget == "rate":
        roles = selection.role_keep_rates or {}
        rates = [keep_rate_for(selection, prompt_tokens)[0], *roles.values(), guarded]
    else:
        rates = [selection.max_keep_rate, guarded]
    rate, groups = max(rates), 1
    if selection.budget == "rate" and selection.role_keep_rates:
        groups = len(get_args(Role)) + 1  # each rounds its own budget up
    if rate > 0:
        # The longest kept chunks and the shortest dropped ones that make up the prompt.
        long, short = size + reach, size - reach
        chunks = (prompt_tokens + short * (groups / rate + 1)) / (long - short + short / rate)
        # One chunk more may be kept where not all of them are of the longest.
        more = int(chunks) + 1
        dropped = math.ceil((more - groups) / rate) - more
        rest = prompt_tokens - short * max(0, dropped - 1)  # a prompt's last chunk may be shorter
        tokens = max(tokens, int(chunks) * long, min(more * long, rest))
    return min(prompt_tokens, tokens + protected)


def linear_weights(shape: ModelShape, tp_size: int) -> int:
    """Count the weights of one layer's matrix products on one rank."""
    kv_heads = divide_rounding_up(shape.kv_heads, tp_size)
    qkv = shape.hidden_size * (shape.query_heads // tp_size + 2 * kv_heads) * shape.head_size
    output = shape.query_heads // tp_size * shape.head_size * shape.hidden_size
    feed_forward = 3 * shape.hidden_size * shape.intermediate_size // tp_size
    return qkv + output + feed_forward


def model_memory(
    shape: ModelShape,
    *,
    step_tokens: int,
    batch_size: int,
    weights: NumberFormat = "bfloat16",
    kv_cache: NumberFormat = "bfloat16",
    tp_size: int = 1,
    pp_size: int = 1,
    rotary_tables: int = 1,
) -> ModelMemory:
    """Estimate what the fullest rank of a model takes.

    Args:
        shape: the model.
        step_tokens: tokens of the largest step.
        batch_size: sequences of the largest step.
        weights: format of the matrix products' weights; embeddings stay bfloat16.
        kv_cache: format of keys and values.
        tp_size: ranks that share every layer.
        pp_size: ranks that share the layers.
        rotary_tables: float32 tables [max_positions, head_size] in the engine.
    """
    layers = divide_rounding_up(shape.layers, pp_size)
    embedding = shape.vocabulary_size * shape.hidden_size * 2
    # TensorRT-LLM splits the output layer over the ranks but not the embedding.
    shared = shape.tied_embeddings and tp_size == 1 and pp_size == 1
    output_layer = 0 if shared else embedding // tp_size
    ends = embedding + output_layer if pp_size == 1 else max(embedding, output_layer)
    norms = (2 * layers + 1) * shape.hidden_size * 2
    tables = rotary_tables * shape.max_positions * shape.head_size * 4
    products = layers * linear_weights(shape, tp_size) * BYTES_PER_NUMBER[weights]

    kv_heads = divide_rounding_up(shape.kv_heads, tp_size)
    qkv_width = (shape.query_heads // tp_size + 2 * kv_heads) * shape.head_size
    feed_forward_width = 3 * shape.intermediate_size // tp_size
    # Residual and normalised input live beside the widest pair: qkv before and after rotation, or
    # gate and up beside their product.
    widest = 2 * shape.hidden_size + max(2 * qkv_width, feed_forward_width)
    logits = batch_size * shape.vocabulary_size * 4
    return ModelMemory(
        weights=products + ends + norms + tables,
        activations=step_tokens * widest * 2 + logits,
        kv_per_token=2 * layers * kv_heads * shape.head_size * BYTES_PER_NUMBER[kv_cache],
    )


def draft_cache(draft: ModelMemory, load: Load) -> int:
    """Return the bytes of keys and values of the prompts that the draft holds at once."""
    return load.draft_prompts * (load.prompt_tokens + load.look_ahead) * draft.kv_per_token


def check_draft_alone(total: int, reserve: int, draft: ModelMemory, load: Load) -> None:
    """Check that a draft with a GPU of its own fits on it.

    Args:
        total: bytes of the GPU.
        reserve: bytes to leave alone.
        draft: the draft.
        load: what must fit.

    Raises:
        ConfigurationError: it does not; says every number.
    """
    cache = draft_cache(draft, load)
    if reserve + draft.weights + draft.activations + cache > total:
        raise ConfigurationError(
            f"a GPU of {_gib(total)} is too small for the draft alone: reserve {_gib(reserve)}, "
            f"weights {_gib(draft.weights)}, activations {_gib(draft.activations)}, keys and "
            f"values of {load.prompt_tokens} tokens {_gib(cache)}; allowed: a smaller "
            "max_prompt_tokens or a smaller draft"
        )


def plan_gpu(
    *,
    total: int,
    reserve: int,
    target: ModelMemory,
    draft: ModelMemory | None,
    load: Load,
) -> MemoryPlan:
    """Divide one GPU.

    The executor takes a fraction of what is free when it starts, and Triton may load the target
    before or after the draft. The fraction is chosen so that the draft still fits if it comes
    second; if it comes first, the pool is a little smaller, and that size is reported.

    Args:
        total: bytes of the GPU.
        reserve: bytes to leave alone.
        target: the rank of the target on this GPU.
        draft: the draft, or None where it lives on another GPU.
        load: what must fit.

    Raises:
        ConfigurationError: the models do not fit, or the pool cannot hold one whole prompt and its
            answer; says every number.
    """
    draft_kv = draft_cache(draft, load) if draft is not None else 0
    draft_total = draft.weights + draft.activations + draft_kv if draft is not None else 0
    free_without_draft = total - reserve - target.weights - target.activations
    free = free_without_draft - draft_total
    dense_tokens = load.prompt_tokens + load.new_tokens
    fraction = POOL_SAFETY * free / free_without_draft if free > 0 else 0.0
    pool = int(fraction * free) if free > 0 else 0
    block_bytes = load.tokens_per_block * target.kv_per_token
    blocks = pool // block_bytes
    blocks_per_prompt = divide_rounding_up(dense_tokens, load.tokens_per_block)
    if blocks < blocks_per_prompt:
        needed = blocks_per_prompt * block_bytes
        raise ConfigurationError(
            f"a GPU of {_gib(total)} is too small: reserve {_gib(reserve)}, target weights "
            f"{_gib(target.weights)}, target activations {_gib(target.activations)}, draft "
            f"{_gib(draft_total)} (of it keys and values {_gib(draft_kv)}) leave a pool of "
            f"{_gib(pool)}, and one prompt of {load.prompt_tokens} tokens with an answer of "
            f"{load.new_tokens} needs {_gib(needed)}; allowed: more tp_size or pp_size, a smaller "
            "max_prompt_tokens, a smaller draft, or a draft on another GPU"
        )
    blocks_when_pruned = divide_rounding_up(
        load.kept_tokens + load.new_tokens, load.tokens_per_block
    )
    return MemoryPlan(
        total=total,
        reserve=reserve,
        target_weights=target.weights,
        target_activations=target.activations,
        draft_weights=draft.weights if draft is not None else 0,
        draft_activations=draft.activations if draft is not None else 0,
        draft_kv=draft_kv,
        pool=pool,
        pool_tokens=blocks * load.tokens_per_block,
        pool_blocks=blocks,
        pruned_sequences=blocks // blocks_when_pruned,
        dense_sequences=blocks // blocks_per_prompt,
        kv_cache_free_gpu_memory_fraction=int(fraction * 1000) / 1000,
    )


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"
