# SPDX-License-Identifier: Apache-2.0
"""Settings -> the parts of a deployment; the only place that knows which engine is configured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from specprefill.draft.torch_draft import TorchDraft
from specprefill.embedded_model import resolve_model
from specprefill.generator import Generator
from specprefill.prompt import PromptEncoder, check_same_tokenizer, load_tokenizer
from specprefill.settings import Settings
from specprefill.speculator import Speculator
from specprefill.target.torch_target import TorchTarget
from specprefill.torch_engine.causal_lm import read_config


def make_prompt_encoder(settings: Settings) -> PromptEncoder:
    """Load the tokenizers, check that they agree, and build the first step.

    Raises:
        ConfigurationError: a model folder is missing, or the tokenizers differ.
    """
    target, draft = model_folders(settings)
    tokenizer = load_tokenizer(target, settings.trust_remote_code)
    if draft != target:
        check_same_tokenizer(load_tokenizer(draft, settings.trust_remote_code), tokenizer)
    config = read_config(target, settings.trust_remote_code)
    return PromptEncoder(tokenizer, int(config.max_position_embeddings))


def make_speculator(settings: Settings) -> Speculator:
    """Load the draft and build the second step; raises ConfigurationError."""
    _set_threads(settings)
    _, draft = model_folders(settings)
    engine = TorchDraft(draft, settings.draft, settings.trust_remote_code)
    return Speculator(engine, settings.draft.score_layers)


def make_generator(settings: Settings) -> tuple[Generator, TorchTarget]:
    """Load the target and build the third step; raises ConfigurationError."""
    _set_threads(settings)
    target, _ = model_folders(settings)
    tokenizer = load_tokenizer(target, settings.trust_remote_code)
    engine = TorchTarget(target, settings.target, settings.trust_remote_code)
    return Generator(engine, tokenizer, engine.stop_token_ids), engine


def model_folders(settings: Settings) -> tuple[Path, Path]:
    """Return the folders of target and draft, unpacking the embedded model if need be."""
    return resolve_model(settings.target.model), resolve_model(settings.draft.model)


def _set_threads(settings: Settings) -> None:
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)


def describe_device(settings: Settings) -> dict[str, Any]:
    """Return what the engines run on, for banners and reports."""
    from specprefill.torch_engine.processor import resolve_dtype

    return {
        "target": f"{settings.target.device} {resolve_dtype(settings.target.dtype, settings.target.device)}",
        "draft": f"{settings.draft.device} {resolve_dtype(settings.draft.dtype, settings.draft.device)}",
        "threads": settings.threads or torch.get_num_threads(),
    }
