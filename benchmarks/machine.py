# SPDX-License-Identifier: Apache-2.0
"""What the machine at hand does per second: plain products, plain attention, plain reading."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable

import torch
from specprefill.cost_model import Rates
from specprefill.memory_plan import ModelShape
from specprefill.torch_engine.int8_linear import Int8Linear
from specprefill.torch_engine.processor import keep_freed_memory
from torch.nn.functional import linear, scaled_dot_product_attention

_TOKENS = 1024
_KEYS = 2048

# What was measured -> the best rate so far. A shared machine is slow for minutes at times, so a
# rate measured before the figure alone may be far from what the machine can do.
_found: defaultdict[tuple[object, ...], float] = defaultdict(float)


def measure_rates(
    shape: ModelShape, dtype: torch.dtype, device: str, int8: bool = False, seconds: float = 1.0
) -> Rates:
    """Measure the best rates of this machine for one model's widths.

    The best of all calls counts, those of earlier measurements in this process too, and not their
    median: it stands for what the machine can do.

    Args:
        shape: the model.
        dtype: of its weights and activations.
        device: torch device.
        int8: its linear layers have int8 weights.
        seconds: for each of the three rates; 0 returns the best so far.
    """
    keep_freed_memory()  # as the engines do
    size = torch.empty(0, dtype=dtype).element_size()
    width, inner = shape.hidden_size, shape.intermediate_size
    with torch.inference_mode():
        return Rates(
            linear=_linear(width, inner, dtype, device, int8, seconds),
            attention=_attention(
                shape.query_heads, shape.kv_heads, shape.head_size, dtype, device, seconds
            ),
            bandwidth=_bandwidth(dtype, device, seconds),
            weight_bytes=1 if int8 else size,
            cache_bytes=size,
        )


def _linear(
    inputs: int, outputs: int, dtype: torch.dtype, device: str, int8: bool, seconds: float
) -> float:
    """Multiply-adds per second of the widest linear layer over one chunk of a prompt."""
    if int8:
        dtype = torch.float32  # what the product takes; turning another dtype into it is no part
    layer = torch.nn.Linear(inputs, outputs, bias=False, device=device, dtype=dtype)
    multiply = Int8Linear(layer) if int8 else layer
    rows = torch.randn(_TOKENS, inputs, device=device, dtype=dtype)
    key = ("linear", inputs, outputs, dtype, device, int8)
    return _rate(key, _TOKENS * inputs * outputs, lambda: multiply(rows), seconds, device)


def _attention(
    heads: int, kv_heads: int, head_size: int, dtype: torch.dtype, device: str, seconds: float
) -> float:
    """Multiply-adds per second of attention without a mask, queries grouped by their keys."""
    queries = heads // kv_heads * _TOKENS
    query = torch.randn(1, kv_heads, queries, head_size, device=device, dtype=dtype)
    key = torch.randn(1, kv_heads, _KEYS, head_size, device=device, dtype=dtype)
    products = 2 * kv_heads * queries * _KEYS * head_size
    name = ("attention", heads, kv_heads, head_size, dtype, device)
    return _rate(
        name, products, lambda: scaled_dot_product_attention(query, key, key), seconds, device
    )


def _bandwidth(dtype: torch.dtype, device: str, seconds: float) -> float:
    """Bytes per second that a product of one vector with a matrix larger than any cache reads."""
    matrix = torch.randn(16384, 4096, device=device, dtype=dtype)
    vector = matrix[:1].clone()
    size = matrix.numel() * matrix.element_size()
    key = ("bandwidth", dtype, device)
    return _rate(key, size, lambda: linear(vector, matrix), seconds, device)


def _rate(
    key: tuple[object, ...], work: int, call: Callable[[], object], seconds: float, device: str
) -> float:
    if seconds or key not in _found:
        _found[key] = max(_found[key], work / _best(call, seconds, device))
    return _found[key]


def _best(call: Callable[[], object], seconds: float, device: str) -> float:
    """Return the shortest time of one call within the given time."""

    def timed() -> float:
        started = time.perf_counter()
        call()
        if device != "cpu":
            torch.cuda.synchronize(device)
        return time.perf_counter() - started

    timed()
    best = timed()
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline:
        best = min(best, timed())
    return best
