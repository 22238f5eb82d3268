# SPDX-License-Identifier: Apache-2.0
"""The torch engines on a CUDA device against the same on the CPU, and their speed there.

All models have random weights: times are those of real models of that shape, answers mean nothing.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from specprefill.draft.torch_draft import TorchDraft
from specprefill.observer import AttentionObserver
from specprefill.scoring import make_rule
from specprefill.selection import Selection, protected_mask, select
from specprefill.settings import DraftSettings, SelectionSettings, TargetSettings
from specprefill.target.torch_target import TorchTarget

from gpu_check.bench import Bench
from gpu_check.deployments import Answer, ask, pruned_positions
from gpu_check.measure import MIB, overlap
from gpu_check.random_models import (
    LLAMA_3_1_8B,
    LLAMA_3_2_1B,
    SMALL,
    SMALL_VOCABULARY,
    write_random_llama,
)
from gpu_check.reference import Ids
from gpu_check.registry import Body, Check

_GPU = "cuda"
_PROMPT = 1500
_TOKENS = 32
_LONG_PROMPTS = (4096, 16384, 32768)
_REPEATS = 3
# float32 on both sides: only the order of sums differs.
_LEAST_OVERLAP = 0.97
_LOG_PROB_TOLERANCE = 1e-2
_GROWTH_MIB = 16
_MANY_PROMPTS = 100


def draft_selects_the_same(bench: Bench) -> None:
    """Compare what the draft selects on both devices, for both scoring rules."""
    prompt = _prompt(_PROMPT)
    for scorer in ("zscore", "lookahead"):
        settings = SelectionSettings(scorer=scorer, ignore_eos=True)
        kept, importance = [], []
        for device in ("cpu", _GPU):
            draft = _small_draft(bench, device)
            found = _importance(draft, prompt, settings)
            importance.append(found)
            kept.append(_select(found, settings).kept.tolist())
        bench.note(f"{scorer} overlap", overlap(*kept))
        bench.note(f"{scorer} correlation", float(np.corrcoef(*importance)[0, 1]))
        bench.require(overlap(*kept) >= _LEAST_OVERLAP, f"{scorer}: other tokens are selected")


def target_answers_the_same(bench: Bench) -> None:
    """Compare greedy answers on both devices, dense and pruned."""
    for name, positions in (
        ("dense", np.arange(_PROMPT, dtype=np.int32)),
        ("pruned", pruned_positions(_PROMPT)),
    ):
        prompt = _prompt(_PROMPT)[positions]
        answers = []
        for device in ("cpu", _GPU):
            target = _small_target(bench, device)
            answers.append(ask(target, prompt, positions, _TOKENS))
        _require_equal(bench, name, *answers)


def decoding_equals_generate(bench: Bench) -> None:
    """Compare a dense answer with Hugging Face's own generate on the device."""
    from transformers import AutoModelForCausalLM

    positions = np.arange(_PROMPT, dtype=np.int32)
    prompt = _prompt(_PROMPT)
    answer = ask(_small_target(bench, _GPU), prompt, positions, _TOKENS)
    bench.release()
    model: Any = AutoModelForCausalLM.from_pretrained(
        _small_folder(bench), dtype=torch.float32, local_files_only=True
    )
    model.generation_config.eos_token_id = None
    ids = torch.from_numpy(prompt.astype(np.int64)).to(_GPU)[None]
    output = model.to(_GPU).generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=_TOKENS,
        pad_token_id=0,
    )
    generated = output[0, _PROMPT:].cpu().numpy()
    same = int((generated == answer.tokens).sum())
    bench.note("tokens equal", f"{same} of {_TOKENS}")
    bench.require(same == _TOKENS, "the target decodes other tokens than generate")


def memory_stays_flat(bench: Bench) -> None:
    """Read and answer prompts of changing lengths."""
    draft = _small_draft(bench, _GPU)
    settings = SelectionSettings()
    _importance(draft, _prompt(8192), settings)
    before = torch.cuda.memory_allocated()
    for index in range(_MANY_PROMPTS):
        _importance(draft, _prompt(64 + index * 997 % 8000), settings)
    grown = (torch.cuda.memory_allocated() - before) / MIB
    bench.note("prompts", _MANY_PROMPTS)
    bench.note("grown MiB", grown)
    bench.require(grown <= _GROWTH_MIB, f"memory grew by {grown:.0f} MiB")


def time_to_first_token(bench: Bench) -> None:
    """Time dense and sparse prompts on models of the shapes of Llama 1B and 8B."""
    layers = bench.options.target_layers
    bench.note("weights", "random")
    bench.note("draft", "shape of Llama-3.2-1B, 16 layers")
    bench.note("target", f"shape of Llama-3.1-8B, {layers} layers")
    pair: _LargePair = bench.hold("large pair", lambda: _LargePair(bench, layers))
    ratios = []
    for length in _LONG_PROMPTS:
        timing = pair.measure(length)
        bench.note(f"{length} tokens: kept", timing.kept)
        bench.note(f"{length} tokens: dense ms", timing.dense_ms)
        bench.note(f"{length} tokens: draft ms", timing.draft_ms)
        bench.note(f"{length} tokens: pruned prefill ms", timing.pruned_ms)
        bench.note(f"{length} tokens: dense peak MiB", timing.dense_peak_mib)
        bench.note(f"{length} tokens: sparse peak MiB", timing.sparse_peak_mib)
        ratios.append(timing.dense_ms / (timing.draft_ms + timing.pruned_ms))
        bench.note(f"{length} tokens: TTFT ratio", ratios[-1])
    bench.require(ratios[-1] > 1, f"sparse is slower than dense at {_LONG_PROMPTS[-1]} tokens")


