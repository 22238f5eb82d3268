# SPDX-License-Identifier: Apache-2.0
"""A gRPC client for both entry models; needs neither torch nor transformers."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tritonclient.grpc as grpc
from tritonclient.utils import InferenceServerException

from specprefill.errors import SpecPrefillError
from specprefill.triton_models.tensors import ENTRY

_INPUTS = {tensor.name: tensor for tensor in ENTRY.inputs}
_NUMPY = {
    "INT32": np.int32,
    "UINT64": np.uint64,
    "FP16": np.float16,
    "FP32": np.float32,
    "BOOL": np.bool_,
    "STRING": np.object_,
}


class ServerError(SpecPrefillError):
    """The server answered with an error, or could not be reached."""

    def __init__(self, message: str, status: str | None) -> None:
        """Keep the server's sentence and its gRPC status (StatusCode.INVALID_ARGUMENT)."""
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Piece:
    """One response of a stream.

    Attributes:
        text: the next part of the answer.
        outputs: every other output of the response, by public name.
    """

    text: str
    outputs: dict[str, Any] = field(default_factory=dict)


def stream(
    url: str, model: str = "specprefill", request_id: str = "", **fields: Any
) -> Iterator[Piece]:
    """Send one request and yield its pieces; closing the iterator cancels the request.

    Args:
        url: host:port of the server's gRPC endpoint.
        model: `specprefill` or `ensemble`.
        request_id: id to stop the request by.
        fields: public inputs by name, for example text_input="...", keep_rate=0.2.

    Raises:
        ServerError: the server refused the request or went away.
    """
    responses: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
    with grpc.InferenceServerClient(url) as client:
        finished = False
        client.start_stream(lambda result, error: responses.put((result, error)))
        try:
            client.async_stream_infer(
                model,
                [make_input(name, value) for name, value in {**fields, "stream": True}.items()],
                request_id=request_id,
                enable_empty_final_response=True,
            )
            while not finished:
                result, error = responses.get()
                if error is not None:
                    finished = True
                    raise _server_error(error)
                response = result.get_response()
                finished = response.parameters["triton_final_response"].bool_param
                if response.outputs:
                    yield read_piece(result)
        except InferenceServerException as error:
            raise _server_error(error) from error
        finally:
            client.stop_stream(cancel_requests=not finished)


def make_input(name: str, value: Any) -> grpc.InferInput:
    """Build a request tensor with a batch dimension of 1 from a plain value.

    Raises:
        SpecPrefillError: no public input has this name.
    """
    tensor = _INPUTS.get(name)
    if tensor is None:
        raise SpecPrefillError(f"{name}: unknown input; allowed: {', '.join(sorted(_INPUTS))}")
    values = value if isinstance(value, (list, tuple)) else [value]
    if tensor.dtype == "STRING":
        values = [item.encode() if isinstance(item, str) else item for item in values]
    array = np.asarray([values], dtype=_NUMPY[tensor.dtype])
    wire = "BYTES" if tensor.dtype == "STRING" else tensor.dtype
    infer_input = grpc.InferInput(name, array.shape, wire)
    infer_input.set_data_from_numpy(array)
    return infer_input


def read_piece(result: Any) -> Piece:
    """Turn one response into plain values; an output with one value becomes that value."""
    outputs: dict[str, Any] = {}
    for tensor in result.get_response().outputs:
        value = result.as_numpy(tensor.name).reshape(-1)
        plain = [item.decode() if isinstance(item, bytes) else item.item() for item in value]
        outputs[tensor.name] = plain[0] if len(plain) == 1 else plain
    return Piece(outputs.pop("text_output", ""), outputs)


def _server_error(error: InferenceServerException) -> ServerError:
    return ServerError(error.message(), error.status())
