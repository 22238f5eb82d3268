# SPDX-License-Identifier: Apache-2.0
"""A model's rotary embedding, from its configuration to the plugin's table.

TensorRT-LLM's container ships transformers 4, which keeps `rope_theta` and `rope_scaling`, and
newer folders keep `rope_parameters`: both are read here, and neither transformers is needed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specprefill.errors import ConfigurationError
from specprefill.explicit_rotary.cos_sin_table import table_from_inverse_frequencies

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch

_PARAMETERS_OF_TYPE: Mapping[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": (
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
    ),
}


@dataclass(frozen=True, slots=True)
class Rope:
    """A rotary embedding with one fixed table for all layers.

    Attributes:
        theta: base of the frequencies.
        rope_type: `default`, `linear` or `llama3`.
        scaling: the parameters of that type.
    """

    theta: float
    rope_type: str
    scaling: Mapping[str, float]

    def in_transformers_4_form(self) -> dict[str, Any]:
        """Return the two keys that TensorRT-LLM 1.2.1 reads."""
        scaling = {"rope_type": self.rope_type, **self.scaling}
        return {
            "rope_theta": self.theta,
            "rope_scaling": None if self.rope_type == "default" else scaling,
        }


def rope_from_config(config: Mapping[str, Any], field: str) -> Rope:
    """Read the rotary embedding of a Hugging Face `config.json`.

    Args:
        config: the parsed file.
        field: the setting that names the model, for the error message.

    Raises:
        ConfigurationError: no RoPE, a partial one, one per kind of layer, or an unknown scaling.
    """
    parameters = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    theta = parameters.pop("rope_theta", None) or config.get("rope_theta")
    if theta is None:
        raise ConfigurationError(
            f"{field}: config.json has neither rope_theta nor rope_parameters.rope_theta; "
            "allowed: a model with rotary position embeddings (RoPE)"
        )
    if any(isinstance(value, Mapping) for value in parameters.values()):
        raise ConfigurationError(
            f"{field}: rope_parameters differ between kinds of layers; "
            "allowed: one set for all layers"
        )
    share = config.get("partial_rotary_factor", parameters.pop("partial_rotary_factor", 1.0))
    if share != 1.0:
        raise ConfigurationError(
            f"{field}: partial_rotary_factor: got {share}; allowed: 1 (TensorRT-LLM's Llama class)"
        )
    rope_type = parameters.get("rope_type") or parameters.get("type") or "default"
    if rope_type not in _PARAMETERS_OF_TYPE:
        raise ConfigurationError(
            f"{field}: rope scaling: got {rope_type!r}; allowed: {', '.join(_PARAMETERS_OF_TYPE)}"
        )
    names = _PARAMETERS_OF_TYPE[rope_type]
    missing = [name for name in names if not isinstance(parameters.get(name), int | float)]
    if missing:
        raise ConfigurationError(
            f"{field}: rope scaling {rope_type}: {missing[0]}: got {parameters.get(missing[0])!r}; "
            "allowed: a number"
        )
    return Rope(float(theta), rope_type, {name: parameters[name] for name in names})


def inverse_frequencies(rope: Rope, head_size: int) -> torch.Tensor:
    """Compute a model's frequencies in float32, with Hugging Face's order of operations.

    Args:
        rope: the rotary embedding.
        head_size: numbers per head, all of them rotated.

    Returns:
        float32 [head_size / 2].
    """
    import torch

    exponents = torch.arange(0, head_size, 2, dtype=torch.int64).float() / head_size
    frequencies = 1.0 / rope.theta**exponents
    if rope.rope_type == "linear":
        return frequencies / rope.scaling["factor"]
    if rope.rope_type == "default":
        return frequencies
    factor = rope.scaling["factor"]
    low, high = rope.scaling["low_freq_factor"], rope.scaling["high_freq_factor"]
    trained_length = rope.scaling["original_max_position_embeddings"]
    wavelengths = 2 * math.pi / frequencies
    slow = wavelengths > trained_length / low
    fast = wavelengths < trained_length / high
    stretched = torch.where(slow, frequencies / factor, frequencies)
    blend = (trained_length / wavelengths - low) / (high - low)
    blended = (1 - blend) * stretched / factor + blend * stretched
    return torch.where(~fast & ~slow, blended, stretched)


def cos_sin_table(rope: Rope, head_size: int, max_positions: int) -> npt.NDArray[np.float32]:
    """Build the table that the ExplicitRotary plugin reads.

    Args:
        rope: the rotary embedding.
        head_size: numbers per head.
        max_positions: rows.

    Returns:
        float32 [max_positions, head_size]: cosines, then sines.
    """
    table = table_from_inverse_frequencies(inverse_frequencies(rope, head_size), 1.0, max_positions)
    numbers: npt.NDArray[np.float32] = table.numpy()
    return numbers
