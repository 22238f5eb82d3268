# SPDX-License-Identifier: Apache-2.0
"""TritonEndpoint: an entry model over gRPC streaming."""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import grpc
import tritonclient.grpc.aio as triton
from specprefill.client import make_input
from tritonclient.utils import InferenceServerException

from load_generator.endpoint import AnswerError, BusyError, Chunk
from load_generator.query import Query

# Ours, and Triton's own for a model with a bounded queue.
_BUSY = ("server busy", "exceeds maximum queue size")
_STOP_SECONDS = 2.0


class TritonEndpoint:
    """`specprefill`, `ensemble`, or a TensorRT-LLM ensemble of the same inputs."""

    def __init__(self, url: str, model: str = "specprefill") -> None:
        """Name the server's gRPC host:port and the entry model."""
        self._url = url
        self._model = model
        self._client: Any = None

    def describe(self) -> dict[str, Any]:
        """Return the address and the model."""
        return {"kind": "triton", "url": self._url, "model": self._model}

    def check(self, query: Query) -> None:
        """Raise SpecPrefillError if a setting is no public input."""
        self._inputs(query)

    async def __aenter__(self) -> TritonEndpoint:
        """Open the connection."""
        self._client = triton.InferenceServerClient(self._url)
        return self

    async def __aexit__(self, *exception: object) -> None:
        """Close the connection."""
        await self._client.close()

    async def ask(self, query: Query) -> AsyncGenerator[Chunk, None]:
        """Stream the answer; closing the stream cancels the request."""
        request_id = uuid.uuid4().hex
        call = self._call(request_id, self._inputs(query))
        finished = False
        try:
            async for result, error in call:
                if error is not None:
                    finished = True
                    message = error.message()
                    busy = any(word in message.lower() for word in _BUSY)
                    raise BusyError(message) if busy else AnswerError(message)
                yield _chunk(result)
            finished = True
        except grpc.RpcError as error:
            finished = True
            raise AnswerError(f"{error.code().name}: {error.details()}") from error
        finally:
            if not finished:
                call.cancel()
                await self._stop(request_id)

    def _call(self, request_id: str, inputs: list[Any]) -> Any:
        async def request() -> AsyncIterator[dict[str, Any]]:
            yield {"model_name": self._model, "inputs": inputs, "request_id": request_id}

        return self._client.stream_infer(request())

    async def _stop(self, request_id: str) -> None:
        """Send TensorRT-LLM's stop request: no cancel reaches a step inside an ensemble."""
        values = {"text_input": "", "max_tokens": 1, "stop": True}
        call = self._call(request_id, [make_input(name, value) for name, value in values.items()])

        async def read() -> None:
            async for _ in call:
                pass

        with contextlib.suppress(asyncio.TimeoutError, grpc.RpcError, InferenceServerException):
            await asyncio.wait_for(read(), _STOP_SECONDS)

    def _inputs(self, query: Query) -> list[Any]:
        fields: dict[str, Any] = {
            **query.settings,
            "max_tokens": query.max_tokens,
            "stream": True,
            "return_num_output_tokens": True,
        }
        if query.prompt is None:
            fields["messages"] = json.dumps(query.messages)
        else:
            fields["text_input"] = query.prompt
        return [make_input(name, value) for name, value in fields.items()]


def _chunk(result: Any) -> Chunk:
    values = {}
    for tensor in result.get_response().outputs:
        array = result.as_numpy(tensor.name).reshape(-1)
        if array.size:
            values[tensor.name] = array[0]
    text = values.pop("text_output", b"").decode()
    tokens = int(values.pop("num_output_tokens", 0))
    statistics = {
        name: value.decode() if isinstance(value, bytes) else value.item()
        for name, value in values.items()
    }
    return Chunk(text, tokens, statistics)
