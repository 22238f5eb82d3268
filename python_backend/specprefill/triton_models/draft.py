# SPDX-License-Identifier: Apache-2.0
"""Step 2: prompt ids -> kept ids and position ids, through the draft."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from specprefill.engines import make_speculator
from specprefill.errors import InvalidRequestError, RequestCancelledError
from specprefill.prompt import Prompt
from specprefill.selection import keep_all
from specprefill.settings import load_settings
from specprefill.speculator import Speculation
from specprefill.triton_models import requests
from specprefill.triton_models.metrics import Metrics
from specprefill.triton_models.tensors import KEPT_IDS, POSITION_IDS, SELECTION, SPECULATION
from specprefill.trtllm_engine.mpi import leave_mpi


class DraftModel:
    """Selects the kept tokens; prompts take turns, a stop request never waits."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the draft."""
        self._settings = load_settings()
        if self._settings.engine == "tensorrt_llm":
            leave_mpi(os.environ)
        self._speculator = make_speculator(self._settings)
        self._metrics = Metrics()
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="draft")
        self._lock = threading.Lock()
        self._stopped: set[str] = set()
        self._ids: list[str] = []  # requests that wait or run, by client id

    def execute(self, batch: list[Any]) -> None:
        """Queue the requests; each is answered when its turn is over."""
        for request in batch:
            sender = request.get_response_sender()
            try:
                if requests.is_stop(request):
                    with self._lock:
                        if request.request_id() in self._ids:
                            self._stopped.add(request.request_id())
                    response = self._response(
                        np.zeros(1, np.int32), Speculation(keep_all(1, "stop request"))
                    )
                    sender.send(response, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
                    continue
            except Exception as error:
                sender.send(
                    requests.error_response(error), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
                )
                continue
            with self._lock:
                self._ids.append(request.request_id())
            self._worker.submit(self._answer, request, sender)

    def finalize(self) -> None:
        """Let running work end before the process goes."""
        self._worker.shutdown(wait=True, cancel_futures=True)

    def _answer(self, request: Any, sender: Any) -> None:
        client_id = request.request_id()
        try:
            response = self._speculate(request, lambda: self._is_stopped(client_id, request))
        except Exception as error:
            response = requests.error_response(error)
        with self._lock:
            self._ids.remove(client_id)
            if client_id not in self._ids:
                self._stopped.discard(client_id)
        sender.send(response, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def _is_stopped(self, client_id: str, request: Any) -> bool:
        with self._lock:
            return client_id in self._stopped or request.is_cancelled()

    def _speculate(self, request: Any, cancelled: Any) -> Any:
        if cancelled():
            raise RequestCancelledError("cancelled before the draft began")
        ids = requests.read_array(request, "prompt_ids")
        spans = requests.read_array(request, "protected_spans")
        if ids is None or spans is None:
            raise InvalidRequestError("prompt_ids", "missing", "the output of preprocessing")
        settings = self._settings.selection.for_request(requests.read_overrides(request, SELECTION))
        prompt = Prompt(ids, tuple((int(start), int(end)) for start, end in spans))
        speculation = self._speculator.speculate(prompt, settings, cancelled)
        self._metrics.speculated(speculation)
        return self._response(ids, speculation)

    def _response(self, ids: np.ndarray, speculation: Speculation) -> Any:
        selection = speculation.selection
        values = (
            selection.prompt_length,
            len(selection.kept),
            selection.active,
            selection.reason,
            speculation.draft_ms,
        )
        return pb_utils.InferenceResponse(
            [
                requests.batched(KEPT_IDS, ids[selection.kept]),
                requests.batched(POSITION_IDS, selection.kept),
                *(requests.batched(t, v) for t, v in zip(SPECULATION, values, strict=True)),
            ]
        )
