# SPDX-License-Identifier: Apache-2.0
"""Loads any Hugging Face causal LM so that its attention runs through a function of ours."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.modeling_utils import AttentionInterface
from transformers.utils import logging as transformers_logging

from specprefill.errors import ConfigurationError
from specprefill.model_folder import read_config
from specprefill.torch_engine.processor import keep_freed_memory, resolve_dtype

# Receives layer, query [heads, T, d], keys and values [kv_heads, T, d], scaling and the layer's
# sliding window, returns [heads, T, d].
AttentionFunction = Callable[
    [int, torch.Tensor, torch.Tensor, torch.Tensor, float, int | None], torch.Tensor
]

_IMPLEMENTATION = "specprefill"
_current: ContextVar[AttentionFunction] = ContextVar("specprefill_attention")

# Positions are applied per token, so the rotary table must not depend on a sequence's length.
_ROPE_TYPES = ("default", "linear", "llama3", "yarn")


def _dispatch(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Adapt transformers' attention interface; tensors are [1, heads, T, d]."""
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    out = _current.get()(
        int(module.layer_idx),  # type: ignore[arg-type]
        query[0],
        key[0],
        value[0],
        scaling,
        sliding_window,
    )
    return out.transpose(0, 1)[None], None


# No mask function is registered under this name, so transformers builds no mask at all: with one
# it would take gaps in the position ids for packed sequences and mask across them.
AttentionInterface.register(_IMPLEMENTATION, _dispatch)


@contextlib.contextmanager
def attention(function: AttentionFunction) -> Iterator[None]:
    """Let every attention layer called inside the block run `function`."""
    token = _current.set(function)
    try:
        yield
    finally:
        _current.reset(token)


def load_causal_lm(
    folder: str | Path,
    dtype: str,
    device: str,
    layers: int | None = None,
    trust_remote_code: bool = False,
) -> Any:
    """Load a causal LM for inference, its attention routed through `attention`.

    Args:
        folder: Hugging Face folder.
        dtype: `auto`, `float32`, `bfloat16` or `float16`.
        device: torch device.
        layers: load only the first n layers; None loads all.
        trust_remote_code: run code that the folder brings.

    Raises:
        ConfigurationError: the folder is missing, or the model cannot work with explicit
            positions; the message says what it is.
    """
    keep_freed_memory()
    config = read_config(folder, trust_remote_code)
    _check_supported(config, folder)
    if layers is not None:
        if layers > config.num_hidden_layers:
            raise ConfigurationError(
                f"draft.layers: {layers} but {folder} has {config.num_hidden_layers} layers"
            )
        config.num_hidden_layers = layers
        if getattr(config, "layer_types", None):
            config.layer_types = config.layer_types[:layers]
    # Layers that an early exit leaves out are meant to be unused; what is missing is told below.
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        model, loaded = AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            output_loading_info=True,
            dtype=resolve_dtype(dtype, device),
            attn_implementation=_IMPLEMENTATION,
            trust_remote_code=trust_remote_code,
            local_files_only=True,
        )
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"model folder {folder}: {error}") from error
    if loaded["missing_keys"]:
        missing = sorted(loaded["missing_keys"])
        raise ConfigurationError(
            f"model folder {folder} lacks {len(missing)} weights, first {missing[0]}"
        )
    return model.to(device).eval().requires_grad_(False)


def stop_token_ids(model: Any) -> frozenset[int]:
    """Return the tokens that a loaded model's own generation settings end an answer with."""
    eos = model.generation_config.eos_token_id
    if eos is None:
        return frozenset()
    return frozenset([eos] if isinstance(eos, int) else eos)


def _check_supported(config: Any, folder: str | Path) -> None:
    rope = getattr(config, "rope_parameters", None)
    if not rope:
        raise ConfigurationError(
            f"{folder}: model type {config.model_type} has no rotary position embedding; "
            "original positions cannot be restored"
        )
    # Models with several attention kinds hold one set of parameters per kind.
    sets = [value for value in rope.values() if isinstance(value, dict)] or [rope]
    for parameters in sets:
        rope_type = parameters.get("rope_type", "default")
        if rope_type not in _ROPE_TYPES:
            raise ConfigurationError(
                f"{folder}: rotary scaling {rope_type!r} depends on the sequence's length; "
                f"allowed: {', '.join(_ROPE_TYPES)}"
            )
    if getattr(config, "attn_logit_softcapping", None):
        raise ConfigurationError(f"{folder}: attention logit soft-capping is not supported")
