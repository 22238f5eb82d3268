# SPDX-License-Identifier: Apache-2.0
"""Settings -> the parts of a deployment; the only place that knows which engine is configured."""

from __future__ import annotations

import numpy as np

from specprefill.draft.base import DraftEngine
from specprefill.embedded_model import resolve_model
from specprefill.generator import Generator
from specprefill.model_folder import read_config
from specprefill.prompt import Prompt, PromptEncoder
from specprefill.settings import Settings
from specprefill.speculator import Speculator
from specprefill.target.base import TargetEngine
from specprefill.tokenizer import check_same_tokenizer, load_tokenizer, tokenizer_difference

# Enough tokens to run every kernel once before the first request waits for it.
_WARM_UP_TOKENS = 256


def make_prompt_encoder(settings: Settings) -> PromptEncoder:
    """Load the tokenizers, check that they agree unless they need not, build the first step.

    Raises:
        ConfigurationError: a model folder is missing, or the tokenizers differ and
            draft.cross_family is off.
    """
    target, draft = resolve_model(settings.target.model), resolve_model(settings.draft.model)
    tokenizer = load_tokenizer(target, settings.trust_remote_code)
    draft_tokenizer = None
    if draft != target:
        loaded = load_tokenizer(draft, settings.trust_remote_code)
        if not settings.draft.cross_family:
            check_same_tokenizer(loaded, tokenizer)
        elif tokenizer_difference(loaded, tokenizer):
            draft_tokenizer = loaded
    config = read_config(target, settings.trust_remote_code)
    return PromptEncoder(tokenizer, int(config.max_position_embeddings), draft_tokenizer)


def make_speculator(settings: Settings) -> Speculator:
    """Load the draft and build the second step; raises ConfigurationError."""
    speculator = speculator_of(make_draft(settings), settings)
    prompt = Prompt(np.arange(_WARM_UP_TOKENS, dtype=np.int32))
    speculator.speculate(
        prompt, settings.selection.for_request({"keep_rate": 0.5, "min_prompt_tokens": 0})
    )
    return speculator


def speculator_of(draft: DraftEngine, settings: Settings) -> Speculator:
    """Build the second step on a draft that is there already; raises ConfigurationError."""
    counted = settings.draft
    return Speculator(draft, counted.score_layers, counted.score_heads, counted.segment_tokens)


def make_generator(settings: Settings) -> tuple[Generator, TargetEngine]:
    """Load the target and build the third step; raises ConfigurationError."""
    tokenizer = load_tokenizer(resolve_model(settings.target.model), settings.trust_remote_code)
    engine = _make_target(settings)
    generator = Generator(engine, tokenizer)
    if engine.takes_requests:
        ids = np.arange(_WARM_UP_TOKENS, dtype=np.int32)
        sampling = settings.sampling.for_request({"max_tokens": 2})
        for _ in generator.generate("warm-up", ids, ids, _WARM_UP_TOKENS, sampling):
            pass
    return generator, engine


def make_draft(settings: Settings) -> DraftEngine:
    """Load the draft; raises ConfigurationError."""
    _set_threads(settings)
    folder = resolve_model(settings.draft.model)
    if settings.engine == "tensorrt_llm":
        from specprefill.draft.trtllm_draft import TrtllmDraft

        return TrtllmDraft(
            folder,
            settings.draft,
            settings.tensorrt_llm,
            settings.selection,
            settings.trust_remote_code,
        )
    from specprefill.draft.torch_draft import TorchDraft

    return TorchDraft(folder, settings.draft, settings.trust_remote_code)


def _make_target(settings: Settings) -> TargetEngine:
    _set_threads(settings)
    folder = resolve_model(settings.target.model)
    if settings.engine == "tensorrt_llm":
        from specprefill.target.trtllm_target import TrtllmTarget

        return TrtllmTarget(
            folder, settings.target, settings.tensorrt_llm, settings.trust_remote_code
        )
    from specprefill.target.torch_target import TorchTarget

    return TorchTarget(folder, settings.target, settings.trust_remote_code)


def _set_threads(settings: Settings) -> None:
    import torch

    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
