# SPDX-License-Identifier: Apache-2.0
"""Llama models with random weights: their answers mean nothing, their arithmetic is the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SMALL_VOCABULARY = 4096

# Attention of freshly initialised weights is flat; wider ones make rankings more than rounding.
SHARP = 0.05

_COMMON = {"bos_token_id": 0, "eos_token_id": 1, "attention_bias": False}

SMALL: dict[str, Any] = {
    **_COMMON,
    "vocab_size": SMALL_VOCABULARY,
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 16384,
    "initializer_range": SHARP,
}

LLAMA_3_2_1B: dict[str, Any] = {
    **_COMMON,
    "vocab_size": 128256,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": True,
}

LLAMA_3_1_8B: dict[str, Any] = {
    **_COMMON,
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
}


def write_random_llama(
    folder: Path, shape: dict[str, Any], seed: int, dtype: torch.dtype, device: str
) -> Path:
    """Write a Hugging Face folder with random weights and a tokenizer of numbered words.

    Args:
        folder: made.
        shape: arguments of LlamaConfig.
        seed: of the weights.
        dtype: of the weights.
        device: where the weights are drawn; large ones take minutes on a CPU.
    """
    config = LlamaConfig(**shape)
    default = torch.get_default_dtype()
    torch.manual_seed(seed)
    try:
        torch.set_default_dtype(dtype)
        with torch.device(device):
            model = LlamaForCausalLM(config)
    finally:
        torch.set_default_dtype(default)
    model.to(dtype).save_pretrained(folder)
    words = {f"w{index}": index for index in range(int(shape["vocab_size"]))}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    return folder
