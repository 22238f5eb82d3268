# SPDX-License-Identifier: Apache-2.0
"""Step 3: kept ids and position ids -> text, piece by piece."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import triton_python_backend_utils as pb_utils

from specprefill.engines import make_generator
from specprefill.errors import InvalidRequestError, RequestCancelledError
from specprefill.generator import TextPiece
from specprefill.selection import Span, runs
from specprefill.settings import load_settings
from specprefill.triton_models import requests
from specprefill.triton_models.cancellation import CancellationWatch, WatchedSender
from specprefill.triton_models.target_metrics import TargetMetrics
from specprefill.triton_models.tensors import (
    ANSWER,
    ERRORS_AS_OUTPUT,
    SAMPLING,
    SPECULATION,
    Tensor,
)
from specprefill.triton_models.timing import Timing

_ANSWER = {tensor.name: tensor for tensor in ANSWER}

_LOAD_PERIOD_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class _Options:
    """What a request wants to see of its answer."""

    stream: bool
    errors_as_output: bool
    log_probs: bool
    num_input_tokens: bool
    num_output_tokens: bool
    echo: str
    speculation: dict[Tensor, Any]
    kept_spans: list[Span] | None
    timing: Timing


class TargetModel:
    """Runs the target; every request in flight has a thread that sends its pieces."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the target."""
        self._settings = load_settings()
        self._generator, self._engine = make_generator(self._settings)
        self._metrics = TargetMetrics()
        self._watch = CancellationWatch()
        target = self._settings.target
        self._senders = ThreadPoolExecutor(
            max_workers=target.max_running + target.max_queue + 1, thread_name_prefix="sender"
        )
        self._lock = threading.Lock()
        self._closing = threading.Event()
        if self._engine.takes_requests:
            threading.Thread(target=self._report_load, name="load", daemon=True).start()
        self._in_flight: dict[str, set[str]] = {}  # client id -> engine ids

    def execute(self, batch: list[Any]) -> None:
        """Queue each request on the engine, or answer at once with what is wrong with it."""
        for request in batch:
            sender = request.get_response_sender()
            try:
                if requests.is_stop(request):
                    self._stop(request.request_id())
                    tensors = [requests.output(_ANSWER["text_output"], [""])]
                    response = pb_utils.InferenceResponse(tensors)
                    sender.send(response, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
                    continue
                engine_id = uuid.uuid4().hex
                pieces, options = self._start(request, engine_id)
            except Exception as error:
                sender.send(
                    requests.error_response(error), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
                )
                continue
            client_id = request.request_id()
            with self._lock:
                self._in_flight.setdefault(client_id, set()).add(engine_id)
            self._senders.submit(self._send, sender, pieces, options, client_id, engine_id)

    def finalize(self) -> None:
        """End everything in flight."""
        self._closing.set()
        self._engine.close()
        self._senders.shutdown(wait=True)
        self._watch.close()

    def _report_load(self) -> None:
        while not self._closing.wait(_LOAD_PERIOD_SECONDS):
            self._metrics.load(*self._engine.load)

    def _stop(self, client_id: str) -> None:
        if not client_id:
            raise InvalidRequestError(
                "stop", "the request has no id", "the id of a running request"
            )
        with self._lock:
            engine_ids = tuple(self._in_flight.get(client_id, ()))
        for engine_id in engine_ids:
            self._engine.cancel(engine_id)

    def _start(self, request: Any, engine_id: str) -> tuple[Iterator[TextPiece], _Options]:
        kept = requests.read_array(request, "kept_ids")
        positions = requests.read_array(request, "position_ids")
        speculation = {t: requests.read_scalar(request, t.name) for t in SPECULATION}
        if kept is None or positions is None or None in speculation.values():
            raise InvalidRequestError("kept_ids", "missing", "the output of the draft step")
        sampling = self._settings.sampling.for_request(requests.read_overrides(request, SAMPLING))
        stream = bool(requests.read_scalar(request, "stream"))
        exclude = requests.read_scalar(request, "exclude_input_in_output")
        if exclude is None:
            exclude = self._settings.server.exclude_input_in_output
        options = _Options(
            stream=stream,
            errors_as_output=bool(requests.read_scalar(request, ERRORS_AS_OUTPUT.name)),
            log_probs=bool(requests.read_scalar(request, "return_log_probs")),
            num_input_tokens=bool(requests.read_scalar(request, "return_num_input_tokens")),
            num_output_tokens=bool(requests.read_scalar(request, "return_num_output_tokens")),
            echo="" if stream or exclude else self._prompt_text(request),
            speculation=speculation,
            kept_spans=(
                runs(positions) if requests.read_scalar(request, "return_kept_spans") else None
            ),
            timing=Timing.read(request),
        )
        # Last, so that a request that is refused has not been queued.
        pieces = self._generator.generate(
            engine_id,
            kept,
            positions,
            speculation[SPECULATION[0]],
            sampling,
            requests.read_strings(request, "stop_words"),
            requests.read_strings(request, "bad_words"),
            requests.read_scalar(request, "end_id"),
        )
        return pieces, options

    def _prompt_text(self, request: Any) -> str:
        ids = requests.read_array(request, "prompt_ids")
        return "" if ids is None else self._generator.decode(ids)

    def _send(
        self,
        sender: Any,
        pieces: Iterator[TextPiece],
        options: _Options,
        client_id: str,
        engine_id: str,
    ) -> None:
        watched = self._watch.watch(
            sender, lambda: self._engine.cancel(engine_id), options.timing.deadline_ns
        )
        try:
            with contextlib.closing(pieces):  # type: ignore[type-var]
                self._send_pieces(watched, pieces, options)
        except Exception as error:
            if isinstance(error, RequestCancelledError):
                self._metrics.cancelled()
                if options.timing.passed:
                    error = options.timing.error()
            respond = requests.error_response
            if options.errors_as_output:
                respond = requests.error_as_output
            watched.send(respond(error), final=True)
        finally:
            with self._lock:
                self._in_flight[client_id].discard(engine_id)
                if not self._in_flight[client_id]:
                    del self._in_flight[client_id]

    def _send_pieces(
        self, sender: WatchedSender, pieces: Iterator[TextPiece], options: _Options
    ) -> None:
        collected: list[TextPiece] = []
        first: TextPiece | None = None
        cumulative = 0.0
        for piece in pieces:
            if first is None:
                first = piece
                self._metrics.first_token(piece, options.timing.elapsed_seconds)
            cumulative += sum(piece.log_probs)
            collected.append(piece)
            final = piece.finish_reason is not None
            if not (options.stream or final):
                continue
            with_statistics = final or piece is first
            response = self._response(collected, first, options, cumulative, with_statistics)
            collected = []
            # The final flag travels with the last piece: alone, it races with it.
            sender.send(response, final)

    def _response(
        self,
        pieces: list[TextPiece],
        first: TextPiece,
        options: _Options,
        cumulative: float,
        with_statistics: bool,
    ) -> Any:
        """Build one response from the pieces since the one before."""
        text = options.echo + "".join(piece.text for piece in pieces)
        log_probs = [value for piece in pieces for value in piece.log_probs]
        values: dict[str, Any] = {"text_output": [text]}
        reason = pieces[-1].finish_reason
        if reason is not None:
            values["finish_reason"] = reason.value
        if options.log_probs:
            values["cum_log_probs"] = [cumulative]
            values["output_log_probs"] = [log_probs]
            values["output_tokens"] = self._generator.token_texts(
                [token for piece in pieces for token in piece.token_ids]
            )
        if options.num_input_tokens:
            values["num_input_tokens"] = options.speculation[SPECULATION[0]]
        if options.num_output_tokens:
            values["num_output_tokens"] = sum(len(piece.token_ids) for piece in pieces)
        tensors = []
        if with_statistics:
            values["target_prefill_ms"] = first.prefill_ms
            values["queue_ms"] = first.queue_ms
            if options.kept_spans is not None:
                values["kept_spans"] = options.kept_spans
            tensors = [requests.output(t, value) for t, value in options.speculation.items()]
        tensors += [requests.output(_ANSWER[name], value) for name, value in values.items()]
        return pb_utils.InferenceResponse(tensors)
