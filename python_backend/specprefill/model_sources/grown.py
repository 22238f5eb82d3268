# SPDX-License-Identifier: Apache-2.0
"""Grown models: more layers, more work, exactly the same function.

Behind every layer of a model come copies of it whose two output projections are zero. They read,
multiply and attend like any other layer and add nothing to the residual stream, so the answers are
those of the original at a multiple of its decoder's cost: a big target that is as good as a small
one, for measuring where no big one is at hand.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from specprefill.errors import ConfigurationError
from specprefill.model_sources import cache
from specprefill.model_sources.shapes import copy_tokenizer

PREFIX = "grown:"
FACTORS = (2, 4, 8)

_LAYER = re.compile(r"^(model\.layers\.)(\d+)(\..+)$")
_OUTPUT_PROJECTIONS = ("self_attn.o_proj.weight", "mlp.down_proj.weight")
_WEIGHTS = "model.safetensors"


def parse_factor(source: str, base_name: str) -> int:
    """Read the factor from `grown:<base>-x<factor>`.

    Raises:
        ConfigurationError: another base, or a factor that is not offered.
    """
    found = re.fullmatch(rf"{PREFIX}{re.escape(base_name)}-x(\d+)", source)
    if found is None or int(found.group(1)) not in FACTORS:
        allowed = ", ".join(f"{PREFIX}{base_name}-x{factor}" for factor in FACTORS)
        raise ConfigurationError(f"{source!r} is no grown model; allowed: {allowed}")
    return int(found.group(1))


def write_grown_model(base: Path, factor: int, source: str, folder: Path) -> None:
    """Write a model with `factor` times the layers of a Llama and the same function, once.

    Args:
        base: folder of the Llama, with its weights in one file.
        factor: layers per original layer.
        source: the name that the model is resolved from.
        folder: where to write; takes nearly `factor` times the base's size.

    Raises:
        ConfigurationError: the disk is too small.
    """
    cache.check_space(folder, factor * (base / _WEIGHTS).stat().st_size)

    def write(staging: Path) -> None:
        import torch
        from safetensors.torch import load_file, save_file

        config = json.loads((base / "config.json").read_text())
        config["num_hidden_layers"] *= factor
        config.pop("layer_types", None)
        (staging / "config.json").write_text(json.dumps(config, indent=2))
        generation = base / "generation_config.json"
        if generation.exists():
            (staging / generation.name).write_text(generation.read_text())
        weights = {}
        for name, weight in load_file(base / _WEIGHTS).items():
            layer = _LAYER.match(name)
            if layer is None:
                weights[name] = weight
                continue
            prefix, index, rest = layer.group(1), int(layer.group(2)), layer.group(3)
            weights[name_of(prefix, index * factor, rest)] = weight
            idle = rest.removeprefix(".") in _OUTPUT_PROJECTIONS
            for copy in range(1, factor):
                name = name_of(prefix, index * factor + copy, rest)
                weights[name] = torch.zeros_like(weight) if idle else weight.clone()
        save_file(weights, staging / _WEIGHTS, metadata={"format": "pt"})
        copy_tokenizer(base, staging)
        cache.mark(staging, source, f"grown x{factor}")

    cache.write_once(folder, write)


def name_of(prefix: str, index: int, rest: str) -> str:
    """Put a weight's name together again."""
    return f"{prefix}{index}{rest}"
