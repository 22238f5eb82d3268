# SPDX-License-Identifier: Apache-2.0
"""The table against Hugging Face's own rotary embeddings."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from specprefill.errors import EngineError
from specprefill.explicit_rotary.cos_sin_table import (
    build_cos_sin_table,
    table_from_inverse_frequencies,
)
from transformers import GPTNeoXConfig, LlamaConfig, PhiConfig
from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXRotaryEmbedding
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.phi.modeling_phi import PhiRotaryEmbedding

SameBits = Callable[[torch.Tensor, torch.Tensor], None]

STATIC = {
    "default": {"rope_type": "default", "rope_theta": 500000.0},
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 3.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "yarn": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 4096,
    },
    "yarn with its own attention factor": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "attention_factor": 0.83,
        "beta_fast": 16.0,
        "original_max_position_embeddings": 4096,
    },
}


def llama(rope_parameters: dict[str, Any], head_dim: int | None = 64) -> LlamaConfig:
    return LlamaConfig(
        hidden_size=256,
        num_attention_heads=4,
        head_dim=head_dim,
        max_position_embeddings=16384,
        rope_parameters=dict(rope_parameters),
    )


def hugging_face_table(embedding: Any, rows: int) -> torch.Tensor:
    cosines, sines = embedding(torch.zeros(1), torch.arange(rows)[None])
    half = cosines.shape[-1] // 2
    assert torch.equal(cosines[0, :, :half], cosines[0, :, half:])
    return torch.cat((cosines[0, :, :half], sines[0, :, :half]), dim=-1)


@pytest.mark.parametrize("name", STATIC)
def test_equals_hugging_face(name: str, assert_same_bits: SameBits) -> None:
    config = llama(STATIC[name])
    table = build_cos_sin_table(config)
    assert table.shape == (16384, 64)
    assert_same_bits(table, hugging_face_table(LlamaRotaryEmbedding(config), 16384))


def test_head_size_is_derived_when_the_configuration_has_none(assert_same_bits: SameBits) -> None:
    config = llama(STATIC["default"], head_dim=None)
    table = build_cos_sin_table(config, max_position=100)
    assert_same_bits(table, hugging_face_table(LlamaRotaryEmbedding(config), 100))


def test_old_configuration_files(assert_same_bits: SameBits) -> None:
    old = LlamaConfig.from_dict(
        {
            "hidden_size": 256,
            "num_attention_heads": 4,
            "max_position_embeddings": 4096,
            "rope_theta": 500000.0,
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
            },
        }
    )
    new = llama(STATIC["llama3"])
    assert_same_bits(build_cos_sin_table(old), build_cos_sin_table(new, max_position=4096))


@pytest.mark.parametrize(
    ("config", "embedding", "rotary_dim"),
    [
        (PhiConfig(hidden_size=160, num_attention_heads=2), PhiRotaryEmbedding, 40),
        (
            GPTNeoXConfig(hidden_size=160, num_attention_heads=2, rotary_pct=0.25),
            GPTNeoXRotaryEmbedding,
            20,
        ),
    ],
    ids=["phi", "gpt_neox"],
)
def test_partial_rotary(
    config: Any, embedding: Any, rotary_dim: int, assert_same_bits: SameBits
) -> None:
    table = build_cos_sin_table(config, max_position=500)
    assert table.shape == (500, rotary_dim)
    assert_same_bits(table, hugging_face_table(embedding(config), 500))


def test_attention_scaling_is_folded_in() -> None:
    table = build_cos_sin_table(llama(STATIC["yarn with its own attention factor"]), max_position=1)
    torch.testing.assert_close(table, torch.tensor([[0.83] * 32 + [0.0] * 32]))


def test_the_configuration_is_not_changed() -> None:
    config = llama(STATIC["default"])
    # Hugging Face completes this with the length of the pretraining.
    config.rope_parameters = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0}
    before = copy.deepcopy(config.to_dict())
    build_cos_sin_table(config, max_position=2)
    assert config.to_dict() == before


@pytest.mark.parametrize("rope_type", ["dynamic", "longrope", "proportional", "invented"])
def test_other_rope_types_are_refused_by_name(rope_type: str) -> None:
    config = llama(STATIC["default"])
    config.rope_parameters["rope_type"] = rope_type
    with pytest.raises(EngineError, match=f"'{rope_type}' is not supported"):
        build_cos_sin_table(config)


def test_parameters_per_kind_of_layer_are_refused() -> None:
    from transformers import Gemma3TextConfig

    with pytest.raises(EngineError, match=r"per kind of layer.*sliding_attention"):
        build_cos_sin_table(Gemma3TextConfig(num_hidden_layers=2))


@pytest.mark.parametrize("rows", [0, -1, 2**24 + 1])
def test_row_counts_out_of_range_are_refused(rows: int) -> None:
    with pytest.raises(ValueError, match="max_position"):
        build_cos_sin_table(llama(STATIC["default"]), max_position=rows)


@pytest.mark.parametrize("frequencies", [torch.ones(4, dtype=torch.float64), torch.ones(2, 2)])
def test_frequencies_of_another_kind_are_refused(frequencies: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="float32 vector"):
        table_from_inverse_frequencies(frequencies, 1.0, 10)
