# SPDX-License-Identifier: Apache-2.0
"""Settings -> the parts of a deployment; the only place that knows which engine is configured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from specprefill.break_even import BreakEvenGate, calibrate, draft_operations, operations
from specprefill.cost_model import prefill_pass
from specprefill.draft.base import DraftEngine
from specprefill.embedded_model import resolve_model
from specprefill.engine_costs import (
    DRAFT,
    TARGET,
    EngineCost,
    measured_alone,
    read_cost,
    write_cost,
)
from specprefill.generator import Generator
from specprefill.memory_plan import shape_of
from specprefill.model_folder import read_config
from specprefill.prompt import Prompt, PromptEncoder
from specprefill.scoring import make_rule
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
    draft = make_draft(settings)
    plain = speculator_of(draft, settings)
    _speculate_dummy(plain, settings, _WARM_UP_TOKENS)
    if settings.gate.enabled and settings.gate.costs_folder is not None:
        _keep_draft_cost(plain, settings, Path(settings.gate.costs_folder), draft.context_length)
    return speculator_of(draft, settings, _make_gate(settings))


def speculator_of(
    draft: DraftEngine, settings: Settings, gate: BreakEvenGate | None = None
) -> Speculator:
    """Build the second step on a draft that is there already; raises ConfigurationError."""
    counted = settings.draft
    return Speculator(
        draft, counted.score_layers, counted.score_heads, counted.segment_tokens, gate
    )


def _speculate_dummy(
    speculator: Speculator, settings: Settings, tokens: int, **selection: Any
) -> float:
    """Let the draft read a prompt of no meaning; return the seconds that it took."""
    chosen = settings.selection.for_request(
        {"keep_rate": 0.5, "min_prompt_tokens": 0, "protect_last": 1, **selection}
    )
    prompt = Prompt(np.arange(tokens, dtype=np.int32) % _WARM_UP_TOKENS)
    return speculator.speculate(prompt, chosen).draft_ms / 1e3


def _keep_draft_cost(
    speculator: Speculator, settings: Settings, folder: Path, longest_tokens: int
) -> None:
    """Measure the draft and write its cost, unless the folder has this draft's already."""
    name = settings.draft.model_dump_json()
    rule = make_rule(settings.selection)
    if not rule.needs_draft or read_cost(folder, DRAFT, name):
        return
    shape = shape_of(resolve_model(settings.draft.model))
    decodes = rule.look_ahead > 1
    single = {"look_ahead": 1} if decodes else {}
    one_step = make_rule(settings.selection.for_request(single))
    with measured_alone(folder):
        per_operation = calibrate(
            lambda tokens: _speculate_dummy(speculator, settings, tokens, **single),
            lambda tokens: draft_operations(shape, settings.draft, one_step, tokens),
            min(longest_tokens, settings.draft.segment_tokens or longest_tokens) // 2,
        )
        step_seconds = 0.0
        if decodes:
            every = _speculate_dummy(speculator, settings, _WARM_UP_TOKENS, ignore_eos=True)
            first = _speculate_dummy(speculator, settings, _WARM_UP_TOKENS, **single)
            step_seconds = max(0.0, every - first) / (rule.look_ahead - 1)
    write_cost(folder, DRAFT, EngineCost(name, per_operation, step_seconds))


def _make_gate(settings: Settings) -> BreakEvenGate | None:
    if not settings.gate.enabled or settings.gate.costs_folder is None:
        return None
    folder = Path(settings.gate.costs_folder)
    found: dict[str, EngineCost] = {}

    def costs() -> tuple[EngineCost, EngineCost] | None:
        # The target may load after the draft, so its cost is looked for until it is there.
        for role in (TARGET, DRAFT):
            if role not in found:
                cost = read_cost(folder, role)
                if cost is None:
                    return None
                found[role] = cost
        return found[TARGET], found[DRAFT]

    return BreakEvenGate(
        shape_of(resolve_model(settings.target.model)),
        shape_of(resolve_model(settings.draft.model)),
        settings.draft,
        costs,
        settings.gate.margin,
    )


def make_generator(settings: Settings) -> tuple[Generator, TargetEngine]:
    """Load the target and build the third step; raises ConfigurationError."""
    tokenizer = load_tokenizer(resolve_model(settings.target.model), settings.trust_remote_code)
    engine = _make_target(settings)
    generator = Generator(engine, tokenizer)
    if engine.takes_requests:
        _prefill_dummy(generator, settings, _WARM_UP_TOKENS)
        if settings.gate.enabled and settings.gate.costs_folder is not None:
            _keep_target_cost(generator, settings, Path(settings.gate.costs_folder), engine)
    return generator, engine


def _prefill_dummy(generator: Generator, settings: Settings, tokens: int) -> float:
    """Let the target answer a prompt of no meaning; return the seconds of its prefill."""
    positions = np.arange(tokens, dtype=np.int32)
    sampling = settings.sampling.for_request({"max_tokens": 2, "min_tokens": 0})
    ids = positions % _WARM_UP_TOKENS
    pieces = list(generator.generate("warm-up", ids, positions, tokens, sampling))
    return pieces[0].prefill_ms / 1e3


def _keep_target_cost(
    generator: Generator, settings: Settings, folder: Path, engine: TargetEngine
) -> None:
    """Measure the target and write its cost, unless the folder has this target's already."""
    name = settings.target.model_dump_json()
    if read_cost(folder, TARGET, name):
        return
    shape = shape_of(resolve_model(settings.target.model))
    with measured_alone(folder):
        per_operation = calibrate(
            lambda tokens: _prefill_dummy(generator, settings, tokens),
            lambda tokens: operations(prefill_pass(shape, tokens)),
            min(engine.context_length, engine.capacity) // 2,
        )
    write_cost(folder, TARGET, EngineCost(name, per_operation))


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
