# SPDX-License-Identifier: Apache-2.0
"""TrtllmTarget: a compiled TensorRT-LLM engine with explicit positions, through its C++ executor.

Not run on a GPU. Written against the signatures of TensorRT-LLM 1.2.1 and tested against a double
of them that runs on a CPU.
"""

from __future__ import annotations

import datetime
import hashlib
import logging
import queue
import secrets
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from specprefill.errors import (
    ConfigurationError,
    EngineError,
    InvalidRequestError,
    RequestCancelledError,
    ServerBusyError,
)
from specprefill.explicit_rotary import loader
from specprefill.model_folder import read_config
from specprefill.settings import TargetSettings, TensorRTSettings
from specprefill.target.base import (
    FinishReason,
    GenerationRequest,
    GenerationStep,
    TargetEngine,
)
from specprefill.trtllm_engine.folder import EngineConfig, read_engine_folder, read_stop_token_ids
from specprefill.trtllm_engine.package import import_tensorrt_llm

_log = logging.getLogger(__name__)

# How long closing may have to wait for the thread that awaits responses.
_AWAIT = datetime.timedelta(milliseconds=100)

# The runtime clips a larger top_k, and only its log says so.
_MAX_TOP_K = 1024

_FINISH_REASONS = {
    "END_ID": FinishReason.STOP,
    "STOP_WORDS": FinishReason.STOP,
    "LENGTH": FinishReason.LENGTH,
}


