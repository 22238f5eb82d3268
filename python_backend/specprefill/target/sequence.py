# SPDX-License-Identifier: Apache-2.0
"""Sequence: one request while the torch target works on it."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator

import torch

from specprefill.errors import RequestCancelledError
from specprefill.target import sampling
from specprefill.target.base import FinishReason, GenerationRequest, GenerationStep
from specprefill.torch_engine.kv_cache import KVCache


class Sequence:
    """Tokens, positions, cache and result stream of one request."""

    def __init__(self, request: GenerationRequest, device: str) -> None:
        """Take over a checked request; the cache's memory is taken at its first step."""
        self.request = request
        self.capacity = len(request.token_ids) + request.sampling.max_tokens
        self.cache = KVCache(self.capacity)
        self.cancelled = False
        self.finished = False
        self.prompt_ids = torch.from_numpy(request.token_ids.astype("int64")).to(device)
        self.prompt_positions = torch.from_numpy(request.position_ids.astype("int64")).to(device)
        self._generated: list[int] = []
        self._generator = torch.Generator()
        if request.sampling.seed is None:
            self._generator.seed()
        else:
            # torch seeds are signed; the same 64 bits give the same stream.
            self._generator.manual_seed(request.sampling.seed & (2**63 - 1))
        self._submitted = time.perf_counter()
        self._started = 0.0
        self._steps: queue.SimpleQueue[GenerationStep | Exception] = queue.SimpleQueue()

    @property
    def prefilling(self) -> bool:
        """True until the whole prompt is in the cache."""
        return self.remaining > 0

    @property
    def remaining(self) -> int:
        """Prompt tokens that are not yet in the cache."""
        return max(0, len(self.prompt_ids) - self.cache.length)

    def start(self) -> None:
        """Note that the prefill begins."""
        self._started = time.perf_counter()

    def next_inputs(self, limit: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the tokens to run next and their positions: int64 [n] each, n <= limit."""
        begin = self.cache.length
        if self.prefilling:
            end = min(begin + limit, len(self.prompt_ids))
            return self.prompt_ids[begin:end], self.prompt_positions[begin:end]
        position = self.request.prompt_length + len(self._generated) - 1
        token = self.prompt_ids.new_tensor([self._generated[-1]])
        return token, token.new_tensor([position])

    def take_logits(self, logits: torch.Tensor, normalizer: float) -> None:
        """Choose and emit the next token.

        Args:
            logits: float32 [vocabulary] of the last token that was run.
            normalizer: log of the sum of their exponentials.
        """
        settings = self.request.sampling
        adjusted = sampling.penalize(
            logits, self.prompt_ids, self.prompt_ids.new_tensor(self._generated), settings
        )
        if len(self._generated) < settings.min_tokens and self.request.stop_token_ids:
            adjusted = sampling.forbid(adjusted, self.request.stop_token_ids)
        completing = [
            bad[-1]
            for bad in self.request.bad_token_sequences
            if tuple(self._generated[len(self._generated) - len(bad) + 1 :]) == bad[:-1]
        ]
        if completing:
            adjusted = sampling.forbid(adjusted, completing)
        token = sampling.choose(adjusted, settings, self._generator)
        queue_ms = prefill_ms = 0.0
        if not self._generated:
            queue_ms = (self._started - self._submitted) * 1e3
            prefill_ms = (time.perf_counter() - self._started) * 1e3
        if token in self.request.stop_token_ids:
            self.finish(GenerationStep(None, 0.0, FinishReason.STOP, queue_ms, prefill_ms))
            return
        self._generated.append(token)
        log_prob = float(logits[token]) - normalizer
        if len(self._generated) == settings.max_tokens:
            step = GenerationStep(token, log_prob, FinishReason.LENGTH, queue_ms, prefill_ms)
            self.finish(step)
        else:
            self._steps.put(GenerationStep(token, log_prob, None, queue_ms, prefill_ms))

    def finish(self, last: GenerationStep | Exception) -> None:
        """Emit the last step, or the error that ends the request, and drop the cache."""
        self.finished = True
        self.cache = KVCache(0)
        self._steps.put(last)

    def steps(self) -> Iterator[GenerationStep]:
        """Iterate over the steps as they are emitted; closing it cancels the request."""
        try:
            while True:
                step = self._steps.get()
                if isinstance(step, Exception):
                    raise step
                yield step
                if step.finish_reason is not None:
                    return
        finally:
            self.cancelled = True

    def cancel(self) -> None:
        """Ask the engine to end the request before its next step."""
        self.cancelled = True

    def end_cancelled(self) -> None:
        """Emit the cancellation."""
        self.finish(RequestCancelledError("the request was cancelled"))
