# SPDX-License-Identifier: Apache-2.0
"""Reads Triton requests and builds Triton responses; knows nothing of prompts or engines."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from specprefill.errors import InvalidRequestError, SpecPrefillError
from specprefill.triton_models.tensors import ALIASES, REFUSED, STEP_ERROR, Tensor

_NUMPY = {
    "INT32": np.int32,
    "INT64": np.int64,
    "UINT8": np.uint8,
    "UINT64": np.uint64,
    "FP32": np.float32,
    "BOOL": np.bool_,
    "STRING": np.object_,
}


def read_array(request: Any, name: str) -> np.ndarray | None:
    """Return a tensor without its batch dimension, or None if the request has none.

    Raises:
        InvalidRequestError: the request holds more than one prompt, or the tensor is empty.
    """
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    if tensor is None:
        return None
    array = tensor.as_numpy()
    if array.shape[0] != 1:
        raise InvalidRequestError(
            name, f"a batch of {array.shape[0]}", "one prompt per request, a batch of 1"
        )
    return array[0]


def read_scalar(request: Any, name: str) -> Any:
    """Return a scalar as a plain Python value, or None if the request has none.

    Raises:
        InvalidRequestError: not exactly one value, or a string that is no UTF-8.
    """
    array = read_array(request, name)
    if array is None:
        return None
    if array.size != 1:
        raise InvalidRequestError(name, f"{array.size} values", "exactly one value")
    value = array.reshape(-1)[0]
    if isinstance(value, np.float32):
        return float(str(value))  # 0.2 in, 0.2 out, not 0.20000000298
    if isinstance(value, (bytes, str)):
        return _text(name, value)
    return value.item()


def read_strings(request: Any, name: str) -> tuple[str, ...]:
    """Return a list of strings, empty if the request has none."""
    array = read_array(request, name)
    if array is None:
        return ()
    return tuple(_text(name, value) for value in array.reshape(-1))


def read_overrides(request: Any, tensors: Iterable[Tensor]) -> dict[str, Any]:
    """Return the given settings that the request sets, aliases resolved."""
    names = [tensor.name for tensor in tensors]
    values = {name: read_scalar(request, name) for name in names}
    for alias, name in ALIASES.items():
        if name in values and values[name] is None:
            values[name] = read_scalar(request, alias)
    return {name: value for name, value in values.items() if value is not None}


def refuse_unsupported(request: Any) -> None:
    """Refuse what TensorRT-LLM's ensemble does and this server does not.

    Raises:
        InvalidRequestError: names the field.
    """
    for tensor, accepted in REFUSED.items():
        name = tensor.name
        if accepted is None:
            if pb_utils.get_input_tensor_by_name(request, name) is not None:
                raise InvalidRequestError(name, "this input is not supported", "requests without")
            continue
        value = read_scalar(request, name)
        if value is not None and value != accepted:
            allowed = f"only {bool(accepted) if isinstance(value, bool) else accepted}"
            raise InvalidRequestError(name, f"{value} is not supported", allowed)


def is_stop(request: Any) -> bool:
    """Tell whether this is TensorRT-LLM's stop request."""
    return bool(read_scalar(request, "stop"))


def batched(tensor: Tensor, value: Any) -> Any:
    """Build a tensor with a batch dimension of 1, for the next step."""
    array = _array(tensor, value)
    if array.ndim == 0:
        array = array[None]
    return pb_utils.Tensor(tensor.name, array[None])


def output(tensor: Tensor, value: Any) -> Any:
    """Build a tensor for the client, without a batch dimension as TensorRT-LLM's clients expect."""
    array = _array(tensor, value)
    return pb_utils.Tensor(tensor.name, array[None] if array.ndim == 0 else array)


def describe_error(error: Exception) -> tuple[str, str]:
    """Return the name of Triton's code for an exception, and the sentence for the client."""
    if isinstance(error, SpecPrefillError):
        return error.triton_code, str(error)
    return "INTERNAL", f"internal error: {type(error).__name__}: {error}"


def error_response(error: Exception) -> Any:
    """Turn an exception into a Triton response with the right code."""
    code, message = describe_error(error)
    code = getattr(pb_utils.TritonError, code)
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(message, code))


def error_as_output(error: Exception) -> Any:
    """Turn an exception into a response that carries it as a tensor; see ERRORS_AS_OUTPUT."""
    return pb_utils.InferenceResponse([output(STEP_ERROR, list(describe_error(error)))])


def read_step_error(tensors: Iterable[Any]) -> Any:
    """Return the Triton error that `error_as_output` put among output tensors, or None."""
    for tensor in tensors:
        if tensor.name() == STEP_ERROR.name:
            code, message = (_text(STEP_ERROR.name, part) for part in tensor.as_numpy())
            return pb_utils.TritonError(message, getattr(pb_utils.TritonError, code))
    return None


def _array(tensor: Tensor, value: Any) -> np.ndarray:
    if tensor.dtype == "STRING":
        values = value if isinstance(value, list) else [value]
        array = np.asarray([v.encode() for v in values], dtype=np.object_)
        return array if isinstance(value, list) else array[0:1].reshape(())
    return np.asarray(value, dtype=_NUMPY[tensor.dtype])


def _text(name: str, value: bytes | str) -> str:
    if isinstance(value, str):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequestError(
            name, f"no valid UTF-8 (byte {error.start})", "UTF-8 text"
        ) from error
