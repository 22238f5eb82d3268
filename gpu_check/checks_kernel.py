# SPDX-License-Identifier: Apache-2.0
"""The plugin's kernel, compiled here, on a CUDA device; needs no TensorRT."""

from __future__ import annotations

import subprocess
from pathlib import Path

import torch
from specprefill.explicit_rotary.cos_sin_table import table_from_inverse_frequencies
from specprefill.explicit_rotary.host_reference import (
    HOST_LIBRARY,
    KERNEL_LIBRARY,
    rotate_on_device,
    rotate_on_host,
)

from gpu_check.bench import Bench, CheckFailedError
from gpu_check.measure import differing, median_milliseconds, rotation_case
from gpu_check.registry import Body, Check, repository_root

_GROUP = "kernel"
_POSITIONS = 4096
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# Query heads, key-value heads, head size: Llama 8B, SmolLM2, and one that does not fill packs.
_GEOMETRIES = ((32, 8, 128), (9, 3, 64), (3, 1, 6))
_TOKEN_COUNTS = (1, 7, 1000)
# Rotating moves the bytes that a copy moves; far below its speed something is wrong.
_LEAST_SHARE_OF_COPY = 0.2


def bits_of_the_host(bench: Bench) -> None:
    """Compare the kernel's bits with the host build of the same header."""
    folder = _libraries(bench)
    wrong = compared = 0
    for dtype in _DTYPES:
        for q_heads, kv_heads, head_size in _GEOMETRIES:
            for tokens in _TOKEN_COUNTS:
                qkv, positions = rotation_case(
                    tokens, q_heads, kv_heads, head_size, dtype, _POSITIONS
                )
                table = _table(head_size)
                heads = (q_heads, kv_heads)
                host = rotate_on_host(qkv, positions, table, *heads, folder / HOST_LIBRARY)
                device = rotate_on_device(
                    qkv.cuda(), positions.cuda(), table.cuda(), *heads, folder / KERNEL_LIBRARY
                )
                wrong += differing(device, host)
                compared += host.numel()
    bench.note("elements compared", compared)
    bench.note("elements that differ", wrong)
    bench.require(wrong == 0, f"{wrong} elements differ from the host reference")


def bits_of_hugging_face(bench: Bench) -> None:
    """Compare the kernel's bits with Hugging Face's float32 rotation, rounded once."""
    library = _libraries(bench) / KERNEL_LIBRARY
    q_heads, kv_heads, head_size = _GEOMETRIES[0]
    wrong = 0
    for dtype in _DTYPES:
        qkv, positions = rotation_case(1000, q_heads, kv_heads, head_size, dtype, _POSITIONS)
        table = _table(head_size)
        device = rotate_on_device(
            qkv.cuda(), positions.cuda(), table.cuda(), q_heads, kv_heads, library
        )
        wrong += differing(device, _hugging_face(qkv, positions, table, q_heads, kv_heads))
    bench.note("elements that differ", wrong)
    bench.require(wrong == 0, f"{wrong} elements differ from Hugging Face's rotation")


def bandwidth(bench: Bench) -> None:
    """Time the kernel beside a device copy of the same bytes."""
    library = _libraries(bench) / KERNEL_LIBRARY
    q_heads, kv_heads, head_size = _GEOMETRIES[0]
    tokens = 32768
    qkv, positions = (
        tensor.cuda()
        for tensor in rotation_case(
            tokens, q_heads, kv_heads, head_size, torch.bfloat16, _POSITIONS
        )
    )
    table = _table(head_size).cuda()
    kernel = median_milliseconds(
        lambda: rotate_on_device(qkv, positions, table, q_heads, kv_heads, library)
    )
    destination = torch.empty_like(qkv)
    copy = median_milliseconds(lambda: destination.copy_(qkv))
    gigabytes = 2 * qkv.numel() * qkv.element_size() / 1e9
    bench.note("tokens", tokens)
    bench.note("kernel GB/s", gigabytes / kernel * 1e3)
    bench.note("copy GB/s", gigabytes / copy * 1e3)
    bench.note("share of the copy", copy / kernel)
    bench.require(copy / kernel >= _LEAST_SHARE_OF_COPY, "the kernel is far slower than a copy")


def cuda_graph(bench: Bench) -> None:
    """Capture a launch, then replay it for other positions."""
    library = _libraries(bench) / KERNEL_LIBRARY
    q_heads, kv_heads, head_size = _GEOMETRIES[0]
    case = rotation_case(64, q_heads, kv_heads, head_size, torch.bfloat16, _POSITIONS)
    qkv, positions = (tensor.cuda() for tensor in case)
    table = _table(head_size).cuda()
    rotate_on_device(qkv, positions, table, q_heads, kv_heads, library)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replayed = rotate_on_device(qkv, positions, table, q_heads, kv_heads, library)
    positions.copy_(torch.arange(64, device="cuda"))
    graph.replay()
    expected = rotate_on_device(qkv, positions, table, q_heads, kv_heads, library)
    wrong = differing(replayed, expected)
    bench.note("elements that differ", wrong)
    bench.require(wrong == 0, "a replay does not read the positions again")


def _libraries(bench: Bench) -> Path:
    folder: Path = bench.keep("libraries", lambda: build_libraries(bench.new_folder()))
    return folder


def build_libraries(folder: Path) -> Path:
    """Compile host and kernel library for the GPU that is there; raises CheckFailedError."""
    source = repository_root() / "plugins" / "explicit_rotary"
    for command in (
        ["cmake", "-S", str(source), "-B", str(folder), "-DCMAKE_CUDA_ARCHITECTURES=native"],
        ["cmake", "--build", str(folder), "--parallel", "2", "--target", "host", "kernel"],
    ):
        finished = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        if finished.returncode:
            raise CheckFailedError(f"{command[0]} failed: {finished.stdout[-600:]}")
    return folder


def _table(head_size: int) -> torch.Tensor:
    frequencies = 1.0 / 10000.0 ** (torch.arange(0, head_size, 2).float() / head_size)
    return table_from_inverse_frequencies(frequencies, 1.0, _POSITIONS)


def _hugging_face(
    qkv: torch.Tensor, positions: torch.Tensor, table: torch.Tensor, q_heads: int, kv_heads: int
) -> torch.Tensor:
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    head_size = table.shape[1]
    widths = [q_heads * head_size, kv_heads * head_size, kv_heads * head_size]
    q, k, v = qkv.split(widths, dim=-1)
    cosines, sines = (
        half.repeat(1, 2)[None] for half in table[positions.long()].split(head_size // 2, dim=-1)
    )
    turned = apply_rotary_pos_emb(
        q.float().view(1, len(qkv), q_heads, head_size),
        k.float().view(1, len(qkv), kv_heads, head_size),
        cosines,
        sines,
        unsqueeze_dim=2,
    )
    q, k = (tensor[0].flatten(1).to(qkv.dtype) for tensor in turned)
    return torch.cat((q, k, v), dim=-1)


def _check(name: str, claim: str, body: Body) -> Check:
    return Check(name, _GROUP, "torch", claim, ("nvcc", "cmake", "cuda"), body)


CHECKS = [
    _check("kernel against the host", "every bit is the host reference's", bits_of_the_host),
    _check(
        "kernel against Hugging Face",
        "every bit is that of the float32 rotation, rounded once",
        bits_of_hugging_face,
    ),
    _check("kernel bandwidth", "at least a fifth of a device copy's", bandwidth),
    _check("kernel in a CUDA graph", "a replay reads the positions of now", cuda_graph),
]
