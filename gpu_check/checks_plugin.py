# SPDX-License-Identifier: Apache-2.0
"""The ExplicitRotary plugin inside a real TensorRT, in an engine of one layer."""

from __future__ import annotations

import torch
from specprefill.errors import EngineError
from specprefill.explicit_rotary.cos_sin_table import table_from_inverse_frequencies
from specprefill.explicit_rotary.host_reference import rotate_on_host

from gpu_check.bench import Bench, CheckSkippedError
from gpu_check.measure import differing, rotation_case, used_memory_mib
from gpu_check.registry import Body, Check
from gpu_check.rotary_engine import (
    HEAD_SIZE,
    KV_HEADS,
    MAX_POSITION,
    MOST_TOKENS,
    Q_HEADS,
    RotaryEngine,
)

_GROUP = "plugin"
_TOKEN_COUNTS = (1, 7, 1024, 33, 8192, 2, 4095, 1)
_SHAPES = 10_000
# A bfloat16 has 8 significant bits: results that are one rounding apart differ by 2^-8 at most.
_ONE_ROUNDING = 2.0**-7
# TensorRT's own allocators may take a page or two late.
_GROWTH_MIB = 16


def enqueue_against_stock_layers(bench: Bench) -> None:
    """Compare the plugin with stock layers over changing token counts."""
    engine = _engine(bench)
    largest = 0.0
    for tokens in _TOKEN_COUNTS:
        rotated, stock = engine.enqueue(*_case(tokens))
        difference = (rotated.float() - stock.float()).abs()
        largest = max(largest, float((difference / stock.float().abs().clamp_min(1e-2)).max()))
        values = slice(-KV_HEADS * HEAD_SIZE, None)
        untouched = bool((rotated[:, values] == stock[:, values]).all())
        bench.require(untouched, f"{tokens} tokens: values were changed")
    bench.note("largest relative difference", largest)
    bench.require(largest <= _ONE_ROUNDING, f"more than one rounding apart: {largest:.3g}")


def enqueue_against_the_host(bench: Bench) -> None:
    """Compare the plugin's bits with the host build of the same header."""
    engine = _engine(bench)
    wrong = 0
    for tokens in _TOKEN_COUNTS:
        qkv, positions = _case(tokens)
        rotated, _ = engine.enqueue(qkv, positions)
        try:
            expected = rotate_on_host(
                qkv.cpu(), positions.cpu(), bench.keep("table", _table), Q_HEADS, KV_HEADS
            )
        except EngineError as error:
            raise CheckSkippedError(str(error)) from error
        wrong += differing(rotated, expected)
    bench.note("elements that differ", wrong)
    bench.require(wrong == 0, f"{wrong} elements differ from the host reference")


def memory_over_many_shapes(bench: Bench) -> None:
    """Enqueue 10,000 times, each with another token count."""
    engine = _engine(bench)
    qkv, positions = _case(MOST_TOKENS)
    # torch's own allocator must have nothing to do in the loop.
    rotated, stock = engine.enqueue(qkv, positions)
    before = used_memory_mib()
    for index in range(_SHAPES):
        tokens = 1 + index * 4099 % MOST_TOKENS
        engine.enqueue(qkv[:tokens], positions[:tokens], (rotated[:tokens], stock[:tokens]))
    grown = used_memory_mib() - before
    bench.note("shapes", _SHAPES)
    bench.note("grown MiB", grown)
    bench.require(grown <= _GROWTH_MIB, f"memory grew by {grown:.0f} MiB")


def cuda_graph(bench: Bench) -> None:
    """Capture an enqueue, then replay it for other positions."""
    engine = _engine(bench)
    qkv, positions = _case(64)
    engine.enqueue(qkv, positions)  # TensorRT allocates outside the capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        rotated, _ = engine.enqueue(qkv, positions)
    positions.copy_(torch.arange(64, device=positions.device))
    graph.replay()
    torch.cuda.synchronize()
    expected, _ = engine.enqueue(qkv, positions)
    wrong = differing(rotated, expected)
    bench.note("elements that differ", wrong)
    bench.require(wrong == 0, "a replay does not read the positions again")


def _engine(bench: Bench) -> RotaryEngine:

    engine: RotaryEngine = bench.hold(
        "rotary engine", lambda: RotaryEngine(bench.keep("table", _table))
    )
    return engine


def _table() -> torch.Tensor:

    exponents = torch.arange(0, HEAD_SIZE, 2).float() / HEAD_SIZE
    return table_from_inverse_frequencies(1.0 / 500000.0**exponents, 1.0, MAX_POSITION)


def _case(tokens: int) -> tuple[torch.Tensor, torch.Tensor]:

    case = rotation_case(tokens, Q_HEADS, KV_HEADS, HEAD_SIZE, torch.bfloat16, MAX_POSITION)
    return case[0].cuda(), case[1].cuda()


def _check(name: str, claim: str, body: Body) -> Check:
    return Check(name, _GROUP, "tensorrt", claim, ("cuda", "tensorrt", "plugin"), body)


CHECKS = [
    _check(
        "plugin against stock layers",
        "in a one-layer engine, over changing token counts, at most one rounding apart",
        enqueue_against_stock_layers,
    ),
    _check(
        "plugin against the host",
        "the engine's result has the bits of the host reference",
        enqueue_against_the_host,
    ),
    _check(
        "plugin over 10,000 shapes",
        f"device memory grows by at most {_GROWTH_MIB} MiB",
        memory_over_many_shapes,
    ),
    _check("plugin in a CUDA graph", "a replay reads the positions of now", cuda_graph),
]
