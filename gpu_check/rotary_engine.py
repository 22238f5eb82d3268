# SPDX-License-Identifier: Apache-2.0
"""A TensorRT engine of one ExplicitRotary layer beside the same rotation of stock layers."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import torch
from specprefill.explicit_rotary.loader import load_plugin

from build_engines.network import rotary_plugin
from gpu_check.bench import CheckFailedError

Q_HEADS, KV_HEADS, HEAD_SIZE = 32, 8, 128
WIDTH = (Q_HEADS + 2 * KV_HEADS) * HEAD_SIZE
MAX_POSITION = 8192
MOST_TOKENS = 8192


class RotaryEngine:
    """Runs both rotations of one engine on torch's current stream."""

    def __init__(self, table: torch.Tensor) -> None:
        """Build, serialise and open the engine again, as a deployment does.

        Args:
            table: float32 [MAX_POSITION, HEAD_SIZE] on the CPU.
        """
        self._trt = importlib.import_module("tensorrt")
        load_plugin()
        logger = self._trt.Logger(self._trt.Logger.WARNING)
        serialised = self._build(logger, table)
        if serialised is None:
            raise CheckFailedError("TensorRT built no engine")
        self._runtime = self._trt.Runtime(logger)
        self._engine = self._runtime.deserialize_cuda_engine(serialised)
        if self._engine is None:
            raise CheckFailedError("the engine cannot be deserialised")
        self._context = self._engine.create_execution_context()

    def enqueue(
        self,
        qkv: torch.Tensor,
        positions: torch.Tensor,
        outputs: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Enqueue both rotations.

        Args:
            qkv: bfloat16 [T, WIDTH] on the device.
            positions: int32 [T] on the device.
            outputs: where to write the results, like qkv; None makes new tensors.

        Returns:
            The plugin's result and that of the stock layers; both may still be computed.
        """
        rotated, stock = outputs or (torch.empty_like(qkv), torch.empty_like(qkv))
        tensors = {"qkv": qkv, "position_ids": positions, "rotated": rotated, "stock": stock}
        for name in ("qkv", "position_ids"):
            if not self._context.set_input_shape(name, tuple(tensors[name].shape)):
                raise CheckFailedError(f"TensorRT refused the shape of {name}")
        for name, tensor in tensors.items():
            self._context.set_tensor_address(name, tensor.data_ptr())
        if not self._context.execute_async_v3(torch.cuda.current_stream().cuda_stream):
            raise CheckFailedError("TensorRT did not enqueue the engine")
        return rotated, stock

    def close(self) -> None:
        """Release the engine."""
        self._context = self._engine = self._runtime = None

    def _build(self, logger: Any, table: torch.Tensor) -> Any:
        trt = self._trt
        builder = trt.Builder(logger)
        flags = 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
        network = builder.create_network(flags)
        qkv = network.add_input("qkv", trt.bfloat16, (-1, WIDTH))
        positions = network.add_input("position_ids", trt.int32, (-1,))
        # TensorRT reads the weights' memory until the engine is built.
        memory = np.ascontiguousarray(table.numpy())
        cos_sin = network.add_constant(memory.shape, trt.Weights(memory)).get_output(0)
        plugin = rotary_plugin(Q_HEADS, KV_HEADS, HEAD_SIZE)
        layer = network.add_plugin_v3([qkv, positions, cos_sin], [], plugin)
        stock, indices = _add_stock_rotation(trt, network, qkv, positions, cos_sin)
        for name, tensor in (("rotated", layer.get_output(0)), ("stock", stock)):
            tensor.name = name
            network.mark_output(tensor)
        config = builder.create_builder_config()
        profile = builder.create_optimization_profile()
        profile.set_shape("qkv", (1, WIDTH), (1024, WIDTH), (MOST_TOKENS, WIDTH))
        profile.set_shape("position_ids", (1,), (1024,), (MOST_TOKENS,))
        config.add_optimization_profile(profile)
        serialised = builder.build_serialized_network(network, config)
        del indices, memory
        return serialised


def _add_stock_rotation(
    trt: Any, network: Any, qkv: Any, positions: Any, cos_sin: Any
) -> tuple[Any, list[Any]]:
    """Add the same rotation in float32 out of gathers, products and sums.

    Returns:
        The rotated tensor, and arrays that must live until the engine is built.
    """
    arrays: list[Any] = []

    def take(tensor: Any, start: int, stop: int, axis: int) -> Any:
        index = np.arange(start, stop, dtype=np.int32)
        arrays.append(index)
        constant = network.add_constant(index.shape, trt.Weights(index)).get_output(0)
        return network.add_gather(tensor, constant, axis).get_output(0)

    def shape(tensor: Any, *sizes: int) -> Any:
        layer = network.add_shuffle(tensor)
        layer.reshape_dims = sizes
        return layer.get_output(0)

    def join(tensors: list[Any], axis: int) -> Any:
        layer = network.add_concatenation(tensors)
        layer.axis = axis
        return layer.get_output(0)

    def combine(left: Any, right: Any, operation: str) -> Any:
        kind = getattr(trt.ElementWiseOperation, operation)
        return network.add_elementwise(left, right, kind).get_output(0)

    half = HEAD_SIZE // 2
    turned_heads = Q_HEADS + KV_HEADS
    heads = shape(
        network.add_cast(qkv, trt.float32).get_output(0), -1, Q_HEADS + 2 * KV_HEADS, HEAD_SIZE
    )
    turning = take(heads, 0, turned_heads, 1)
    first, second = take(turning, 0, half, 2), take(turning, half, HEAD_SIZE, 2)
    angles = network.add_gather(cos_sin, positions, 0).get_output(0)
    cosines = shape(take(angles, 0, half, 1), -1, 1, half)
    sines = shape(take(angles, half, HEAD_SIZE, 1), -1, 1, half)
    turned_first = combine(combine(first, cosines, "PROD"), combine(second, sines, "PROD"), "SUB")
    turned_second = combine(combine(second, cosines, "PROD"), combine(first, sines, "PROD"), "SUM")
    turned = join([turned_first, turned_second], 2)
    values = take(heads, turned_heads, turned_heads + KV_HEADS, 1)
    flat = shape(join([turned, values], 1), -1, WIDTH)
    return network.add_cast(flat, trt.bfloat16).get_output(0), arrays
