# SPDX-License-Identifier: Apache-2.0
"""The `specprefill` entry: the three steps with cancellation and a dense way round a dead draft."""

from __future__ import annotations

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from specprefill.errors import RequestCancelledError, ServerBusyError
from specprefill.settings import load_settings
from specprefill.triton_models import requests
from specprefill.triton_models.cancellation import CancellationWatch
from specprefill.triton_models.tensors import (
    ANSWER,
    KEPT_IDS,
    POSITION_IDS,
    SPECULATION,
    STEPS,
    STOP,
)

_FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class EntryModel:
    """Drives preprocessing, draft and target for each request in a thread of its own."""

    def initialize(self, args: dict[str, str]) -> None:
        """Start the thread pool; the steps hold the models."""
        target = load_settings().target
        # One thread per request that can be in flight, so that a full queue is told at once.
        self._capacity = target.max_running + target.max_queue
        self._workers = ThreadPoolExecutor(self._capacity + 1, thread_name_prefix="request")
        self._watch = CancellationWatch()
        self._lock = threading.Lock()
        self._in_flight: dict[str, set[str]] = {}  # client id -> step ids
        self._count = 0

    def execute(self, batch: list[Any]) -> None:
        """Hand each request to a thread; stop requests are served here."""
        for request in batch:
            sender = request.get_response_sender()
            try:
                if requests.is_stop(request):
                    self._forward_stop(request)
                    text = requests.output(ANSWER[0], [""])
                    sender.send(pb_utils.InferenceResponse([text]), _FINAL)
                    continue
                with self._lock:
                    if self._count >= self._capacity:
                        raise ServerBusyError(
                            f"server busy: {self._count} requests are in flight; try again later"
                        )
                    self._count += 1
            except Exception as error:
                sender.send(requests.error_response(error), _FINAL)
                continue
            self._workers.submit(self._serve, request, sender)

    def finalize(self) -> None:
        """Let threads end with the steps they wait for."""
        self._watch.close()
        self._workers.shutdown(wait=False, cancel_futures=True)

    def _serve(self, request: Any, sender: Any) -> None:
        # The steps see an id of ours: clients may send the same one twice, or none.
        step_id = uuid.uuid4().hex
        client_id = request.request_id()
        with self._lock:
            self._in_flight.setdefault(client_id, set()).add(step_id)
        cancelled = threading.Event()

        def cancel() -> None:
            cancelled.set()
            _stop_steps(step_id)

        self._watch.add(step_id, sender, cancel)
        try:
            self._run(request, sender, step_id, cancelled)
        except _StepError as error:
            sender.send(pb_utils.InferenceResponse(error=error.response.error()), _FINAL)
        except Exception as error:
            sender.send(requests.error_response(error), _FINAL)
        finally:
            self._watch.remove(step_id)
            with self._lock:
                self._count -= 1
                self._in_flight[client_id].discard(step_id)
                if not self._in_flight[client_id]:
                    del self._in_flight[client_id]

    def _run(self, request: Any, sender: Any, step_id: str, cancelled: threading.Event) -> None:
        tensors = {tensor.name(): tensor for tensor in request.inputs()}
        tensors.update(_step("preprocessing", tensors, step_id))
        if cancelled.is_set():
            raise RequestCancelledError("the client closed the request")
        try:
            tensors.update(_step("draft", tensors, step_id))
        except _StepError as error:
            # What the client got wrong, or gave up, is no failure of the draft.
            codes = pb_utils.TritonError
            if error.response.error().code() in (codes.INVALID_ARG, codes.CANCELLED):
                raise
            tensors.update(_keep_all(tensors["prompt_ids"], error.response.error().message()))
        if cancelled.is_set():
            raise RequestCancelledError("the client closed the request")
        for response in _request("target", tensors, step_id).exec(decoupled=True):
            if response.has_error():
                sender.send(pb_utils.InferenceResponse(error=response.error()), _FINAL)
                return
            outputs = response.output_tensors()
            if not outputs:
                continue
            # The target marks its last piece with a finish reason.
            final = any(tensor.name() == "finish_reason" for tensor in outputs)
            sender.send(pb_utils.InferenceResponse(outputs), _FINAL if final else 0)

    def _forward_stop(self, request: Any) -> None:
        with self._lock:
            step_ids = tuple(self._in_flight.get(request.request_id(), ()))
        for step_id in step_ids:
            # A blocking call from `execute` would wait for models that may be waiting for us.
            self._workers.submit(_stop_steps, step_id)


class _StepError(Exception):
    """A step answered with an error."""

    def __init__(self, response: Any) -> None:
        super().__init__(response.error().message())
        self.response = response


def _request(model: str, tensors: dict[str, Any], step_id: str) -> Any:
    """Build the request of one step from the tensors known so far."""
    names = [t.name for t in STEPS[model].inputs if t.name in tensors]
    return pb_utils.InferenceRequest(
        model_name=model,
        request_id=step_id,
        requested_output_names=[t.name for t in STEPS[model].outputs],
        inputs=[tensors[name] for name in names],
    )


def _step(model: str, tensors: dict[str, Any], step_id: str) -> dict[str, Any]:
    response = _request(model, tensors, step_id).exec()
    if response.has_error():
        raise _StepError(response)
    return {tensor.name(): tensor for tensor in response.output_tensors()}


def _keep_all(prompt_ids: Any, problem: str) -> dict[str, Any]:
    """Build the draft step's outputs for a dense prefill, without the draft."""
    ids = prompt_ids.as_numpy()[0]
    values = (len(ids), len(ids), False, f"dense: the draft step failed: {problem}", 0.0)
    tensors = [
        requests.batched(KEPT_IDS, ids),
        requests.batched(POSITION_IDS, np.arange(len(ids), dtype=np.int32)),
        *(requests.batched(t, value) for t, value in zip(SPECULATION, values, strict=True)),
    ]
    return {tensor.name(): tensor for tensor in tensors}


def _stop_steps(step_id: str) -> None:
    """Send the stop request to the steps that may be at work."""
    stop = requests.batched(STOP, True)
    ids = np.zeros((1, 1), dtype=np.int32)
    empty = {
        "prompt_ids": pb_utils.Tensor("prompt_ids", ids),
        "protected_spans": pb_utils.Tensor("protected_spans", np.zeros((1, 1, 2), np.int32)),
        "stop": stop,
        **_keep_all(pb_utils.Tensor("prompt_ids", ids), ""),
    }
    _request("draft", empty, step_id).exec()
    for _ in _request("target", empty, step_id).exec(decoupled=True):
        pass
