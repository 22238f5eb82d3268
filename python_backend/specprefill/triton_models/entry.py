# SPDX-License-Identifier: Apache-2.0
"""The `specprefill` entry: the three steps with cancellation and a dense way round a dead draft."""

from __future__ import annotations

import contextlib
import os
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from specprefill.errors import (
    InvalidRequestError,
    RequestCancelledError,
    ServerBusyError,
    StepUnavailableError,
)
from specprefill.run_state import FOLDER_VARIABLE, RunState
from specprefill.settings import load_settings
from specprefill.triton_models import requests
from specprefill.triton_models.cancellation import CancellationWatch, WatchedSender
from specprefill.triton_models.step_calls import StepCalls
from specprefill.triton_models.tensors import (
    ANSWER,
    ERRORS_AS_OUTPUT,
    KEPT_IDS,
    POSITION_IDS,
    SPECULATION,
    STEPS,
    STOP,
)
from specprefill.triton_models.timing import Timing

_FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class _Flight:
    """One request on its way through the steps.

    Attributes:
        step_id: the request id that the steps see; clients may send the same one twice, or none.
        cancelled: set once the client gave the request up.
    """

    def __init__(self, calls: StepCalls) -> None:
        self.step_id = uuid.uuid4().hex
        self.cancelled = threading.Event()
        self._calls = calls
        self._sending = threading.Lock()
        self._ended = False

    def cancel(self) -> None:
        """Tell the steps to stop, in whichever the request is."""
        self.cancelled.set()
        self.stop_steps()

    def stop_steps(self) -> None:
        """Send the stop request to the steps that may be at work."""
        for model in ("draft", "target"):
            # A step that is gone has nothing left to stop.
            with contextlib.suppress(StepUnavailableError):
                self._calls.run(model, partial(_stop_step, model, self.step_id))

    def send(self, sender: WatchedSender, response: Any, final: bool) -> None:
        """Pass a response of the target on, unless the request was given up."""
        with self._sending:
            if not self._ended:
                self._ended = final
                sender.send(response, final)

    def give_up(self) -> bool:
        """Let no more responses of the target through; return whether the last is still owed."""
        with self._sending:
            owed = not self._ended
            self._ended = True
        return owed

    def check(self) -> None:
        """Raise RequestCancelledError if the client gave the request up."""
        if self.cancelled.is_set():
            raise RequestCancelledError("the request was cancelled")


