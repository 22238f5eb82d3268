# SPDX-License-Identifier: Apache-2.0
"""Where the plugin's libraries may lie, and the arguments of their C entry points."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import TYPE_CHECKING

from specprefill.errors import EngineError

if TYPE_CHECKING:
    import torch

PLUGIN_PATH_VARIABLE = "SPECPREFILL_PLUGIN_PATH"

HALF_ROTATION = 0

ELEMENT_TYPE_CODES = {"torch.float32": 0, "torch.float16": 1, "torch.bfloat16": 2}

STATUS_TEXTS = {
    -1: "a pointer is null",
    -2: "head counts, head_size, rotary_dim or max_position are out of range",
    -3: "the element type is unknown",
    -4: "the rotary style is unknown",
    -5: "the number of tokens is out of range",
}


class RotaryArguments(ctypes.Structure):
    """The C structure ExplicitRotaryArguments."""

    _fields_ = (
        ("qkv", ctypes.c_void_p),
        ("position_ids", ctypes.c_void_p),
        ("cos_sin", ctypes.c_void_p),
        ("output", ctypes.c_void_p),
        ("num_tokens", ctypes.c_int64),
        ("num_q_heads", ctypes.c_int32),
        ("num_kv_heads", ctypes.c_int32),
        ("head_size", ctypes.c_int32),
        ("rotary_dim", ctypes.c_int32),
        ("max_position", ctypes.c_int32),
        ("element_type", ctypes.c_int32),
        ("rotary_style", ctypes.c_int32),
    )


def library_folders() -> list[Path]:
    """List the folders that are searched for the plugin's libraries.

    Returns:
        The folder (or the folder of the file) that SPECPREFILL_PLUGIN_PATH names and nothing else
        where it is set; otherwise this package's folder and a checkout's build folder.
    """
    named = os.environ.get(PLUGIN_PATH_VARIABLE)
    if named:
        path = Path(named)
        return [path if path.is_dir() else path.parent]
    package = Path(__file__).resolve().parent
    checkout = package.parents[2]
    return [package, checkout / "plugins" / "explicit_rotary" / "build"]


def open_library(file_name: str, cmake_target: str, path: Path | None) -> ctypes.CDLL:
    """Open one of the two libraries that need no TensorRT.

    Args:
        file_name: its file name.
        cmake_target: the CMake target that builds it, for the error message.
        path: the file itself, or None to search `library_folders()`.

    Returns:
        The opened library.

    Raises:
        EngineError: the library is nowhere or cannot be opened.
    """
    candidates = [path] if path else [folder / file_name for folder in library_folders()]
    found = next((candidate for candidate in candidates if candidate.is_file()), None)
    if found is None:
        searched = ", ".join(str(candidate) for candidate in candidates)
        raise EngineError(
            f"{file_name} is not built (searched: {searched}); build the CMake target "
            f"{cmake_target} of plugins/explicit_rotary or set {PLUGIN_PATH_VARIABLE}"
        )
    try:
        return ctypes.CDLL(str(found.resolve()))
    except OSError as error:
        raise EngineError(f"{found} cannot be opened: {error}") from error


def fill_arguments(
    qkv: torch.Tensor,
    position_ids: torch.Tensor,
    cos_sin: torch.Tensor,
    output: torch.Tensor,
    num_q_heads: int,
    num_kv_heads: int,
) -> RotaryArguments:
    """Check tensors against each other and describe them to the C entry points.

    Args:
        qkv: [T, (num_q_heads + 2 * num_kv_heads) * head_size], float32, float16 or bfloat16.
        position_ids: [T], int32.
        cos_sin: [max_position, rotary_dim], float32.
        output: as qkv.
        num_q_heads: query heads in a row of qkv.
        num_kv_heads: key heads in a row of qkv, and value heads.

    Returns:
        The filled structure. It holds addresses: the tensors must outlive its use.

    Raises:
        ValueError: a shape, a type, a device or a memory layout does not fit.
    """
    if str(qkv.dtype) not in ELEMENT_TYPE_CODES:
        raise ValueError(f"qkv has type {qkv.dtype}; known: {', '.join(ELEMENT_TYPE_CODES)}")
    heads = num_q_heads + 2 * num_kv_heads
    if num_q_heads < 1 or num_kv_heads < 1 or qkv.dim() != 2 or qkv.shape[1] % heads:
        raise ValueError(f"qkv has shape {tuple(qkv.shape)}, not [T, {heads} * head_size]")
    if cos_sin.dim() != 2:
        raise ValueError(
            f"cos_sin has shape {tuple(cos_sin.shape)}, not [max_position, rotary_dim]"
        )
    expected = {
        "position_ids": (position_ids, (qkv.shape[0],), "torch.int32"),
        "cos_sin": (cos_sin, tuple(cos_sin.shape), "torch.float32"),
        "output": (output, tuple(qkv.shape), str(qkv.dtype)),
    }
    for name, (tensor, shape, dtype) in expected.items():
        if tuple(tensor.shape) != shape or str(tensor.dtype) != dtype:
            raise ValueError(
                f"{name} is {tensor.dtype} {tuple(tensor.shape)}, expected {dtype} {shape}"
            )
        if tensor.device != qkv.device:
            raise ValueError(f"{name} is on {tensor.device}, qkv on {qkv.device}")
    if not all(tensor.is_contiguous() for tensor in (qkv, position_ids, cos_sin, output)):
        raise ValueError("qkv, position_ids, cos_sin and output must be contiguous")
    return RotaryArguments(
        qkv=qkv.data_ptr(),
        position_ids=position_ids.data_ptr(),
        cos_sin=cos_sin.data_ptr(),
        output=output.data_ptr(),
        num_tokens=qkv.shape[0],
        num_q_heads=num_q_heads,
        num_kv_heads=num_kv_heads,
        head_size=qkv.shape[1] // heads,
        rotary_dim=cos_sin.shape[1],
        max_position=cos_sin.shape[0],
        element_type=ELEMENT_TYPE_CODES[str(qkv.dtype)],
        rotary_style=HALF_ROTATION,
    )


def check_status(status: int) -> None:
    """Raise for a status that is not success.

    Args:
        status: what a C entry point returned.

    Raises:
        ValueError: the arguments were refused (negative status).
        EngineError: CUDA refused the launch (positive status, a cudaError_t).
    """
    if status < 0:
        raise ValueError(STATUS_TEXTS.get(status, f"unknown status {status}"))
    if status > 0:
        raise EngineError(f"the rotary kernel could not be launched: cudaError_t {status}")
