# SPDX-License-Identifier: Apache-2.0
"""Published rates and memory of GPUs, for planning without one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from specprefill.cost_model import Rates


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU.

    Attributes:
        rates: peak rates in bfloat16.
        memory_gib: usable memory, a little less than sold.
        has_fp8: its tensor cores multiply FP8.
    """

    rates: Rates
    memory_gib: float
    has_fp8: bool = True


def _peak(tera_operations: float, terabytes: float) -> Rates:
    multiply_adds = tera_operations * 1e12 / 2
    return Rates(multiply_adds, multiply_adds, terabytes * 1e12)


# NVIDIA's data sheets: dense bfloat16 rate of the tensor cores without sparsity, and bandwidth.
GPUS: Mapping[str, Gpu] = MappingProxyType(
    {
        "a100-80gb": Gpu(_peak(312, 2.039), 79, has_fp8=False),
        "h100": Gpu(_peak(989, 3.35), 79),
        "h200": Gpu(_peak(989, 4.8), 139),
        "l40s": Gpu(_peak(362, 0.864), 44),
    }
)
