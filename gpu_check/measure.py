# SPDX-License-Identifier: Apache-2.0
"""Small measurements on a CUDA device, and random inputs of the rotation."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch

MIB = 2**20


def rotation_case(
    tokens: int, q_heads: int, kv_heads: int, head_size: int, dtype: torch.dtype, positions: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Make qkv [tokens, width] and int32 positions [tokens] on the CPU, the same every time."""
    generator = torch.Generator().manual_seed(tokens)
    width = (q_heads + 2 * kv_heads) * head_size
    qkv = (torch.randn(tokens, width, generator=generator) * 3).to(dtype)
    return qkv, torch.randint(0, positions, (tokens,), generator=generator).int()


def differing(actual: torch.Tensor, expected: torch.Tensor) -> int:
    """Count elements whose bits differ."""
    integers = torch.int32 if actual.dtype == torch.float32 else torch.int16
    return int((actual.cpu().view(integers) != expected.cpu().view(integers)).sum())


def median_milliseconds(work: Callable[[], Any], repeats: int = 20) -> float:
    """Time work on the device by its events; the first three runs do not count."""
    times = []
    for index in range(repeats + 3):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        work()
        end.record()
        end.synchronize()
        if index >= 3:
            times.append(start.elapsed_time(end))
    return statistics.median(times)


def used_memory_mib() -> float:
    """Return the device's used memory, that of TensorRT's allocators included."""
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return (total - free) / MIB


def overlap(first: Sequence[int], second: Sequence[int]) -> float:
    """Return the share of the larger set that both sets have."""
    one, other = set(first), set(second)
    return len(one & other) / max(len(one), len(other), 1)
