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
from specprefill.errors import RequestCancelledError
from specprefill.records import RecordWriter
from specprefill.selection import keep_all
from specprefill.selection_memo import SelectionMemo
from specprefill.settings import load_settings
from specprefill.speculator import Speculation
from specprefill.triton_models import requests
from specprefill.triton_models.draft_metrics import DraftMetrics
from specprefill.triton_models.prompt_tensors import read_prompt
from specprefill.triton_models.tensors import KEPT_IDS, POSITION_IDS, SELECTION, SPECULATION
from specprefill.triton_models.timing import Timing
from specprefill.trtllm_engine.mpi import leave_mpi


class DraftModel:
    """Selects the kept tokens; prompts take turns, a stop request never waits."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the draft."""
        self._settings = load_settings()
        if self._settings.engine == "tensorrt_llm":
            leave_mpi(os.environ)
        self._speculator = make_speculator(self._settings)
        self._memo = SelectionMemo(self._settings.draft.memo_entries)
        self._records = RecordWriter(self._settings.records, self._settings.draft.model)
        self._metrics = DraftMetrics()
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
                waiting = len(self._ids)
            self._metrics.draft_load(waiting)
            self._worker.submit(self._answer, request, sender)

    def finalize(self) -> None:
        """Let running work end before the process goes."""
        self._worker.shutdown(wait=True, cancel_futures=True)

    def _answer(self, request: Any, sender: Any) -> None:
        client_id = request.request_id()
        try:
            response = self._speculate(request)
        except Exception as error:
            response = requests.error_response(error)
        with self._lock:
            self._ids.remove(client_id)
            waiting = len(self._ids)
            if client_id not in self._ids:
                self._stopped.discard(client_id)
        self._metrics.draft_load(waiting)
        sender.send(response, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def _is_stopped(self, request: Any) -> bool:
        with self._lock:
            return request.request_id() in self._stopped or request.is_cancelled()

    def _speculate(self, request: Any) -> Any:
        timing = Timing.read(request)

        def cancelled() -> bool:
            return timing.passed or self._is_stopped(request)

        prompt = read_prompt(request)
        settings = self._settings.selection.for_request(requests.read_overrides(request, SELECTION))
        key = self._memo.key(prompt, settings)
        speculation = self._memo.get(key)
        if speculation is not None:
            self._metrics.remembered()
        else:
            try:
                if cancelled():
                    raise RequestCancelledError("cancelled before the draft began")
                speculation = self._speculator.speculate(
                    prompt, settings, cancelled, self._time_left(timing)
                )
            except RequestCancelledError:
                self._metrics.cancelled()
                if timing.passed:
                    raise timing.error() from None
                raise
            self._memo.put(key, speculation)
        self._metrics.speculated(speculation)
        self._records.write(prompt, speculation, settings, request.request_id())
        return self._response(prompt.token_ids, speculation)

    def _time_left(self, timing: Timing) -> float | None:
        """Return the seconds that the draft may take; waiting for its turn counts."""
        deadline = self._settings.draft.deadline_seconds
        return None if deadline is None else deadline - timing.elapsed_seconds

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
