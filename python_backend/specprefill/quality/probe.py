# SPDX-License-Identifier: Apache-2.0
"""TargetProbe: the target's logits behind a pruned prompt, free-running and teacher-forced."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from specprefill.settings import TargetSettings
from specprefill.torch_engine.causal_lm import attention, load_causal_lm, stop_token_ids
from specprefill.torch_engine.kernels import causal_attention, windowed_attention
from specprefill.torch_engine.kv_cache import KVCache


class TargetProbe:
    """One prompt at a time: prefill once, then answer and be compared from the same cache.

    The arithmetic is the torch target's: explicit positions, the same kernels, the same chunks.
    """

    def __init__(
        self, folder: str | Path, settings: TargetSettings, trust_remote_code: bool = False
    ) -> None:
        """Load the model; raises ConfigurationError."""
        self._settings = settings
        self._model = load_causal_lm(
            folder, settings.dtype, settings.device, trust_remote_code=trust_remote_code
        )
        self._stop_ids = stop_token_ids(self._model)
        self._cache = KVCache(0)
        self._prompt_length = self._kept = 0
        self._first_logits = torch.empty(0)

    @torch.inference_mode()
    def prefill(
        self,
        token_ids: npt.NDArray[np.int32],
        position_ids: npt.NDArray[np.int32],
        prompt_length: int,
        room: int,
    ) -> float:
        """Run the kept tokens at their positions; returns the time it took, in ms.

        Args:
            token_ids: int32 [K].
            position_ids: int32 [K].
            prompt_length: M, the position of the first answer token.
            room: answer tokens that may follow.
        """
        started = time.perf_counter()
        self._cache = KVCache(len(token_ids) + room)
        self._prompt_length, self._kept = prompt_length, len(token_ids)
        tokens = self._tensor(token_ids)
        positions = self._tensor(position_ids)
        size = self._settings.prefill_chunk_tokens
        for start in range(0, len(tokens), size):
            rows = slice(start, start + size)
            self._first_logits = self._forward(tokens[rows], positions[rows], 1)[-1]
        return (time.perf_counter() - started) * 1e3

    @torch.inference_mode()
    def answer(self, max_tokens: int) -> list[int]:
        """Decode greedily from the prefilled prompt, without the stop token."""
        self._cache.length = self._kept
        logits = self._first_logits
        generated: list[int] = []
        while len(generated) < max_tokens:
            token = int(logits.argmax())
            if token in self._stop_ids:
                break
            generated.append(token)
            if len(generated) == max_tokens:
                break
            position = self._prompt_length + len(generated) - 1
            logits = self._forward(self._tensor([token]), self._tensor([position]), 1)[-1]
        return generated

    @torch.inference_mode()
    def forced_log_probs(self, continuation: Sequence[int]) -> torch.Tensor:
        """Distribution of the next token before each of the given tokens (teacher forcing).

        Args:
            continuation: n >= 0 answer tokens; that of none is the first token's distribution.

        Returns:
            float32 [max(n, 1), vocabulary], log probabilities.
        """
        self._cache.length = self._kept
        rows = [self._first_logits[None]]
        if len(continuation) > 1:
            tokens = self._tensor(continuation[:-1])
            positions = torch.arange(len(tokens), device=tokens.device) + self._prompt_length
            rows.append(self._forward(tokens, positions, len(tokens)))
        return torch.log_softmax(torch.cat(rows).float(), dim=-1)

    def _forward(
        self, tokens: torch.Tensor, positions: torch.Tensor, logits_to_keep: int
    ) -> torch.Tensor:
        """Run tokens [n] at the cache's end; return logits [logits_to_keep, vocabulary]."""
        with attention(self._attend):
            output = self._model(
                input_ids=tokens[None],
                position_ids=positions[None],
                use_cache=False,
                logits_to_keep=logits_to_keep,
            )
        self._cache.advance(len(tokens))
        logits: torch.Tensor = output.logits[0]
        return logits

    def _attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scaling: float,
        sliding_window: int | None,
    ) -> torch.Tensor:
        keys, values = self._cache.append(layer, key, value)
        if sliding_window is None:
            return causal_attention(query, keys, values, scaling)
        return windowed_attention(query, keys, values, scaling, sliding_window, sinks=0)

    def _tensor(self, values: Any) -> torch.Tensor:
        return torch.as_tensor(np.asarray(values, dtype=np.int64), device=self._settings.device)


def divergence(dense: torch.Tensor, sparse: torch.Tensor) -> torch.Tensor:
    """Kullback-Leibler divergence of the sparse distribution from the dense one, in nats.

    Args:
        dense: float [n, vocabulary], log probabilities.
        sparse: float [n, vocabulary], log probabilities.

    Returns:
        float32 [n], sum over the vocabulary of p_dense (log p_dense - log p_sparse).
    """
    dense, sparse = dense.float(), sparse.float()
    return (dense.exp() * (dense - sparse)).sum(dim=-1)
