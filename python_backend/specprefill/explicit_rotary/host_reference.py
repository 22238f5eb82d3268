# SPDX-License-Identifier: Apache-2.0
"""The plugin's rotation on the host and, through the kernel test library, on a CUDA device.

Both libraries are compiled from the header that the plugin is compiled from. Nothing here builds
them, and neither needs TensorRT.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import TYPE_CHECKING

from specprefill.explicit_rotary.libraries import (
    RotaryArguments,
    check_status,
    fill_arguments,
    open_library,
)

if TYPE_CHECKING:
    import torch

HOST_LIBRARY = "libexplicit_rotary_host.so"
KERNEL_LIBRARY = "libexplicit_rotary_kernel.so"


def rotate_on_host(
    qkv: torch.Tensor,
    position_ids: torch.Tensor,
    cos_sin: torch.Tensor,
    num_q_heads: int,
    num_kv_heads: int,
    library_path: Path | None = None,
) -> torch.Tensor:
    """Rotate the q and k heads of a packed tensor in host memory.

    Args:
        qkv: [T, (num_q_heads + 2 * num_kv_heads) * head_size] on the CPU, float32, float16 or
            bfloat16, contiguous: q heads, k heads, v heads.
        position_ids: [T], int32; clamped into [0, max_position - 1].
        cos_sin: [max_position, rotary_dim], float32, cosines then sines.
        num_q_heads: query heads in a row of qkv.
        num_kv_heads: key heads in a row of qkv, and value heads.
        library_path: the host library, or None to search for it.

    Returns:
        A new tensor like qkv with q and k rotated and v copied.

    Raises:
        ValueError: the tensors do not fit together or are not on the CPU.
        EngineError: the host library is not built.
    """
    import torch

    if qkv.device.type != "cpu":
        raise ValueError(f"qkv is on {qkv.device}, the host reference needs the CPU")
    rotate = open_library(HOST_LIBRARY, "host", library_path).explicit_rotary_host
    rotate.argtypes = [ctypes.POINTER(RotaryArguments)]
    rotate.restype = ctypes.c_int32
    output = torch.empty_like(qkv)
    arguments = fill_arguments(qkv, position_ids, cos_sin, output, num_q_heads, num_kv_heads)
    check_status(rotate(ctypes.byref(arguments)))
    return output


def rotate_on_device(
    qkv: torch.Tensor,
    position_ids: torch.Tensor,
    cos_sin: torch.Tensor,
    num_q_heads: int,
    num_kv_heads: int,
    library_path: Path | None = None,
) -> torch.Tensor:
    """Run the plugin's kernel on torch's current stream of the device that qkv is on.

    Args:
        qkv: as for `rotate_on_host`, on a CUDA device.
        position_ids: [T], int32, on that device.
        cos_sin: [max_position, rotary_dim], float32, on that device.
        num_q_heads: query heads in a row of qkv.
        num_kv_heads: key heads in a row of qkv, and value heads.
        library_path: the kernel test library, or None to search for it.

    Returns:
        A new tensor like qkv with q and k rotated and v copied; its kernel may still be running.

    Raises:
        ValueError: the tensors do not fit together or are not on a CUDA device.
        EngineError: the kernel test library is not built or the launch failed.
    """
    import torch

    if qkv.device.type != "cuda":
        raise ValueError(f"qkv is on {qkv.device}, the kernel needs a CUDA device")
    rotate = open_library(KERNEL_LIBRARY, "kernel", library_path).explicit_rotary_launch
    rotate.argtypes = [ctypes.POINTER(RotaryArguments), ctypes.c_void_p]
    rotate.restype = ctypes.c_int32
    output = torch.empty_like(qkv)
    arguments = fill_arguments(qkv, position_ids, cos_sin, output, num_q_heads, num_kv_heads)
    with torch.cuda.device(qkv.device):
        stream = torch.cuda.current_stream().cuda_stream
        check_status(rotate(ctypes.byref(arguments), stream))
    return output
