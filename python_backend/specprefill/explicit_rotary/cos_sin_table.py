# SPDX-License-Identifier: Apache-2.0
"""The table of cosines and sines that the plugin reads, computed as Hugging Face computes them."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from specprefill.errors import EngineError

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig

STATIC_ROPE_TYPES = ("default", "linear", "llama3", "yarn")

# float32 holds every integer up to here; beyond it neighbouring positions would share an angle.
LARGEST_EXACT_POSITION_COUNT = 2**24


def build_cos_sin_table(config: PreTrainedConfig, max_position: int | None = None) -> torch.Tensor:
    """Build the plugin's table for a model.

    Args:
        config: a Hugging Face configuration with one set of RoPE parameters for all layers. It
            is not changed.
        max_position: rows of the table; None means config.max_position_embeddings.

    Returns:
        [max_position, rotary_dim], float32, on the CPU: cosines in the first half of a row, sines
        in the second, both times the attention scaling of the RoPE type.

    Raises:
        EngineError: the RoPE type has no fixed table (dynamic, longrope), is unknown, or differs
            between layers.
        ValueError: max_position is out of range.
    """
    inverse_frequencies, attention_scaling = inverse_frequencies_of(config)
    rows = config.max_position_embeddings if max_position is None else max_position
    return table_from_inverse_frequencies(inverse_frequencies, attention_scaling, rows)


def table_from_inverse_frequencies(
    inverse_frequencies: torch.Tensor, attention_scaling: float, max_position: int
) -> torch.Tensor:
    """Build the plugin's table from frequencies that are already known.

    Args:
        inverse_frequencies: [rotary_dim / 2], float32.
        attention_scaling: factor folded into cosines and sines.
        max_position: rows of the table.

    Returns:
        [max_position, rotary_dim], float32, as `build_cos_sin_table`.

    Raises:
        ValueError: max_position is out of range or the frequencies are not a float32 vector.
    """
    import torch

    if not 1 <= max_position <= LARGEST_EXACT_POSITION_COUNT:
        raise ValueError(
            f"max_position is {max_position}; allowed: 1 to {LARGEST_EXACT_POSITION_COUNT}"
        )
    if inverse_frequencies.dim() != 1 or inverse_frequencies.dtype != torch.float32:
        raise ValueError("inverse_frequencies must be a float32 vector")
    # The angle is rounded to float32 because the model rounds it; float64 cosines differ by 1e-4.
    positions = torch.arange(max_position, dtype=torch.float32)
    angles = positions[:, None] * inverse_frequencies.cpu()
    return torch.cat((angles.cos() * attention_scaling, angles.sin() * attention_scaling), dim=-1)


def inverse_frequencies_of(config: PreTrainedConfig) -> tuple[torch.Tensor, float]:
    """Ask Hugging Face for a model's inverse frequencies.

    Args:
        config: a Hugging Face configuration. It is not changed.

    Returns:
        Inverse frequencies [rotary_dim / 2], float32 on the CPU, and the attention scaling.

    Raises:
        EngineError: as `build_cos_sin_table`.
    """
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = copy.deepcopy(config)
    config.standardize_rope_params()
    parameters = getattr(config, "rope_parameters", None)
    if not parameters:
        raise EngineError(f"a {config.model_type} configuration has no RoPE parameters")
    if "rope_type" not in parameters:
        raise EngineError(
            f"a {config.model_type} configuration has RoPE parameters per kind of layer "
            f"({', '.join(parameters)}); one table must serve all layers"
        )
    rope_type = parameters["rope_type"]
    if rope_type not in STATIC_ROPE_TYPES:
        raise EngineError(
            f"RoPE type {rope_type!r} is not supported: its frequencies are unknown or depend on "
            f"the sequence length; supported: {', '.join(STATIC_ROPE_TYPES)}"
        )
    if rope_type == "default":
        return _default_inverse_frequencies(config), 1.0
    inverse_frequencies, attention_scaling = ROPE_INIT_FUNCTIONS[rope_type](config)
    return inverse_frequencies, attention_scaling


def _default_inverse_frequencies(config: PreTrainedConfig) -> torch.Tensor:
    # transformers 5 keeps the default formula in each model's own file, not in ROPE_INIT_FUNCTIONS.
    import torch

    parameters = config.rope_parameters
    head_size = getattr(config, "head_dim", None) or (
        config.hidden_size // config.num_attention_heads
    )
    rotary_dim = int(head_size * parameters.get("partial_rotary_factor", 1.0))
    exponents = torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim
    inverse_frequencies: torch.Tensor = 1.0 / (parameters["rope_theta"] ** exponents)
    return inverse_frequencies
