# SPDX-License-Identifier: Apache-2.0
"""What this machine computes well in."""

from __future__ import annotations

import ctypes
import platform
from pathlib import Path

import torch

# Parameters of glibc's mallopt.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = 256 * 2**20

_BFLOAT16_FLAGS = frozenset(("avx512_bf16", "amx_bf16", "bf16"))


def keep_freed_memory() -> None:
    """Let glibc keep freed memory for the next allocation, up to a bound.

    Activations come and go in blocks of some megabytes. By default each goes back to the kernel
    and may be taken anew page by page: several hundred thousand page faults for a few prompts.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None and platform.libc_ver()[0] == "glibc":
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES)


def has_native_bfloat16() -> bool:
    """Tell whether the CPU multiplies bfloat16 itself; emulation is slower than float32."""
    cpuinfo = Path("/proc/cpuinfo")
    if platform.system() != "Linux" or not cpuinfo.exists():
        return False
    for line in cpuinfo.read_text(errors="replace").splitlines():
        if line.lower().startswith(("flags", "features")):
            return bool(_BFLOAT16_FLAGS & set(line.split()))
    return False


def resolve_dtype(name: str, device: str) -> torch.dtype:
    """Turn a dtype setting into a torch dtype.

    Args:
        name: `auto`, `float32`, `bfloat16` or `float16`.
        device: torch device that will compute in it.
    """
    if name == "auto":
        on_cpu = torch.device(device).type == "cpu"
        return torch.float32 if on_cpu and not has_native_bfloat16() else torch.bfloat16
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)  # the settings allow only names of dtypes
    return dtype
