# SPDX-License-Identifier: Apache-2.0
"""The best time to first token that a sparse prefill can have, relative to a dense one.

Counts multiply-adds only: linear layers over the tokens they run on, causal attention over half a
square of them. Look-ahead steps, scoring, launches and communication are left out, so a measured
ratio is smaller.
"""

from __future__ import annotations

from dataclasses import dataclass

from specprefill.memory_plan import ModelShape, linear_weights


@dataclass(frozen=True, slots=True)
class Device:
    """What a model runs on.

    Attributes:
        gpus: GPUs that share its work.
        relative_rate: arithmetic rate of its number format; bfloat16 is 1, FP8 is 2.
    """

    gpus: int = 1
    relative_rate: float = 1.0


def prefill_operations(shape: ModelShape, tokens: int) -> float:
    """Count the multiply-adds of prefilling n tokens.

    Args:
        shape: the model.
        tokens: n, all prompt tokens for a dense prefill, the kept ones for a sparse one.
    """
    linear = shape.layers * linear_weights(shape, 1) * tokens
    attention = shape.layers * shape.query_heads * shape.head_size * float(tokens) ** 2
    logits = shape.vocabulary_size * shape.hidden_size  # of the last token alone
    return linear + attention + logits


def ideal_ratio(
    target: ModelShape,
    draft: ModelShape,
    prompt_tokens: int,
    keep_rate: float,
    target_device: Device,
    draft_device: Device,
) -> float:
    """Return dense over sparse time to first token, at best.

    Args:
        target: shape of the target.
        draft: shape of the draft, which reads the whole prompt.
        prompt_tokens: M.
        keep_rate: p; the target prefills p * M tokens.
        target_device: what the target runs on.
        draft_device: what the draft runs on.
    """

    def time(shape: ModelShape, tokens: int, device: Device) -> float:
        return prefill_operations(shape, tokens) / (device.gpus * device.relative_rate)

    dense = time(target, prompt_tokens, target_device)
    sparse = time(draft, prompt_tokens, draft_device)
    sparse += time(target, round(keep_rate * prompt_tokens), target_device)
    return dense / sparse
