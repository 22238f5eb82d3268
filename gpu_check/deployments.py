# SPDX-License-Identifier: Apache-2.0
"""Engines to check: small ones with random weights, made here, and those of a configuration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from specprefill.settings import SamplingSettings, Settings
from specprefill.target.base import GenerationRequest, TargetEngine

from gpu_check.bench import Bench, CheckSkippedError
from gpu_check.random_models import SMALL, SMALL_VOCABULARY, write_random_llama
from gpu_check.reference import Ids, Reference

SMALL_PROMPT_TOKENS = 4096
SMALL_STEP_TOKENS = 1280

# Chosen before anything was measured: bfloat16 and FP8 kernels order their sums differently.
_BFLOAT16_TOLERANCE = 0.25
_FP8_TOLERANCE = 1.0


@dataclass(frozen=True, slots=True)
class Deployment:
    """One pair of engines and the models that they were built from.

    Attributes:
        label: names it on the bench.
        settings: of the deployment.
        vocabulary: random prompts take their tokens from below it.
        tolerance: largest difference of log probabilities that counts as the same arithmetic.
        device: where the reference runs.
        dtype: what the reference computes in.
    """

    label: str
    settings: Settings
    vocabulary: int
    tolerance: float
    device: str = "cuda"
    dtype: torch.dtype = torch.bfloat16

    @property
    def longest_prompt(self) -> int:
        """Tokens of the longest prompt."""
        return self.settings.build.max_prompt_tokens

    @property
    def step_tokens(self) -> int:
        """Tokens of the target's largest step."""
        return self.settings.build.max_num_tokens or self.longest_prompt

    def target(self, bench: Bench, **tensorrt: Any) -> Any:
        """Load the target; further keywords change settings.tensorrt_llm."""
        from specprefill.target.trtllm_target import TrtllmTarget

        ranks = self.settings.build.tp_size * self.settings.build.pp_size
        if ranks > 1:
            raise CheckSkippedError(f"the target has {ranks} ranks, which only mpirun can start")
        changed = self.settings.tensorrt_llm.model_copy(update=tensorrt)
        return bench.hold(
            f"{self.label} target {sorted(tensorrt.items())}",
            lambda: TrtllmTarget(self.settings.target.model, self.settings.target, changed),
        )

    def draft(self, bench: Bench) -> Any:
        """Load the draft."""
        from specprefill.draft.trtllm_draft import TrtllmDraft

        settings = self.settings
        return bench.hold(
            f"{self.label} draft",
            lambda: TrtllmDraft(
                settings.draft.model, settings.draft, settings.tensorrt_llm, settings.selection
            ),
        )

    def reference(self, bench: Bench, section: str = "target", attention: str = "sdpa") -> Any:
        """Load the model that an engine was built from."""
        folder = Path(getattr(self.settings, section).model)
        return bench.hold(
            f"{self.label} {section} {attention}",
            lambda: Reference(folder, attention, self.device, self.dtype),
        )

    def prompt(self, length: int, seed: int = 0) -> Ids:
        """Make a random prompt: int32 [length]."""
        generator = np.random.default_rng(seed)
        return generator.integers(2, self.vocabulary, length, dtype=np.int32)


MakeDeployment = Callable[[Bench], Deployment]


def small_deployment(bench: Bench) -> Deployment:
    """Make two random models and build their engines, once per group."""
    deployment: Deployment = bench.keep("small", lambda: make_small_deployment(bench, 1))
    return deployment


def make_small_deployment(bench: Bench, tp_size: int) -> Deployment:
    """Make two random models and build their engines.

    Args:
        bench: owner of the folder.
        tp_size: GPUs of the target.
    """
    from build_engines.engines import load_tensorrt_llm
    from build_engines.plan import make_plan
    from build_engines.runner import build_all

    root = bench.new_folder()
    target = write_random_llama(root / "large", SMALL, 1, torch.bfloat16, "cuda")
    draft_shape = {**SMALL, "num_hidden_layers": 2}
    draft = write_random_llama(root / "little", draft_shape, 2, torch.bfloat16, "cuda")
    settings = small_settings(str(target), str(draft), str(root / "engines"), tp_size)
    plan = make_plan(settings, root / "engines")
    build_all(plan, settings, load_tensorrt_llm(), Console(stderr=True))
    return Deployment("small", settings, SMALL_VOCABULARY, _BFLOAT16_TOLERANCE)


def small_settings(target: str, draft: str, engines: str, tp_size: int) -> Settings:
    """Return the settings of the small engines."""
    return Settings.model_validate(
        {
            "engine": "tensorrt_llm",
            "target": {"model": target, "device": "cuda:0", "max_running": 4},
            "draft": {"model": draft, "device": "cuda:0"},
            "selection": {"scorer": "zscore", "query_window": 16, "keep_rate": 0.2},
            "tensorrt_llm": {
                "engine_dir": engines,
                # Memory that the planner would give to the pool is not needed here.
                "kv_cache_free_gpu_memory_fraction": 0.1,
            },
            "build": {
                "tp_size": tp_size,
                "gpu_memory_gib": 16,
                "max_batch_size": 4,
                "max_prompt_tokens": SMALL_PROMPT_TOKENS,
                "max_new_tokens": 512,
                "max_num_tokens": SMALL_STEP_TOKENS,
                "target_weights": "bfloat16",
                "target_kv_cache": "bfloat16",
            },
        }
    )


def configured_deployment(bench: Bench) -> Deployment:
    """Take the engines that the configuration names."""
    from specprefill.trtllm_engine.folder import read_engine_folder

    settings = bench.options.settings()
    engines = read_engine_folder(settings.tensorrt_llm.engine_dir)
    # The last few hundred tokens of real vocabularies are special ones.
    vocabulary = engines.target.vocab_size * 3 // 4
    is_fp8 = settings.build.target_weights == "fp8"
    tolerance = _FP8_TOLERANCE if is_fp8 else _BFLOAT16_TOLERANCE
    return Deployment("configured", settings, vocabulary, tolerance)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a target answered greedily.

    Attributes:
        tokens: int32 [n].
        log_probs: float64 [n].
        prefill_ms: time to the first token, waiting left out.
    """

    tokens: Ids
    log_probs: Any
    prefill_ms: float


def ask(
    target: TargetEngine,
    token_ids: Ids,
    position_ids: Ids,
    count: int,
    name: str = "check",
) -> Answer:
    """Let a target continue a prompt greedily, past every stop token.

    Args:
        target: the engine.
        token_ids: int32 [K].
        position_ids: int32 [K].
        count: tokens to generate.
        name: of the request.
    """
    sampling = SamplingSettings().for_request({"max_tokens": count})
    length = int(position_ids[-1]) + 1
    request = GenerationRequest(name, token_ids, position_ids, length, sampling, frozenset())
    steps = list(target.submit(request))
    return Answer(
        np.array([step.token_id for step in steps], dtype=np.int32),
        np.array([step.log_prob for step in steps]),
        steps[0].prefill_ms,
    )


def pruned_positions(length: int, chunk: int = 32, every: int = 5) -> Ids:
    """Keep one chunk in five, and the last 64 tokens: int32 [K]."""
    positions = np.arange(length, dtype=np.int32)
    kept = (positions // chunk % every == 0) | (positions >= length - 64)
    return positions[kept]
