# SPDX-License-Identifier: Apache-2.0
"""The executor's double: requests run on a TorchTarget, answers look as TensorRT-LLM's do."""

from __future__ import annotations

import datetime
import itertools
import json
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from specprefill.errors import RequestCancelledError
from specprefill.settings import SamplingSettings, TargetSettings
from specprefill.target.base import GenerationRequest
from specprefill.target.torch_target import TorchTarget

_TOKENS_PER_BLOCK = 32


class Executor:
    """One executor; `install` makes a subclass that knows its bindings and its test."""

    bindings: Any
    double: Any

    def __init__(self, model_path: str, model_type: Any, executor_config: Any) -> None:
        if not self.double.plugin_loaded:
            raise RuntimeError("Cannot deserialize: no creator of plugin ExplicitRotary")
        if model_type is not self.bindings.ModelType.DECODER_ONLY:
            raise RuntimeError("not a decoder")
        self.double.executors.append(self)
        self.config = executor_config
        self.requests: list[Any] = []
        self.cancelled: list[int] = []
        self.failure: Exception | None = None
        self.error_of_next_request: str | None = None
        self.hold = threading.Event()  # cleared: no answer leaves the executor
        self.hold.set()
        self._leads = self.double.rank == 0
        self._closed = threading.Event()
        folder = Path(model_path)
        self._limits = json.loads((folder / "config.json").read_text())["build_config"]
        engine = json.loads((folder / f"rank{self.double.rank}.engine").read_text())
        self._inputs = engine["inputs"]
        self._target = TorchTarget(
            engine["hugging_face"],
            TargetSettings(
                dtype="float32", max_running=executor_config.max_batch_size, max_queue=10_000
            ),
        )
        self._ids = itertools.count(1)
        self._ready = threading.Condition()
        self._responses: list[Any] = []
        self._blocks: dict[tuple[Any, ...], list[int]] = {}

    def can_enqueue_requests(self) -> bool:
        return self._leads

    def enqueue_request(self, request: Any) -> int:
        if self.failure is not None:
            raise self.failure
        if not request.input_token_ids or request.max_tokens < 1:
            raise RuntimeError("a request needs tokens to read and to generate")
        native_id = next(self._ids)
        self.requests.append(request)
        if self.error_of_next_request is not None:
            error, self.error_of_next_request = self.error_of_next_request, None
            self._respond(native_id, error_msg=error)
            return native_id
        steps = self._target._submit(self._generation(native_id, request))
        threading.Thread(target=self._answer, args=(native_id, request, steps), daemon=True).start()
        return native_id

    def await_responses(self, timeout: datetime.timedelta | None = None) -> list[Any]:
        with self._ready:
            self._ready.wait_for(
                lambda: self._responses or self.failure,
                None if timeout is None else timeout.total_seconds(),
            )
            if self.failure is not None:
                raise self.failure
            responses, self._responses = self._responses, []
        return responses

    def cancel_request(self, id: int) -> None:
        self.cancelled.append(id)
        self._target.cancel(str(id))

    def get_latest_iteration_stats(self) -> list[Any]:
        running, waiting, _ = self._target.load
        cache = SimpleNamespace(used_num_blocks=running, tokens_per_block=_TOKENS_PER_BLOCK)
        return [
            self.bindings.IterationStats(
                num_active_requests=running, num_queued_requests=waiting, kv_cache_stats=cache
            )
        ]

    def shutdown(self) -> None:
        if not self._leads:
            self.double.executors[0]._closed.wait()
        self._closed.set()
        self._target.close()

    def fail(self, error: Exception) -> None:
        """Let everything fail from now on, as after a CUDA error."""
        with self._ready:
            self.failure = error
            self._ready.notify_all()

    def _generation(self, native_id: int, request: Any) -> GenerationRequest:
        positions = self._positions(request)
        count = len(request.input_token_ids)
        room = self._limits["max_seq_len"] - count
        sampling = _sampling(request.sampling_config, count, min(request.max_tokens, room))
        return GenerationRequest(
            str(native_id),
            np.array(request.input_token_ids, dtype=np.int32),
            np.array(positions, dtype=np.int32),
            # A generated token's position is the last position id plus its number.
            positions[-1] + 1,
            sampling,
            frozenset() if request.end_id is None else frozenset((request.end_id,)),
            tuple(tuple(words) for words in request.bad_words or ()),
        )

    def _positions(self, request: Any) -> list[int]:
        tokens = request.input_token_ids
        positions = list(range(len(tokens)))
        if "position_ids" in self._inputs and request.position_ids is not None:
            positions = list(request.position_ids)
        if len(positions) != len(tokens):
            raise AssertionError("the runtime would read position ids out of bounds")
        if self.config.kv_cache_config.enable_block_reuse:
            # Whoever reads the same tokens gets the keys that lie there, rotated as they are.
            key = (tuple(tokens), getattr(request, "cache_salt_id", None))
            cached = self._blocks.setdefault(key, positions)
            positions = cached[:-1] + positions[-1:]
        return positions

    def _answer(self, native_id: int, request: Any, steps: Any) -> None:
        arrival = time.monotonic()
        tokens: list[int] = []
        log_probs: list[float] = []
        reasons = self.bindings.FinishReason
        greedy = request.sampling_config.top_k == 1
        reason = reasons.NOT_FINISHED
        try:
            for step in steps:
                if step.token_id is not None:
                    tokens.append(step.token_id)
                    normalised = self.config.normalize_log_probs and greedy
                    log_probs.append(0.0 if normalised else step.log_prob)
                if any(tokens[-len(word) :] == word for word in request.stop_words or ()):
                    reason = reasons.STOP_WORDS
                elif step.finish_reason is not None:
                    stopped = step.finish_reason.value == "stop"
                    reason = reasons.END_ID if stopped else reasons.LENGTH
                self.hold.wait()
                new = [] if step.token_id is None else [step.token_id]
                self._respond(
                    native_id,
                    result=_result(self.bindings, request, new, log_probs, reason, arrival),
                )
                if reason is not reasons.NOT_FINISHED:
                    break
            steps.close()
        except RequestCancelledError:
            reason = reasons.CANCELLED
            result = _result(self.bindings, request, [], log_probs, reason, arrival)
            self._respond(native_id, result=result)

    def _respond(self, native_id: int, **values: Any) -> None:
        response = self.bindings.Response(request_id=native_id, client_id=None, **values)
        with self._ready:
            self._responses.append(_Response(response))
            self._ready.notify_all()


