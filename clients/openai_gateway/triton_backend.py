# SPDX-License-Identifier: Apache-2.0
"""The entry model of a running Triton, over asynchronous gRPC streaming."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any, Protocol

import grpc
import tritonclient.grpc.aio as triton
from specprefill.client import Piece, ServerError, make_input, read_piece
from specprefill.errors import ConfigurationError
from tritonclient.utils import InferenceServerException

ENTRY_MODEL = "specprefill"
_READY_SECONDS = 2.0
_LARGEST_MESSAGE_BYTES = 2**31 - 1
# After an outage gRPC would wait up to two minutes before it tries again.
_LONGEST_BACKOFF_MS = 1000
# Makes Triton end a failed stream with the gRPC status of its error.
_HEADERS = {"triton_grpc_error": "true"}


class Backend(Protocol):
    """What answers; tests put something else in Triton's place."""

    def stream(self, fields: Mapping[str, Any]) -> AsyncGenerator[Piece, None]:
        """Answer one request; closing the generator cancels it.

        Args:
            fields: public inputs of the entry model by name.

        Raises:
            ServerError: the server refused the request or went away.
        """
        ...

    async def is_ready(self) -> bool:
        """Tell whether requests are answered."""
        ...


class TritonBackend:
    """Sends requests to Triton; use it as an asynchronous context manager."""

    def __init__(self, url: str, root_certificates: str | None = None) -> None:
        """Connect when first used.

        Args:
            url: host:port of Triton's gRPC endpoint.
            root_certificates: PEM file to check Triton's certificate with; None speaks no TLS.

        Raises:
            ConfigurationError: the file cannot be read.
        """
        try:
            self._client = triton.InferenceServerClient(
                url,
                ssl=root_certificates is not None,
                root_certificates=root_certificates,
                channel_args=[
                    ("grpc.max_send_message_length", _LARGEST_MESSAGE_BYTES),
                    ("grpc.max_receive_message_length", _LARGEST_MESSAGE_BYTES),
                    ("grpc.max_reconnect_backoff_ms", _LONGEST_BACKOFF_MS),
                ],
            )
        except OSError as error:
            raise ConfigurationError(
                f"gateway.root_certificates {root_certificates} cannot be read: {error.strerror}"
            ) from error

    async def __aenter__(self) -> TritonBackend:
        """Return itself."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the connection."""
        await self._client.close()

    async def stream(self, fields: Mapping[str, Any]) -> AsyncGenerator[Piece, None]:
        """Answer one request; see Backend."""
        inputs = [make_input(name, value) for name, value in {**fields, "stream": True}.items()]

        async def requests() -> AsyncIterator[dict[str, Any]]:
            yield {"model_name": ENTRY_MODEL, "inputs": inputs}

        responses = self._client.stream_infer(requests(), headers=_HEADERS)
        try:
            async for result, error in responses:
                if error is not None:
                    raise ServerError(error.message(), error.status())
                if result.get_response().outputs:
                    yield read_piece(result)
        except grpc.aio.AioRpcError as error:
            raise ServerError(error.details() or "", error.code().name) from error
        finally:
            responses.cancel()

    async def is_ready(self) -> bool:
        """Tell whether the entry model is ready."""
        try:
            return bool(
                await self._client.is_model_ready(ENTRY_MODEL, client_timeout=_READY_SECONDS)
            )
        except InferenceServerException:
            return False
