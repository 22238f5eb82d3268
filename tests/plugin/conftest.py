# SPDX-License-Identifier: Apache-2.0
"""Builds the plugin's libraries once per session, outside the source tree."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

PLUGIN_SOURCE = Path(__file__).resolve().parents[2] / "plugins" / "explicit_rotary"


@dataclass(frozen=True)
class CudaBuild:
    folder: Path
    log: str


def run(command: list[str]) -> str:
    finished = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    assert finished.returncode == 0, f"{' '.join(command)}\n{finished.stdout}"
    return finished.stdout


def skip_without(*programs: str) -> None:
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not on PATH")


def cmake_build(folder: Path, targets: list[str], *definitions: str) -> str:
    log = run(["cmake", "-S", str(PLUGIN_SOURCE), "-B", str(folder), *definitions])
    command = ["cmake", "--build", str(folder), "-j", "2", "--verbose", "--target", *targets]
    return log + run(command)


@pytest.fixture(scope="session")
def plugin_source() -> Path:
    return PLUGIN_SOURCE


@pytest.fixture(scope="session")
def host_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    skip_without("cmake", "c++")
    folder = tmp_path_factory.mktemp("host_build")
    cmake_build(folder, ["host"], "-DEXPLICIT_ROTARY_CUDA=OFF")
    return folder / "libexplicit_rotary_host.so"


@pytest.fixture(scope="session")
def cuda_build(tmp_path_factory: pytest.TempPathFactory) -> CudaBuild:
    skip_without("cmake", "c++", "nvcc")
    folder = tmp_path_factory.mktemp("cuda_build")
    return CudaBuild(folder, cmake_build(folder, ["all"]))


@pytest.fixture(scope="session")
def kernel_library(cuda_build: CudaBuild) -> Path:
    return cuda_build.folder / "libexplicit_rotary_kernel.so"


@pytest.fixture(scope="session")
def plugin_library(cuda_build: CudaBuild) -> Path:
    built = list(cuda_build.folder.glob("libexplicit_rotary_trt*.so"))
    if not built:
        named = os.environ.get("TENSORRT_INCLUDE_DIR")
        assert not named, f"TENSORRT_INCLUDE_DIR is {named}, but the plugin was not built"
        pytest.skip("TensorRT's headers were not found (TENSORRT_INCLUDE_DIR is not set)")
    assert len(built) == 1
    return built[0]


@pytest.fixture(scope="session")
def tensorrt_headers(cuda_build: CudaBuild, plugin_library: Path) -> Path:
    named = re.search(r"-- Headers of TensorRT \d+: (.+)", cuda_build.log)
    assert named, plugin_library
    return Path(named[1])


@pytest.fixture(scope="session")
def tensorrt_major(plugin_library: Path) -> int:
    return int(plugin_library.stem.removeprefix("libexplicit_rotary_trt"))


@pytest.fixture(scope="session")
def stand_in_library(
    tmp_path_factory: pytest.TempPathFactory, tensorrt_headers: Path, tensorrt_major: int
) -> Path:
    skip_without("c++")
    nvcc = shutil.which("nvcc")
    assert nvcc is not None
    soname = f"libnvinfer.so.{tensorrt_major}"
    library = tmp_path_factory.mktemp("stand_in") / soname
    # nvcc as the driver: it alone knows where CUDA's headers, which TensorRT's include, are.
    run(
        [
            nvcc,
            "-std=c++17",
            "-shared",
            "-cudart=none",
            "-Xcompiler=-fPIC,-Wno-deprecated-declarations",
            f"-Xlinker=-soname={soname}",
            f"-I{tensorrt_headers}",
            str(Path(__file__).with_name("stand_in_registry.cpp")),
            "-o",
            str(library),
        ]
    )
    return library


@pytest.fixture(scope="session")
def exported_symbols() -> Callable[[Path], list[str]]:
    def read(library: Path) -> list[str]:
        skip_without("nm")
        return run(["nm", "-D", "--defined-only", str(library)]).split()[2::3]

    return read


@pytest.fixture(scope="session")
def assert_same_bits() -> Callable[[torch.Tensor, torch.Tensor], None]:
    """Compare bit by bit, signed zeros included; any NaN equals any NaN."""

    def compare(actual: torch.Tensor, expected: torch.Tensor) -> None:
        assert actual.dtype == expected.dtype
        assert actual.shape == expected.shape
        integers = torch.int32 if actual.dtype == torch.float32 else torch.int16
        same = actual.view(integers) == expected.view(integers)
        same |= actual.isnan() & expected.isnan()
        wrong = (~same).nonzero()
        assert not len(wrong), (
            f"{len(wrong)} of {same.numel()} differ, first at {wrong[0].tolist()}: "
            f"{actual[tuple(wrong[0])].item()!r} != {expected[tuple(wrong[0])].item()!r}"
        )

    return compare
