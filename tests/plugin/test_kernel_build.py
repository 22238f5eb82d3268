# SPDX-License-Identifier: Apache-2.0
"""What the CUDA compiler makes of the kernel; nothing here runs on a GPU."""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from specprefill.explicit_rotary.libraries import RotaryArguments

ARCHITECTURES = ("80", "86", "89", "90", "100", "120")


def test_compiles_for_every_architecture(cuda_build: Any) -> None:
    assert (cuda_build.folder / "libexplicit_rotary_kernel.so").is_file()
    compilation = next(line for line in cuda_build.log.splitlines() if "--generate-code" in line)
    for architecture in ARCHITECTURES:
        assert re.search(rf"\bsm_{architecture}\b", compilation), architecture
    assert re.search(r"\bcompute_80,sm_80\b", compilation), "no PTX for GPUs that are not listed"
    assert "-fmad=false" in compilation


def test_exports_only_its_entry_point_and_needs_no_cuda_library(
    kernel_library: Path, exported_symbols: Callable[[Path], list[str]]
) -> None:
    assert exported_symbols(kernel_library) == ["explicit_rotary_launch"]
    dynamic = subprocess.run(
        ["readelf", "-d", str(kernel_library)], capture_output=True, text=True, check=True
    ).stdout
    assert "libcudart" not in dynamic
    assert "libnvinfer" not in dynamic


@pytest.mark.parametrize("fused", ["true", "false"])
def test_products_are_never_fused_with_sums(
    cuda_build: Any, plugin_source: Path, tmp_path: Path, fused: str
) -> None:
    """Not even where the compiler may fuse: the source itself forbids it."""
    ptx = tmp_path / "kernel.ptx"
    subprocess.run(
        [
            "nvcc",
            "-std=c++17",
            "-ptx",
            "-arch=sm_80",
            f"-fmad={fused}",
            f"-I{plugin_source / 'include'}",
            str(plugin_source / "src" / "explicit_rotary_kernel.cu"),
            "-o",
            str(ptx),
        ],
        check=True,
    )
    instructions = ptx.read_text()
    assert "mul.rn.f32" in instructions
    assert "fma.rn.f32" not in instructions
    assert "ld.global.v4" in instructions
    assert "st.global.v4" in instructions


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"num_tokens": 0}, 0),
        ({"qkv": None}, -1),
        ({"rotary_dim": 3}, -2),
        ({"element_type": 9}, -3),
        ({"rotary_style": 1}, -4),
        ({"num_tokens": 2**31}, -5),
    ],
)
def test_arguments_are_checked_before_the_launch(
    kernel_library: Path, changes: dict[str, int | None], status: int
) -> None:
    buffer = ctypes.create_string_buffer(64)
    values: dict[str, int | None] = dict.fromkeys(
        ("qkv", "position_ids", "cos_sin", "output"), ctypes.addressof(buffer)
    )
    values |= {
        "num_tokens": 1,
        "num_q_heads": 1,
        "num_kv_heads": 1,
        "head_size": 4,
        "rotary_dim": 4,
        "max_position": 1,
    }
    launch = ctypes.CDLL(str(kernel_library)).explicit_rotary_launch
    assert launch(ctypes.byref(RotaryArguments(**(values | changes))), None) == status
    assert launch(None, None) == -1


def test_a_launch_without_a_device_returns_its_cuda_error(kernel_library: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("a CUDA device is present, so this launch would not fail")
    buffer = ctypes.create_string_buffer(64)
    arguments = RotaryArguments(
        *[ctypes.addressof(buffer)] * 4,
        num_tokens=1,
        num_q_heads=1,
        num_kv_heads=1,
        head_size=4,
        rotary_dim=4,
        max_position=1,
    )
    launch = ctypes.CDLL(str(kernel_library)).explicit_rotary_launch
    assert launch(ctypes.byref(arguments), None) > 0
