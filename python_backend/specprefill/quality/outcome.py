# SPDX-License-Identifier: Apache-2.0
"""Outcome: what one variant made of one sample."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Outcome:
    """One answer and how it compares with the dense one; None where it was not measured.

    Attributes:
        sample: name of the sample.
        task: its class.
        length: its nominal length.
        variant: label of the variant.
        text: the answer.
        score: by the sample's metric, in [0, 1].
        prompt_tokens: M.
        kept_tokens: K.
        draft_ms: time of the draft, the scoring and the selection.
        prefill_ms: time of the target's prefill.
        reason: why the prompt was or was not pruned.
        evidence_kept: share of the tokens that hold the answer which were kept.
        same_first_token: the most likely first token is the dense one.
        matched: share of the dense answer's first tokens that the sparse answer starts with.
        first_divergence: KL divergence of the first token's distribution from the dense one, nats.
        answer_divergence: mean of it over the dense answer's first tokens, teacher-forced.
    """

    sample: str
    task: str
    length: int
    variant: str
    text: str
    score: float
    prompt_tokens: int
    kept_tokens: int
    draft_ms: float
    prefill_ms: float
    reason: str
    evidence_kept: float | None = None
    same_first_token: bool | None = None
    matched: float | None = None
    first_divergence: float | None = None
    answer_divergence: float | None = None
