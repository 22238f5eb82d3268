# SPDX-License-Identifier: Apache-2.0
"""TorchTarget: any Hugging Face causal LM with explicit positions and in-flight batching."""

from __future__ import annotations

import collections
import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import torch

from specprefill.errors import EngineError, RequestCancelledError, ServerBusyError
from specprefill.settings import TargetSettings
from specprefill.target.base import GenerationRequest, GenerationStep, TargetEngine
from specprefill.target.sequence import Sequence
from specprefill.torch_engine.causal_lm import attention, load_causal_lm, stop_token_ids
from specprefill.torch_engine.few_rows_linear import speed_up_few_rows
from specprefill.torch_engine.kernels import causal_attention, windowed_attention

_log = logging.getLogger(__name__)


class TorchTarget(TargetEngine):
    """Runs all sequences in flight as one flat batch of tokens per step.

    Each step holds one token of every decoding sequence and at most one chunk of prompt tokens: a
    chunk of the oldest prompt that is not yet in the cache, and later prompts that fit beside it
    whole. So a long prefill holds up running streams for one chunk at most.
    """

    def __init__(
        self, folder: str | Path, settings: TargetSettings, trust_remote_code: bool = False
    ) -> None:
        """Load the model and start the engine's thread.

        Raises:
            ConfigurationError: the folder is missing or the model is not supported.
        """
        self._settings = settings
        self._model = load_causal_lm(
            folder, settings.dtype, settings.device, trust_remote_code=trust_remote_code
        )
        speed_up_few_rows(self._model)
        self._stop_token_ids = stop_token_ids(self._model)
        self._wake = threading.Condition()
        self._waiting: collections.deque[Sequence] = collections.deque()
        self._running: list[Sequence] = []
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="torch-target", daemon=True)
        self._thread.start()

    @property
    def context_length(self) -> int:
        """Largest position + 1 that the model was made for."""
        return int(self._model.config.max_position_embeddings)

    @property
    def capacity(self) -> int:
        """Most kept plus generated tokens that one request may hold."""
        return self._settings.kv_cache_tokens

    @property
    def stop_token_ids(self) -> frozenset[int]:
        """The model's own stop tokens."""
        return self._stop_token_ids

    @property
    def load(self) -> tuple[int, int, int]:
        """Return running sequences, waiting requests and cache tokens reserved."""
        with self._wake:
            reserved = sum(sequence.capacity for sequence in self._running)
            return len(self._running), len(self._waiting), reserved

    def _submit(self, request: GenerationRequest) -> Iterator[GenerationStep]:
        sequence = Sequence(request, self._settings.device)
        with self._wake:
            if self._closed:
                raise EngineError("the target engine is closed")
            idle_slots = self._settings.max_running - len(self._running)
            if len(self._waiting) >= self._settings.max_queue + max(idle_slots, 0):
                raise ServerBusyError(
                    f"server busy: {len(self._running)} requests are running and "
                    f"{len(self._waiting)} are waiting; try again later"
                )
            self._waiting.append(sequence)
            self._wake.notify()
        return sequence.steps()

    def cancel(self, request_id: str) -> bool:
        """Stop a request within one step; see `TargetEngine.cancel`."""
        with self._wake:
            for sequence in (*self._running, *self._waiting):
                if sequence.request.request_id == request_id and not sequence.finished:
                    sequence.cancel()
                    self._wake.notify()
                    return True
        return False

    def close(self) -> None:
        """End everything in flight and stop the engine's thread."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._wake:
                while not (self._waiting or self._running or self._closed):
                    self._wake.wait()
                if self._closed:
                    break
                self._admit()
                batch = list(self._running)
            try:
                self._step(batch)
            except Exception as error:
                # One failed step must not take the engine down: its requests fail, later ones run.
                _log.exception("a step of the target failed")
                for sequence in batch:
                    if not sequence.finished:
                        sequence.finish(EngineError(f"the target failed: {error}"))
            with self._wake:
                self._running = [s for s in self._running if not s.finished]
        for sequence in (*self._running, *self._waiting):
            sequence.finish(RequestCancelledError("the server is shutting down"))

    def _admit(self) -> None:
        """Drop what was cancelled and start what fits, oldest first."""
        for sequence in (*self._running, *self._waiting):
            if sequence.cancelled and not sequence.finished:
                sequence.end_cancelled()
        self._running = [s for s in self._running if not s.finished]
        self._waiting = collections.deque(s for s in self._waiting if not s.finished)
        free = self._settings.kv_cache_tokens - sum(s.capacity for s in self._running)
        while self._waiting and len(self._running) < self._settings.max_running:
            if self._waiting[0].capacity > free:
                break
            sequence = self._waiting.popleft()
            free -= sequence.capacity
            self._running.append(sequence)

    @torch.inference_mode()
    def _step(self, running: list[Sequence]) -> None:
        """Run one flat batch: a token of each decoding sequence and one chunk of prompts."""
        batch = [sequence for sequence in running if not sequence.prefilling]
        batch += self._prompts_of_a_chunk([s for s in running if s.prefilling])
        if not batch:
            return
        for sequence in batch:
            if sequence.cache.length == 0:
                sequence.start()
        inputs = [s.next_inputs(self._settings.prefill_chunk_tokens) for s in batch]
        lengths = [len(tokens) for tokens, _ in inputs]
        last = torch.tensor(lengths).cumsum(0) - 1  # [sequences], last token of each in the batch
        flat = _FlatBatch(batch, lengths)
        # A prompt that is not complete after this chunk yields no token yet.
        yields = [
            i for i, s in enumerate(batch) if s.cache.length + lengths[i] >= len(s.prompt_ids)
        ]
        with attention(flat.attend):
            output = self._model(
                input_ids=torch.cat([tokens for tokens, _ in inputs])[None],
                position_ids=torch.cat([positions for _, positions in inputs])[None],
                use_cache=False,
                logits_to_keep=last[yields or [0]].to(self._settings.device),
            )
        for sequence, n in zip(batch, lengths, strict=True):
            sequence.cache.advance(n)
        logits = output.logits[0].float()  # [len(yields), vocabulary]
        normalizers = torch.logsumexp(logits, dim=-1).tolist()
        for row, index in enumerate(yields):
            try:
                batch[index].take_logits(logits[row], normalizers[row])
            except Exception as error:
                # What one request's sampling settings make of the logits is its own matter.
                batch[index].finish(EngineError(f"choosing a token failed: {error}"))

    def _prompts_of_a_chunk(self, prefilling: list[Sequence]) -> list[Sequence]:
        """Choose the oldest prompt, and later ones that fit whole into what its chunk leaves."""
        chosen = prefilling[:1]
        room = self._settings.prefill_chunk_tokens - sum(s.remaining for s in chosen)
        for sequence in prefilling[1:]:
            if sequence.remaining <= room:
                chosen.append(sequence)
                room -= sequence.remaining
        return chosen


class _FlatBatch:
    """Attention of a flat batch: each sequence's tokens see that sequence's cache alone."""

    def __init__(self, sequences: list[Sequence], lengths: list[int]) -> None:
        self._sequences = sequences
        self._lengths = lengths

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scaling: float,
        sliding_window: int | None,
    ) -> torch.Tensor:
        """Attend [heads, T, d] -> [heads, T, d], sequence by sequence."""
        outputs = []
        start = 0
        for sequence, n in zip(self._sequences, self._lengths, strict=True):
            rows = slice(start, start + n)
            keys, values = sequence.cache.append(layer, key[:, rows], value[:, rows])
            if sliding_window is None:
                out = causal_attention(query[:, rows], keys, values, scaling)
            else:
                out = windowed_attention(
                    query[:, rows], keys, values, scaling, sliding_window, sinks=0
                )
            outputs.append(out)
            start += n
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)