class TrtllmTarget(TargetEngine):
    """Runs requests through TensorRT-LLM's executor, which batches them in flight itself.

    Under mpirun every rank makes one of these (leader mode); only rank 0 takes requests, the
    others work for it until it closes.

    Log probabilities are those of the distribution that was sampled from: equal to the contract's
    when greedy without penalties, else after penalties and temperature.
    """

    def __init__(
        self,
        folder: str | Path,
        settings: TargetSettings,
        tensorrt: TensorRTSettings,
        trust_remote_code: bool = False,
    ) -> None:
        """Load the plugin and the engine; on rank 0, start the thread that awaits responses.

        Args:
            folder: the target's Hugging Face folder, for its stop tokens and context length.
            settings: `max_running` and `max_queue` count here; the rest is the torch engine's.
            tensorrt: where the engines lie, and the cache's settings.
            trust_remote_code: run code that the folder brings.

        Raises:
            ConfigurationError: TensorRT-LLM is missing or of another version, a file of the
                engine is missing, the settings do not fit it, or the executor does not start.
            EngineError: the ExplicitRotary plugin cannot be loaded.
        """
        engines = read_engine_folder(tensorrt.engine_dir)
        engine = engines.target
        config = read_config(folder, trust_remote_code)
        self._context_length = min(int(config.max_position_embeddings), engines.context_length)
        self._capacity = engine.max_seq_len
        self._stop_token_ids = read_stop_token_ids(folder, config)
        if settings.max_running > engine.max_batch_size:
            raise ConfigurationError(
                f"target.max_running: {settings.max_running} but the target engine was built for "
                f"at most {engine.max_batch_size} sequences"
            )
        self._settings = settings
        self._api = import_tensorrt_llm("bindings.executor", engine.version)
        self._reuse = tensorrt.enable_block_reuse
        if self._reuse and not hasattr(self._api.Request, "cache_salt_id"):
            # Cached keys carry positions, and nothing else would keep positions apart.
            _log.warning("tensorrt_llm.enable_block_reuse: this TensorRT-LLM has no cache salt")
            self._reuse = False
        # The engine's deserialisation looks the plugin up in this process's registry.
        loader.load_plugin()
        fraction = tensorrt.kv_cache_free_gpu_memory_fraction or engines.kv_cache_fraction
        self._executor = self._start_executor(engine, fraction)
        self._lock = threading.Lock()
        self._answers: dict[int, _Answer] = {}  # executor's id -> answer that is not complete
        self._cache_tokens = 0
        self._active_requests = 0
        self._end: Exception | None = None
        self._leads = bool(self._executor.can_enqueue_requests())
        # On the other ranks shutdown blocks until rank 0 shuts down.
        work = self._await_responses if self._leads else self._executor.shutdown
        self._thread = threading.Thread(target=work, name="trtllm-target", daemon=True)
        self._thread.start()

    @property
    def context_length(self) -> int:
        """Largest position + 1 that the model and the engine's rotary tables were made for."""
        return self._context_length

    @property
    def capacity(self) -> int:
        """Most kept plus generated tokens that one request may hold."""
        return self._capacity

    @property
    def stop_token_ids(self) -> frozenset[int]:
        """The model's own stop tokens."""
        return self._stop_token_ids

    @property
    def takes_requests(self) -> bool:
        """False on every rank but 0."""
        return self._leads

    @property
    def load(self) -> tuple[int, int, int]:
        """Return running sequences, waiting requests and cache tokens in use."""
        statistics = self._executor.get_latest_iteration_stats()
        with self._lock:
            if statistics:
                last = statistics[-1]
                self._active_requests = last.num_active_requests
                cache = last.kv_cache_stats
                if cache is not None:
                    self._cache_tokens = cache.used_num_blocks * cache.tokens_per_block
            # The statistics are those of the last iteration: none follows when all is done.
            in_flight = len(self._answers)
            running = min(self._active_requests, in_flight)
            return running, in_flight - running, self._cache_tokens if in_flight else 0

    def _submit(self, request: GenerationRequest) -> Iterator[GenerationStep]:
        if not self._leads:
            raise EngineError("only rank 0 takes requests")
        native = self._native_request(request)
        answer = _Answer(request)
        # The lock is held so that no response can come before its answer is known.
        with self._lock:
            if self._end is not None:
                raise EngineError(f"the target engine takes no requests: {self._end}")
            if len(self._answers) >= self._settings.max_running + self._settings.max_queue:
                raise ServerBusyError(
                    f"server busy: {len(self._answers)} requests are running or waiting; "
                    "try again later"
                )
            try:
                native_id = self._executor.enqueue_request(native)
            except Exception as error:  # the bindings raise what the C++ runtime throws
                raise EngineError(f"the target refused the request: {error}") from error
            self._answers[native_id] = answer
        return self._steps(native_id, answer)

    def cancel(self, request_id: str) -> bool:
        """Stop a request within one step; see `TargetEngine.cancel`."""
        with self._lock:
            found = [
                (native_id, answer)
                for native_id, answer in self._answers.items()
                if answer.request.request_id == request_id
            ]
        dropped = [answer for native_id, answer in found if self._drop(native_id)]
        for answer in dropped:
            answer.put(RequestCancelledError("the request was cancelled"))
        return bool(dropped)

    def close(self) -> None:
        """End everything in flight and shut the executor down; other ranks wait for rank 0."""
        self._end_all(RequestCancelledError("the server is shutting down"))
        self._thread.join()
        if self._leads:
            self._executor.shutdown()

    def _start_executor(self, engine: EngineConfig, cache_fraction: float | None) -> Any:
        api = self._api
        config = api.ExecutorConfig(
            # Eviction would move generated tokens into the prompt without extending its positions.
            scheduler_config=api.SchedulerConfig(
                capacity_scheduler_policy=api.CapacitySchedulerPolicy.GUARANTEED_NO_EVICT
            ),
            kv_cache_config=api.KvCacheConfig(
                enable_block_reuse=self._reuse,
                free_gpu_memory_fraction=cache_fraction,
            ),
            enable_chunked_context=True,
            # Normalised over the top k, the log probability of a greedy token is always 0.
            normalize_log_probs=False,
            max_batch_size=self._settings.max_running,
            parallel_config=api.ParallelConfig(
                communication_type=api.CommunicationType.MPI,
                communication_mode=api.CommunicationMode.LEADER,
            ),
        )
        try:
            return api.Executor(str(engine.folder), api.ModelType.DECODER_ONLY, config)
        except Exception as error:  # the bindings raise what the C++ runtime throws
            raise ConfigurationError(
                f"the engine in {engine.folder} does not run: {error}"
            ) from error

    def _native_request(self, request: GenerationRequest) -> Any:
        api = self._api
        options: dict[str, Any] = {}
        if self._reuse:
            options["cache_salt_id"] = cache_salt(request.position_ids)
        stop_ids = sorted(request.stop_token_ids)
        return api.Request(
            input_token_ids=request.token_ids.tolist(),
            max_tokens=request.sampling.max_tokens,
            streaming=True,
            sampling_config=api.SamplingConfig(**self._sampling_values(request)),
            output_config=api.OutputConfig(
                return_log_probs=True, exclude_input_from_output=True, return_perf_metrics=True
            ),
            # A request has one end id; the other stop tokens are stop words of one token.
            end_id=stop_ids[0] if stop_ids else None,
            position_ids=request.position_ids.tolist(),
            stop_words=[[token] for token in stop_ids[1:]] or None,
            bad_words=[list(words) for words in request.bad_token_sequences] or None,
            **options,
        )

    def _sampling_values(self, request: GenerationRequest) -> dict[str, Any]:
        """Translate the sampling settings into arguments of the bindings' SamplingConfig."""
        settings = request.sampling
        values: dict[str, Any] = {}
        if settings.greedy:
            values["top_k"] = 1
        else:
            if settings.top_k > _MAX_TOP_K:
                raise InvalidRequestError(
                    "top_k", f"got {settings.top_k}", f"integer from 0 up to {_MAX_TOP_K}"
                )
            values["temperature"] = settings.temperature
            # Without a seed the runtime uses 0, and equal prompts would get equal answers.
            values["seed"] = secrets.randbits(64) if settings.seed is None else settings.seed
            values["top_p"] = settings.top_p or 1.0
            if settings.top_k:
                values["top_k"] = settings.top_k
        if settings.min_tokens and request.stop_token_ids:
            if len(request.stop_token_ids) > 1:
                raise InvalidRequestError(
                    "min_tokens",
                    f"this engine holds back one stop token, the model has "
                    f"{len(request.stop_token_ids)}",
                    "0, or any value together with end_id",
                )
            values["min_tokens"] = settings.min_tokens
        if settings.repetition_penalty != 1:
            values["repetition_penalty"] = settings.repetition_penalty
        values.update(self._subtracted_penalties(request))
        return values

    def _subtracted_penalties(self, request: GenerationRequest) -> dict[str, Any]:
        settings = request.sampling
        penalties = {
            "presence_penalty": settings.presence_penalty,
            "frequency_penalty": settings.frequency_penalty,
        }
        used = [name for name, value in penalties.items() if value]
        if not used:
            return {}
        if not hasattr(self._api.SamplingConfig, "prompt_ignore_length"):
            raise InvalidRequestError(
                used[0], "this TensorRT-LLM would count the prompt's tokens too", "0"
            )
        # The runtime subtracts after it has divided by the temperature, we subtract before.
        temperature = 1.0 if settings.greedy else settings.temperature
        values: dict[str, Any] = {name: penalties[name] / temperature for name in used}
        values["prompt_ignore_length"] = len(request.token_ids)
        return values

    def _steps(self, native_id: int, answer: _Answer) -> Iterator[GenerationStep]:
        """Iterate over an answer's steps; closing it early cancels the request."""
        try:
            yield from answer.steps()
        finally:
            self._drop(native_id)

    def _drop(self, native_id: int) -> bool:
        """Cancel a request in the executor; return False if it is complete already."""
        with self._lock:
            if self._answers.pop(native_id, None) is None:
                return False
            self._executor.cancel_request(native_id)
            return True

    def _await_responses(self) -> None:
        while self._end is None:
            try:
                responses = self._executor.await_responses(timeout=_AWAIT)
                received = time.perf_counter()
                for response in responses:
                    self._dispatch(response, received)
            except Exception as error:
                # What is thrown here is the runtime's own failure; no later request can succeed.
                _log.exception("the target's executor failed")
                self._end_all(EngineError(f"the target failed: {error}"))

    def _dispatch(self, response: Any, received: float) -> None:
        with self._lock:
            answer = self._answers.get(response.request_id)
            if answer is None:  # cancelled: its iterator was told at once
                return
            failed = response.has_error()
            if failed or response.result.is_final:
                del self._answers[response.request_id]
        if failed:
            answer.put(EngineError(f"the target failed: {response.error_msg}"))
        else:
            answer.put((received, response.result))

    def _end_all(self, error: Exception) -> None:
        """Refuse further requests and end those in flight."""
        with self._lock:
            if self._end is None:
                self._end = error
            answers = list(self._answers.values())
            self._answers.clear()
        for answer in answers:
            answer.put(error)


