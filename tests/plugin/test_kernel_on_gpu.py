# SPDX-License-Identifier: Apache-2.0
"""The kernel on a CUDA device against the host reference, bit by bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from specprefill.explicit_rotary.host_reference import rotate_on_device, rotate_on_host

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no CUDA device that torch can use"
)

SameBits = Callable[[torch.Tensor, torch.Tensor], None]

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
GEOMETRIES = [(64, 8, 128, 128), (9, 3, 64, 64), (32, 8, 128, 64), (4, 2, 80, 20), (3, 1, 6, 2)]
MAX_POSITION = 4096


def random_case(
    geometry: tuple[int, int, int, int], dtype: torch.dtype, tokens: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    q_heads, kv_heads, head_size, rotary_dim = geometry
    generator = torch.Generator().manual_seed(tokens)
    width = (q_heads + 2 * kv_heads) * head_size
    qkv = (torch.randn(tokens, width, generator=generator) * 3).to(dtype)
    # A tenth of the positions lies outside the table, on either side.
    positions = torch.randint(
        -MAX_POSITION // 20, MAX_POSITION * 21 // 20, (tokens,), generator=generator
    ).int()
    table = torch.randn(MAX_POSITION, rotary_dim, generator=generator)
    return qkv, positions, table


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
@pytest.mark.parametrize("tokens", [0, 1, 7, 1000])
def test_equals_the_host_reference(
    host_library: Path,
    kernel_library: Path,
    assert_same_bits: SameBits,
    geometry: tuple[int, int, int, int],
    dtype: torch.dtype,
    tokens: int,
) -> None:
    case = random_case(geometry, dtype, tokens)
    expected = rotate_on_host(*case, geometry[0], geometry[1], host_library)
    qkv, positions, table = (tensor.cuda() for tensor in case)
    actual = rotate_on_device(qkv, positions, table, geometry[0], geometry[1], kernel_library)
    assert_same_bits(actual.cpu(), expected)


def test_more_elements_than_32_bits_count(
    host_library: Path, kernel_library: Path, assert_same_bits: SameBits
) -> None:
    geometry = (64, 8, 128, 128)
    width = (64 + 2 * 8) * 128
    tokens = 2**31 // width + 3
    if torch.cuda.mem_get_info()[0] < 3 * 2 * tokens * width:
        pytest.skip("less than 13 GB of GPU memory are free")
    tail_qkv, tail_positions, table = random_case(geometry, torch.float16, 4)
    qkv = torch.zeros(tokens, width, dtype=torch.float16, device="cuda")
    qkv[-4:] = tail_qkv.cuda()
    positions = torch.zeros(tokens, dtype=torch.int32, device="cuda")
    positions[-4:] = tail_positions.cuda()
    actual = rotate_on_device(qkv, positions, table.cuda(), 64, 8, kernel_library)
    expected = rotate_on_host(tail_qkv, tail_positions, table, 64, 8, host_library)
    assert_same_bits(actual[-4:].cpu(), expected)


def test_replays_from_a_cuda_graph(
    host_library: Path, kernel_library: Path, assert_same_bits: SameBits
) -> None:
    geometry = (8, 2, 64, 64)
    qkv, positions, table = (tensor.cuda() for tensor in random_case(geometry, torch.bfloat16, 33))
    rotate_on_device(qkv, positions, table, 8, 2, kernel_library)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = rotate_on_device(qkv, positions, table, 8, 2, kernel_library)
    positions.copy_(torch.arange(33))
    graph.replay()
    torch.cuda.synchronize()
    expected = rotate_on_host(qkv.cpu(), positions.cpu(), table.cpu(), 8, 2, host_library)
    assert_same_bits(output.cpu(), expected)
