# SPDX-License-Identifier: Apache-2.0
"""Runner: every variant on every sample, in one process, beside the dense prompt."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from specprefill.draft.base import DraftEngine
from specprefill.embedded_model import resolve_model
from specprefill.engines import make_draft, make_prompt_encoder, speculator_of
from specprefill.errors import ConfigurationError, EngineError
from specprefill.prompt import Prompt
from specprefill.quality import metrics
from specprefill.quality.cache import Cache, code_digest, model_digest
from specprefill.quality.evidence import evidence_mask
from specprefill.quality.outcome import Outcome
from specprefill.quality.probe import TargetProbe, divergence
from specprefill.quality.remembering_speculator import RememberingSpeculator
from specprefill.quality.sample import Sample
from specprefill.quality.variant import DENSE, Variant
from specprefill.selection import Selection, keep_all, runs
from specprefill.settings import Settings
from specprefill.text_stream import TextStream
from specprefill.tokenizer import load_tokenizer

# Answer tokens that dense and sparse are compared on.
COMPARED_TOKENS = 16
_WARM_UP_TOKENS = 256
_CODE = ("torch_engine", "quality/probe.py")


@dataclass(slots=True)
class _Dense:
    """The dense answer that a sample's variants are compared with.

    Attributes:
        tokens: its token ids.
        log_probs: float16 [n, vocabulary] of its first n tokens, n >= 1.
        prefill_ms: time of the target's prefill.
    """

    tokens: list[int]
    log_probs: torch.Tensor
    prefill_ms: float


class Runner:
    """Runs on the torch engines; computes nothing twice, within a run or after it."""

    def __init__(self, settings: Settings, cache: Cache) -> None:
        """Prepare; models are loaded when the cache first lacks something.

        Raises:
            ConfigurationError: the deployment cannot work as configured, or is not of torch.
        """
        if settings.engine != "torch":
            raise ConfigurationError(
                f"engine: {settings.engine} gives no logits to compare; serve it and use --base-url"
            )
        self._settings = settings
        self._cache = cache
        folder = resolve_model(settings.target.model)
        self.tokenizer = load_tokenizer(folder, settings.trust_remote_code)
        self._encoder = make_prompt_encoder(settings)
        self._speculators: dict[str, RememberingSpeculator] = {}
        self._probe: TargetProbe | None = None
        self._identity = {
            "target": settings.target.model_dump(
                mode="json", include={"device", "dtype", "prefill_chunk_tokens"}
            ),
            "model": model_digest(folder),
            "code": code_digest(*_CODE),
        }

    def run(self, sample: Sample, variants: Sequence[Variant]) -> Iterator[Outcome]:
        """Yield the dense outcome, then that of each variant.

        Raises:
            SpecPrefillError: the prompt does not fit, or the draft failed.
        """
        prompt = self._encode(sample, self._settings)
        evidence = evidence_mask(sample, self.tokenizer, prompt.token_ids)
        whole = keep_all(len(prompt.token_ids), "dense")
        dense = self._dense(sample, prompt)
        yield self._outcome(
            sample, DENSE, whole, evidence, dense.tokens, 0.0, dense.prefill_ms, _SAME
        )
        for variant in variants:
            settings = variant.settings(self._settings)
            chosen_prompt = self._encode(sample, settings)
            if variant.oracle:
                answer = runs(np.flatnonzero(evidence).astype(np.int32))
                chosen_prompt = replace(
                    chosen_prompt, protected=(*chosen_prompt.protected, *answer)
                )
            speculator = self._speculator(settings)
            speculation = speculator.speculate(chosen_prompt, settings.selection)
            if speculation.draft_failed:
                raise EngineError(f"variant {variant.label}: {speculation.selection.reason}")
            draft_ms = speculator.scoring_ms if speculation.importance is not None else 0.0
            yield self._sparse(
                sample, variant, chosen_prompt, speculation.selection, evidence, dense, draft_ms
            )

    def _encode(self, sample: Sample, settings: Settings) -> Prompt:
        return self._encoder.encode(
            sample.text,
            sample.messages,
            sample.max_tokens,
            verbatim_guard=settings.selection.verbatim_guard,
            protect_last_user_tokens=settings.selection.protect_last_user_tokens,
        )

    def _speculator(self, settings: Settings) -> RememberingSpeculator:
        name = json.dumps(settings.draft.model_dump(mode="json"))
        if name not in self._speculators:
            self._speculators[name] = RememberingSpeculator(
                lambda: _load_draft(settings), settings, self._cache
            )
        return self._speculators[name]

    def _dense(self, sample: Sample, prompt: Prompt) -> _Dense:
        length = len(prompt.token_ids)
        key = self._key(sample, prompt, np.arange(length, dtype=np.int32))
        stored = self._cache.get(key)
        if stored is None:
            probe = self._loaded_probe()
            room = max(sample.max_tokens, COMPARED_TOKENS)
            ids = np.arange(length, dtype=np.int32)
            prefill_ms = probe.prefill(prompt.token_ids, ids, length, room)
            tokens = probe.answer(sample.max_tokens)
            log_probs = probe.forced_log_probs(tokens[:COMPARED_TOKENS])
            stored = {
                "tokens": np.asarray(tokens, dtype=np.int32),
                "log_probs": log_probs.half().cpu().numpy(),
                "prefill_ms": np.asarray(prefill_ms),
            }
            self._cache.put(key, stored)
        return _Dense(
            stored["tokens"].tolist(),
            torch.from_numpy(stored["log_probs"]),
            float(stored["prefill_ms"]),
        )

    def _sparse(
        self,
        sample: Sample,
        variant: Variant,
        prompt: Prompt,
        selection: Selection,
        evidence: npt.NDArray[np.bool_],
        dense: _Dense,
        draft_ms: float,
    ) -> Outcome:
        kept = selection.kept
        if not selection.active:
            return self._outcome(
                sample,
                variant.label,
                selection,
                evidence,
                dense.tokens,
                draft_ms,
                dense.prefill_ms,
                _SAME,
            )
        key = self._key(sample, prompt, kept)
        stored = self._cache.get(key)
        if stored is None:
            probe = self._loaded_probe()
            room = max(sample.max_tokens, COMPARED_TOKENS)
            prefill_ms = probe.prefill(prompt.token_ids[kept], kept, selection.prompt_length, room)
            tokens = probe.answer(sample.max_tokens)
            log_probs = probe.forced_log_probs(dense.tokens[:COMPARED_TOKENS]).cpu()
            same_first = bool(log_probs[0].argmax() == dense.log_probs[0].argmax())
            stored = {
                "tokens": np.asarray(tokens, dtype=np.int32),
                "prefill_ms": np.asarray(prefill_ms),
                "same_first": np.asarray(same_first),
                "divergence": divergence(dense.log_probs, log_probs).numpy(),
            }
            self._cache.put(key, stored)
        tokens = stored["tokens"].tolist()
        comparison = {
            "same_first_token": bool(stored["same_first"]),
            "matched": matched_share(dense.tokens[:COMPARED_TOKENS], tokens),
            "first_divergence": float(stored["divergence"][0]),
            "answer_divergence": float(stored["divergence"].mean()),
        }
        return self._outcome(
            sample,
            variant.label,
            selection,
            evidence,
            tokens,
            draft_ms,
            float(stored["prefill_ms"]),
            comparison,
        )

    def _outcome(
        self,
        sample: Sample,
        label: str,
        selection: Selection,
        evidence: npt.NDArray[np.bool_],
        tokens: list[int],
        draft_ms: float,
        prefill_ms: float,
        comparison: dict[str, Any],
    ) -> Outcome:
        stream = TextStream(self.tokenizer)
        text = "".join(stream.push(token) for token in tokens) + stream.finish()
        evidence_kept = None
        if evidence.any():
            evidence_kept = float(evidence[selection.kept].sum() / evidence.sum())
        return Outcome(
            sample.name,
            sample.task,
            sample.length,
            label,
            text,
            metrics.score(sample, text),
            selection.prompt_length,
            len(selection.kept),
            draft_ms,
            prefill_ms,
            selection.reason,
            evidence_kept,
            **comparison,
        )

    def _key(self, sample: Sample, prompt: Prompt, kept: npt.NDArray[np.int32]) -> str:
        return Cache.key(
            prompt=prompt.token_ids,
            kept=kept,
            max_tokens=sample.max_tokens,
            compared=COMPARED_TOKENS,
            **self._identity,
        )

    def _loaded_probe(self) -> TargetProbe:
        if self._probe is None:
            if self._settings.threads is not None:
                torch.set_num_threads(self._settings.threads)
            self._probe = TargetProbe(
                resolve_model(self._settings.target.model),
                self._settings.target,
                self._settings.trust_remote_code,
            )
            ids = np.arange(_WARM_UP_TOKENS, dtype=np.int32)
            self._probe.prefill(ids, ids, _WARM_UP_TOKENS, 2)
            self._probe.answer(2)
        return self._probe


# What a dense prompt has in common with itself.
_SAME = {
    "same_first_token": True,
    "matched": 1.0,
    "first_divergence": 0.0,
    "answer_divergence": 0.0,
}


def matched_share(expected: Sequence[int], tokens: Sequence[int]) -> float:
    """Share of the expected tokens that an answer starts with, in [0, 1]."""
    if not expected:
        return 0.0 if tokens else 1.0
    same = 0
    for wanted, token in zip(expected, tokens, strict=False):
        if wanted != token:
            break
        same += 1
    return same / len(expected)


def _load_draft(settings: Settings) -> DraftEngine:
    """Load a draft and run its kernels once, so that the first timed prompt does not wait."""
    draft = make_draft(settings)
    prompt = Prompt(np.arange(_WARM_UP_TOKENS, dtype=np.int32))
    warm_up = settings.selection.for_request({"keep_rate": 0.5, "min_prompt_tokens": 0})
    speculator_of(draft, settings).speculate(prompt, warm_up)
    return draft