def cache_salt(position_ids: npt.NDArray[np.int32]) -> int | None:
    """Return what must be equal for two prompts to share blocks of cached keys.

    The executor compares tokens only, but keys carry positions.

    Args:
        position_ids: int32 [K], strictly increasing.

    Returns:
        A 64-bit hash of the positions, equal in every process; None for a dense prompt, whose
        positions are those of its tokens, so that any two of them may share a prefix.
    """
    if position_ids[-1] == len(position_ids) - 1:
        return None
    data = np.ascontiguousarray(position_ids, dtype="<i4").tobytes()
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


class _Answer:
    """What the executor has answered to one request so far."""

    def __init__(self, request: GenerationRequest) -> None:
        self.request = request
        self._submitted = time.perf_counter()
        self._results: queue.SimpleQueue[tuple[float, Any] | Exception] = queue.SimpleQueue()

    def put(self, result: tuple[float, Any] | Exception) -> None:
        """Add a result with the time it came, or the error that ends the answer."""
        self._results.put(result)

    def steps(self) -> Iterator[GenerationStep]:
        """Iterate over the steps as they come."""
        first = True
        while True:
            entry = self._results.get()
            if isinstance(entry, Exception):
                raise entry
            received, result = entry
            queue_ms = _queue_ms(result) if first else 0.0
            prefill_ms = (received - self._submitted) * 1e3 - queue_ms if first else 0.0
            first = False
            yield from self._steps_of(result, queue_ms, prefill_ms)
            if result.is_final:
                return

    def _steps_of(
        self, result: Any, queue_ms: float, prefill_ms: float
    ) -> Iterator[GenerationStep]:
        """Turn one result, one or more new tokens, into steps."""
        tokens = list(result.output_token_ids[0])
        # The log probabilities are those of all tokens so far.
        log_probs = result.log_probs[0][-len(tokens) :] if tokens else []
        reason = _finish_reason(result) if result.is_final else None
        if reason is FinishReason.STOP:
            # A stop word is part of the output, an end id is not.
            while tokens and tokens[-1] in self.request.stop_token_ids:
                tokens.pop()
        for index, token in enumerate(tokens):
            last = index == len(tokens) - 1 and reason is FinishReason.LENGTH
            yield GenerationStep(
                token, log_probs[index], reason if last else None, queue_ms, prefill_ms
            )
            queue_ms = prefill_ms = 0.0
        if reason is FinishReason.STOP or (reason is not None and not tokens):
            yield GenerationStep(None, 0.0, reason, queue_ms, prefill_ms)


def _finish_reason(result: Any) -> FinishReason:
    name = result.finish_reasons[0].name
    if name == "CANCELLED":
        raise RequestCancelledError("the request was cancelled")
    if name not in _FINISH_REASONS:
        raise EngineError(f"the target ended the request without finishing it: {name}")
    return _FINISH_REASONS[name]


def _queue_ms(result: Any) -> float:
    """Return how long the executor let the request wait; 0 if it does not say."""
    metrics = result.request_perf_metrics
    if metrics is None or not metrics.timing_metrics.first_scheduled_time:
        return 0.0
    times = metrics.timing_metrics
    return float((times.first_scheduled_time - times.arrival_time).total_seconds() * 1e3)
