# SPDX-License-Identifier: Apache-2.0
"""Logits -> next token: pure functions with the semantics of transformers' processors."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from specprefill.settings import SamplingSettings


def penalize(
    logits: torch.Tensor,
    prompt_ids: torch.Tensor,
    generated_ids: torch.Tensor,
    settings: SamplingSettings,
) -> torch.Tensor:
    """Apply repetition, presence and frequency penalties.

    Args:
        logits: float32 [vocabulary].
        prompt_ids: int64 [K], the kept prompt tokens; count for the repetition penalty alone.
        generated_ids: int64 [g].
        settings: the penalties.

    Returns:
        float32 [vocabulary], a copy if anything changed.
    """
    if settings.repetition_penalty != 1.0:
        seen = torch.cat((prompt_ids, generated_ids)).unique()
        penalty = settings.repetition_penalty
        values = logits[seen]
        logits = logits.clone()
        logits[seen] = torch.where(values < 0, values * penalty, values / penalty)
    if (settings.presence_penalty or settings.frequency_penalty) and len(generated_ids):
        tokens, counts = generated_ids.unique(return_counts=True)
        logits = logits.clone()
        logits[tokens] -= settings.presence_penalty + settings.frequency_penalty * counts
    return logits


def forbid(logits: torch.Tensor, token_ids: Iterable[int]) -> torch.Tensor:
    """Make tokens impossible: float32 [vocabulary] -> float32 [vocabulary]."""
    logits = logits.clone()
    logits[list(token_ids)] = float("-inf")
    return logits


def restrict(logits: torch.Tensor, top_k: int, top_p: float) -> torch.Tensor:
    """Keep the k most likely tokens, of those the smallest set with probability >= p.

    Args:
        logits: float32 [vocabulary], already divided by the temperature.
        top_k: 0 sets no limit.
        top_p: 0 and 1 set no limit.

    Returns:
        float32 [vocabulary] with -inf for the tokens left out.
    """
    if 0 < top_k < len(logits):
        kth = torch.topk(logits, top_k).values[-1]
        logits = logits.masked_fill(logits < kth, float("-inf"))
    if 0 < top_p < 1:
        ordered, order = torch.sort(logits, descending=True)
        probabilities = torch.softmax(ordered, dim=-1)
        # A token is in the set while the tokens before it have not reached p.
        outside = probabilities.cumsum(dim=-1) - probabilities >= top_p
        logits = logits.masked_fill(outside[order.argsort()], float("-inf"))
    return logits


def choose(logits: torch.Tensor, settings: SamplingSettings, generator: torch.Generator) -> int:
    """Choose the next token.

    Args:
        logits: float32 [vocabulary], penalties applied.
        settings: greedy or temperature, top_k and top_p.
        generator: source of randomness, on the CPU; untouched when greedy.
    """
    if settings.greedy:
        return int(logits.argmax())
    logits = restrict(logits / settings.temperature, settings.top_k, settings.top_p)
    probabilities = torch.softmax(logits, dim=-1).cpu()
    return int(torch.multinomial(probabilities, 1, generator=generator))
