# SPDX-License-Identifier: Apache-2.0
"""Writes every config.pbtxt of the model repository; `make configs` runs it."""

from __future__ import annotations

import sys
from pathlib import Path

from specprefill.triton_models.tensors import (
    ERRORS_AS_OUTPUT,
    MAX_BATCH_SIZE,
    MODELS,
    STEP_ERROR,
    STEPS,
    Tensor,
)

_DECOUPLED = ("target", "specprefill")


def render(model: str) -> str:
    """Return the whole config.pbtxt of one model."""
    tensors = MODELS[model]
    lines = [
        "# Generated from specprefill/triton_models/tensors.py; run `make configs` after a change.",
        f'name: "{model}"',
        'platform: "ensemble"' if model == "ensemble" else 'backend: "python"',
        f"max_batch_size: {MAX_BATCH_SIZE}",
    ]
    if model in _DECOUPLED:
        lines.append("model_transaction_policy { decoupled: true }")
    lines += [_tensor("input", tensor) for tensor in tensors.inputs]
    lines += [_tensor("output", tensor) for tensor in tensors.outputs]
    if model == "ensemble":
        lines += ["ensemble_scheduling {", *(_step(step) for step in STEPS), "}"]
    else:
        lines.append("instance_group [ { count: 1, kind: KIND_CPU } ]")
    return "\n".join(lines) + "\n"


def write(repository: Path) -> None:
    """Write the config.pbtxt of every model under a model repository."""
    for model in MODELS:
        (repository / model / "config.pbtxt").write_text(render(model))


def _tensor(kind: str, tensor: Tensor) -> str:
    dims = ", ".join(str(dim) for dim in tensor.dims)
    optional = ", optional: true" if kind == "input" and tensor.optional else ""
    return (
        f'{kind} [ {{ name: "{tensor.name}", data_type: TYPE_{tensor.dtype}, '
        f"dims: [ {dims} ]{optional} }} ]"
    )


def _step(model: str) -> str:
    tensors = STEPS[model]
    lines = [f'  step [ {{ model_name: "{model}", model_version: -1']
    lines += [
        f'    input_map {{ key: "{t.name}", value: "{_inner(model, t, False)}" }}'
        for t in tensors.inputs
        if t != ERRORS_AS_OUTPUT
    ]
    lines += [
        f'    output_map {{ key: "{t.name}", value: "{_inner(model, t, True)}" }}'
        for t in tensors.outputs
        if t != STEP_ERROR
    ]
    return "\n".join([*lines, "  } ]"])


def _inner(model: str, tensor: Tensor, produced: bool) -> str:
    """Name a tensor inside the ensemble; the target's outputs and all inputs are public."""
    between_steps = any(
        tensor in tensors.outputs for name, tensors in STEPS.items() if name != "target"
    )
    if between_steps and not (model == "target" and produced):
        return f"_{tensor.name}"
    return tensor.name


if __name__ == "__main__":
    write(Path(sys.argv[1]))