@dataclass(frozen=True, slots=True)
class _Timing:
    """Medians of one prompt length; peaks are torch's, weights included."""

    kept: int
    dense_ms: float
    draft_ms: float
    pruned_ms: float
    dense_peak_mib: float
    sparse_peak_mib: float


class _LargePair:
    """A draft and a target of real shapes on one GPU."""

    def __init__(self, bench: Bench, target_layers: int) -> None:
        folder = bench.new_folder()
        draft_folder, target_folder = folder / "draft", folder / "target"
        target_shape = {**LLAMA_3_1_8B, "num_hidden_layers": target_layers}
        write_random_llama(draft_folder, LLAMA_3_2_1B, 1, torch.bfloat16, "cuda")
        write_random_llama(target_folder, target_shape, 2, torch.bfloat16, "cuda")
        torch.cuda.empty_cache()
        self._selection = SelectionSettings()
        self._draft = TorchDraft(draft_folder, DraftSettings(device="cuda", dtype="bfloat16"))
        self._target = TorchTarget(
            target_folder,
            TargetSettings(device="cuda", dtype="bfloat16", prefill_chunk_tokens=8192),
        )

    def measure(self, length: int) -> _Timing:
        """Time one prompt length; the first run of each kind does not count."""
        prompt = _prompt(length)
        everything = np.arange(length, dtype=np.int32)
        dense, pruned, draft = [], [], []
        torch.cuda.reset_peak_memory_stats()
        for _ in range(_REPEATS + 1):
            dense.append(ask(self._target, prompt, everything, 1).prefill_ms)
        dense_peak = torch.cuda.max_memory_allocated() / MIB
        torch.cuda.reset_peak_memory_stats()
        kept = everything
        for _ in range(_REPEATS + 1):
            started = time.perf_counter()
            importance = _importance(self._draft, prompt, self._selection)
            kept = _select(importance, self._selection).kept
            draft.append((time.perf_counter() - started) * 1e3)
            pruned.append(ask(self._target, prompt[kept], kept, 1).prefill_ms)
        sparse_peak = torch.cuda.max_memory_allocated() / MIB
        dense_ms, draft_ms, pruned_ms = (
            float(np.median(times[1:])) for times in (dense, draft, pruned)
        )
        return _Timing(len(kept), dense_ms, draft_ms, pruned_ms, dense_peak, sparse_peak)

    def close(self) -> None:
        """Release both models."""
        self._target.close()
        self._draft.close()


def _prompt(length: int) -> Ids:
    generator = np.random.default_rng(length)
    return generator.integers(2, SMALL_VOCABULARY, length, dtype=np.int32)


def _importance(draft: TorchDraft, prompt: Ids, settings: SelectionSettings) -> Any:
    observer = AttentionObserver(make_rule(settings), len(prompt))
    draft.observe(prompt, observer)
    return observer.importance().cpu().numpy()


def _select(importance: Any, settings: SelectionSettings) -> Selection:
    mask = protected_mask(len(importance), settings.protect_first, settings.protect_last, ())
    return select(importance, settings, mask)


def _small_folder(bench: Bench) -> Path:
    folder: Path = bench.keep(
        "small model",
        lambda: write_random_llama(bench.new_folder() / "model", SMALL, 1, torch.float32, "cpu"),
    )
    return folder


def _small_draft(bench: Bench, device: str) -> TorchDraft:
    settings = DraftSettings(device=device, dtype="float32")
    folder = _small_folder(bench)
    draft: TorchDraft = bench.hold(f"draft {device}", lambda: TorchDraft(folder, settings))
    return draft


def _small_target(bench: Bench, device: str) -> TorchTarget:
    settings = TargetSettings(device=device, dtype="float32")
    folder = _small_folder(bench)
    target: TorchTarget = bench.hold(f"target {device}", lambda: TorchTarget(folder, settings))
    return target


def _require_equal(bench: Bench, name: str, first: Answer, second: Answer) -> None:
    same = int((first.tokens == second.tokens).sum())
    error = float(np.abs(first.log_probs - second.log_probs).max())
    bench.note(f"{name} tokens equal", f"{same} of {len(first.tokens)}")
    bench.note(f"{name} log probability error", error)
    bench.require(
        same == len(first.tokens) and error <= _LOG_PROB_TOLERANCE,
        f"{name}: the answer on the GPU differs from that on the CPU",
    )


def _check(name: str, claim: str, body: Body) -> Check:
    return Check(name, "torch engines", "torch", claim, ("cuda", "transformers 5"), body)


CHECKS = [
    _check("torch draft", "selects the same on GPU and CPU", draft_selects_the_same),
    _check("torch target", "answers the same on GPU and CPU", target_answers_the_same),
    _check("torch decoding", "equals Hugging Face's generate", decoding_equals_generate),
    _check("torch memory", f"{_MANY_PROMPTS} lengths take no memory", memory_stays_flat),
    _check(
        "torch TTFT dense against sparse",
        f"sparse is faster at {_LONG_PROMPTS[-1]} tokens (random weights of real shapes)",
        time_to_first_token,
    ),
]