class _Response:
    """Reads as the bindings' Response, whose has_error is a method."""

    def __init__(self, record: Any) -> None:
        self._record = record

    def __getattr__(self, name: str) -> Any:
        return getattr(self._record, name)

    def has_error(self) -> bool:
        return hasattr(self._record, "error_msg")


def _result(
    bindings: Any,
    request: Any,
    new: list[int],
    log_probs: list[float],
    reason: Any,
    arrival: float,
) -> Any:
    output = request.output_config
    if not output.exclude_input_from_output or not request.streaming:
        raise NotImplementedError("the double streams, and leaves the prompt out")
    metrics = None
    if output.return_perf_metrics:
        times = SimpleNamespace(
            arrival_time=datetime.timedelta(seconds=arrival),
            first_scheduled_time=datetime.timedelta(seconds=arrival + 0.001),
        )
        metrics = bindings.RequestPerfMetrics(timing_metrics=times)
    return bindings.Result(
        is_final=reason is not bindings.FinishReason.NOT_FINISHED,
        output_token_ids=[new],
        # All so far, although the tokens are only the new ones.
        log_probs=[list(log_probs)] if output.return_log_probs else None,
        finish_reasons=[reason],
        request_perf_metrics=metrics,
    )


def _sampling(config: Any, prompt_tokens: int, max_tokens: int) -> SamplingSettings:
    """Translate back, by the rules of the runtime's kernels."""
    if config.beam_width != 1:
        raise NotImplementedError("the double has no beams")
    if config.top_p is not None and not 0 < config.top_p <= 1:
        raise RuntimeError("Assertion failed: topP.value() > 0.f")
    temperature = 1.0 if config.temperature is None else config.temperature
    presence = config.presence_penalty or 0.0
    frequency = config.frequency_penalty or 0.0
    if (presence or frequency) and config.prompt_ignore_length != prompt_tokens:
        raise NotImplementedError("the double does not count the prompt's tokens")
    return SamplingSettings(
        max_tokens=max_tokens,
        min_tokens=config.min_tokens or 0,
        temperature=temperature,
        top_k=config.top_k or 0,
        top_p=config.top_p or 0.0,
        seed=config.seed or 0,
        repetition_penalty=config.repetition_penalty or 1.0,
        # Subtracted after the division by the temperature; a torch engine subtracts before.
        presence_penalty=presence * temperature,
        frequency_penalty=frequency * temperature,
    )
