# SPDX-License-Identifier: Apache-2.0
"""Published model shapes, and models of such a shape with random weights.

The time to a first token does not depend on the values of the weights, so such a model measures
what the published one would take. What it answers means nothing.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from specprefill.errors import ConfigurationError
from specprefill.memory_plan import ModelShape, linear_weights
from specprefill.model_sources import cache

PREFIX = "shape:"
REMARK = "random weights"

_CONTEXT = 131072


def _llama_3(
    layers: int, heads: int, head_size: int, hidden: int, intermediate: int, tied: bool
) -> ModelShape:
    return ModelShape(
        layers=layers,
        query_heads=heads,
        kv_heads=8,
        head_size=head_size,
        hidden_size=hidden,
        intermediate_size=intermediate,
        vocabulary_size=128256,
        tied_embeddings=tied,
        max_positions=_CONTEXT,
    )


def _smollm2(layers: int, heads: int, kv_heads: int, hidden: int, intermediate: int) -> ModelShape:
    return ModelShape(
        layers=layers,
        query_heads=heads,
        kv_heads=kv_heads,
        head_size=64,
        hidden_size=hidden,
        intermediate_size=intermediate,
        vocabulary_size=49152,
        tied_embeddings=True,
        max_positions=8192,
    )


# From each model's own config.json.
PUBLISHED_SHAPES: Mapping[str, ModelShape] = MappingProxyType(
    {
        "llama-3.2-1b": _llama_3(16, 32, 64, 2048, 8192, tied=True),
        "llama-3.2-3b": _llama_3(28, 24, 128, 3072, 8192, tied=True),
        "llama-3.1-8b": _llama_3(32, 32, 128, 4096, 14336, tied=False),
        "llama-3.1-70b": _llama_3(80, 64, 128, 8192, 28672, tied=False),
        "llama-3.1-405b": _llama_3(126, 128, 128, 16384, 53248, tied=False),
        "smollm2-135m": _smollm2(30, 9, 3, 576, 1536),
        "smollm2-360m": _smollm2(32, 15, 5, 960, 2560),
        "smollm2-1.7b": _smollm2(24, 32, 32, 2048, 8192),
    }
)


def published_shape(name: str) -> ModelShape:
    """Look a published shape up by name.

    Raises:
        ConfigurationError: none of that name; lists them.
    """
    shape = PUBLISHED_SHAPES.get(name)
    if shape is None:
        raise ConfigurationError(
            f"{name!r} is no published shape; allowed: {', '.join(sorted(PUBLISHED_SHAPES))}"
        )
    return shape


def parameters(shape: ModelShape) -> int:
    """Count a model's weights without its norms."""
    ends = (1 if shape.tied_embeddings else 2) * shape.vocabulary_size * shape.hidden_size
    return shape.layers * linear_weights(shape, 1) + ends


def write_random_model(shape: ModelShape, source: str, tokenizer: Path, folder: Path) -> None:
    """Write a Llama of this shape with random bfloat16 weights, once.

    Args:
        shape: the shape; its vocabulary must be at least the tokenizer's.
        source: the name that the model is resolved from.
        tokenizer: folder whose tokenizer the model is given, so that text works.
        folder: where to write.

    Raises:
        ConfigurationError: the disk is too small.
    """
    cache.check_space(folder, 2 * parameters(shape))

    def write(staging: Path) -> None:
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(
            vocab_size=shape.vocabulary_size,
            hidden_size=shape.hidden_size,
            intermediate_size=shape.intermediate_size,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.query_heads,
            num_key_value_heads=shape.kv_heads,
            head_dim=shape.head_size,
            max_position_embeddings=shape.max_positions,
            tie_word_embeddings=shape.tied_embeddings,
            bos_token_id=1,
            eos_token_id=2,
        )
        with torch.device("meta"):
            model = LlamaForCausalLM(config).to(torch.bfloat16)
        model = model.to_empty(device="cpu")
        model.tie_weights()
        generator = torch.Generator().manual_seed(0)
        # Drawing billions of numbers takes minutes; repeating a million of them takes seconds.
        block = torch.randn(1 << 20, generator=generator).mul_(config.initializer_range)
        block = block.to(torch.bfloat16)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if "norm" in name:
                    weight.fill_(1.0)
                    continue
                flat = weight.view(-1)
                for start in range(0, flat.numel(), block.numel()):
                    part = flat[start : start + block.numel()]
                    part.copy_(block[: part.numel()])
        model.save_pretrained(staging)
        copy_tokenizer(tokenizer, staging)
        cache.mark(staging, source, REMARK)

    cache.write_once(folder, write)


def copy_tokenizer(source: Path, folder: Path) -> None:
    """Copy tokenizer and chat template from one model folder to another."""
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copyfile(source / name, folder / name)