class EntryModel:
    """Drives preprocessing, draft and target for each request in a thread of its own."""

    def initialize(self, args: dict[str, str]) -> None:
        """Start the threads; the steps hold the models."""
        target = load_settings().target
        self._capacity = target.max_running + target.max_queue
        self._workers = ThreadPoolExecutor(self._capacity, thread_name_prefix="request")
        # Stop requests must not wait for a free worker.
        self._stopper = ThreadPoolExecutor(1, thread_name_prefix="stop")
        self._watch = CancellationWatch()
        self._calls = StepCalls("specprefill")
        self._lock = threading.Lock()
        self._flights: dict[str, set[_Flight]] = {}  # client id -> requests in flight
        self._count = 0
        folder = os.environ.get(FOLDER_VARIABLE)
        self._run_state = RunState(folder) if folder else None
        self._tell_count()

    def execute(self, batch: list[Any]) -> None:
        """Hand each request to a thread; stop requests are served here."""
        for request in batch:
            sender = request.get_response_sender()
            try:
                if requests.is_stop(request):
                    self._stop(request.request_id())
                    text = requests.output(ANSWER[0], [""])
                    sender.send(pb_utils.InferenceResponse([text]), _FINAL)
                    continue
                self._admit()
            except Exception as error:
                sender.send(requests.error_response(error), _FINAL)
                continue
            self._workers.submit(self._serve, request, sender)

    def finalize(self) -> None:
        """Let threads end with the steps they wait for."""
        self._watch.close()
        self._workers.shutdown(wait=False, cancel_futures=True)
        self._stopper.shutdown(wait=False)

    def _admit(self) -> None:
        if self._run_state is not None and self._run_state.draining:
            raise ServerBusyError("the server is shutting down; send the request to another one")
        with self._lock:
            if self._count >= self._capacity:
                raise ServerBusyError(
                    f"server busy: {self._count} requests are in flight; try again later"
                )
            self._count += 1
            self._tell_count()

    def _tell_count(self) -> None:
        if self._run_state is not None:
            self._run_state.in_flight = self._count

    def _stop(self, client_id: str) -> None:
        if not client_id:
            raise InvalidRequestError("stop", "the request has no id", "a running request's id")
        with self._lock:
            flights = tuple(self._flights.get(client_id, ()))
        for flight in flights:
            # A blocking call from `execute` would wait for steps that may be waiting for us.
            self._stopper.submit(flight.cancel)

    def _serve(self, request: Any, sender: Any) -> None:
        flight = _Flight(self._calls)
        client_id = request.request_id()
        with self._lock:
            self._flights.setdefault(client_id, set()).add(flight)
        watched = self._watch.watch(sender, flight.cancel)
        try:
            self._run(request, watched, flight)
        except _StepError as error:
            watched.send(pb_utils.InferenceResponse(error=error.error), final=True)
        except Exception as error:
            watched.send(requests.error_response(error), final=True)
        finally:
            with self._lock:
                self._count -= 1
                self._tell_count()
                self._flights[client_id].discard(flight)
                if not self._flights[client_id]:
                    del self._flights[client_id]

    def _run(self, request: Any, sender: WatchedSender, flight: _Flight) -> None:
        tensors = {tensor.name(): tensor for tensor in request.inputs()}
        tensors.update(self._step("preprocessing", tensors, flight))
        flight.check()
        try:
            tensors.update(self._step("draft", tensors, flight))
        except (_StepError, StepUnavailableError) as error:
            flight.check()
            if Timing.of(tensors).passed:
                raise
            tensors.update(_keep_all(tensors["prompt_ids"], str(error)))
        flight.check()
        tensors[ERRORS_AS_OUTPUT.name] = requests.batched(ERRORS_AS_OUTPUT, True)
        try:
            self._calls.run("target", lambda: _relay(tensors, sender, flight))
        except StepUnavailableError:
            if flight.give_up():
                raise

    def _step(self, model: str, tensors: dict[str, Any], flight: _Flight) -> dict[str, Any]:
        return self._calls.run(model, lambda: _step(model, tensors, flight.step_id))


def _relay(tensors: dict[str, Any], sender: WatchedSender, flight: _Flight) -> None:
    """Call the target and pass its responses on as they come."""
    stopped_again = False
    for response in _request("target", tensors, flight.step_id).exec(decoupled=True):
        if response.has_error():
            raise _StepError(response.error())
        if flight.cancelled.is_set() and not stopped_again:
            # The stop request may have reached the target before this request did.
            stopped_again = True
            flight.stop_steps()
        outputs = response.output_tensors()
        failure = requests.read_step_error(outputs)
        if failure is not None:
            raise _StepError(failure)
        if outputs:
            # The target marks its last piece with a finish reason.
            final = any(tensor.name() == "finish_reason" for tensor in outputs)
            flight.send(sender, pb_utils.InferenceResponse(outputs), final)


class _StepError(Exception):
    """A step answered with an error."""

    def __init__(self, error: Any) -> None:
        super().__init__(error.message())
        self.error = error


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
        raise _StepError(response.error())
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


def _stop_step(model: str, step_id: str) -> None:
    """Send the stop request to one step."""
    ids = np.zeros((1, 1), dtype=np.int32)
    empty = {
        "prompt_ids": pb_utils.Tensor("prompt_ids", ids),
        "stop": requests.batched(STOP, True),
        **_keep_all(pb_utils.Tensor("prompt_ids", ids), ""),
    }
    if model == "target":
        for _ in _request(model, empty, step_id).exec(decoupled=True):
            pass
    else:
        _request(model, empty, step_id).exec()
