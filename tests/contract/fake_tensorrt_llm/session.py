# SPDX-License-Identifier: Apache-2.0
"""The session's double: one step of a contiguous-cache engine, from the tensors it is given."""

from __future__ import annotations

import enum
import json
from typing import Any

import torch
from specprefill.torch_engine.causal_lm import attention, load_causal_lm
from specprefill.torch_engine.kernels import causal_attention

# Weights are padded to a multiple of this, and the columns beyond the vocabulary hold anything.
_PADDED_COLUMNS = 8


class DataType(enum.Enum):
    INT32 = torch.int32
    INT64 = torch.int64
    FLOAT = torch.float32
    HALF = torch.float16
    FP8 = torch.float8_e4m3fn


class TensorIOMode(enum.Enum):
    INPUT = 1
    OUTPUT = 2


class Engine:
    """The engine's tensors, as TensorRT's ICudaEngine lists them."""

    def __init__(self, description: dict[str, Any]) -> None:
        self.model = load_causal_lm(description["hugging_face"], "float32", "cpu")
        self.config = self.model.config
        self.tensors: dict[str, tuple[TensorIOMode, DataType]] = {}
        cache = DataType[description.get("cache_type", "FLOAT")]
        types = {"int32": DataType.INT32, "int64": DataType.INT64}
        for name, dtype in description["inputs"].items():
            self.tensors[name] = (TensorIOMode.INPUT, types[dtype])
        for layer in range(self.config.num_hidden_layers):
            self.tensors[f"past_key_value_{layer}"] = (TensorIOMode.INPUT, cache)
            self.tensors[f"present_key_value_{layer}"] = (TensorIOMode.OUTPUT, cache)
        for layer in description["score_layers"]:
            self.tensors[f"scoring_queries_{layer}"] = (TensorIOMode.OUTPUT, DataType.FLOAT)
        self.tensors["logits"] = (TensorIOMode.OUTPUT, DataType.FLOAT)
        self.score_layers: list[int] = description["score_layers"]
        self.limits: dict[str, int] = description["limits"]

    @property
    def num_io_tensors(self) -> int:
        return len(self.tensors)

    def get_tensor_name(self, index: int) -> str:
        return list(self.tensors)[index]

    def get_tensor_mode(self, name: str) -> TensorIOMode:
        return self.tensors[name][0]

    def get_tensor_dtype(self, name: str) -> DataType:
        return self.tensors[name][1]

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        if name != "logits":
            raise NotImplementedError(name)
        return (-1, self.config.vocab_size + _PADDED_COLUMNS)

    def names(self, mode: TensorIOMode) -> list[str]:
        return [name for name, (side, _) in self.tensors.items() if side is mode]


class Session:
    """Runs one engine; refuses tensors that the engine would misread."""

    double: Any  # `install` makes a subclass that knows its test

    @classmethod
    def from_serialized_engine(cls, engine: bytes) -> Session:
        if not cls.double.plugin_loaded:
            raise RuntimeError("Cannot deserialize: no creator of plugin ExplicitRotary")
        session = cls(engine)
        cls.double.sessions.append(session)
        return session

    def __init__(self, engine: bytes) -> None:
        self.engine = Engine(json.loads(engine))
        self.fails = False
        self.steps = 0
        self._shapes: dict[str, torch.Size] = {}

    def set_shapes(self, tensor_dict: dict[str, torch.Tensor], context: Any = None) -> None:
        inputs = self.engine.names(TensorIOMode.INPUT)
        self._shapes = {name: tensor_dict[name].shape for name in inputs}
        if len(tensor_dict["input_ids"]) > self.engine.limits["max_num_tokens"]:
            raise ValueError("input_ids is outside of the optimisation profile")

    def run(
        self,
        inputs: dict[str, torch.Tensor],
        outputs: dict[str, torch.Tensor],
        stream: int,
        context: Any = None,
    ) -> bool:
        for mode, tensors in ((TensorIOMode.INPUT, inputs), (TensorIOMode.OUTPUT, outputs)):
            expect(sorted(tensors) == sorted(self.engine.names(mode)), f"{mode.name} tensors")
            for name, tensor in tensors.items():
                expect(tensor.is_contiguous(), f"{name} is not contiguous")
                expect(tensor.dtype == self.engine.get_tensor_dtype(name).value, f"{name} type")
        for name, tensor in inputs.items():
            expect(tensor.shape == self._shapes[name], f"{name} does not have the shape set")
        self.steps += 1
        if self.fails:
            return False
        self._run(_Step(self.engine, inputs, outputs))
        return True

    def _run(self, step: _Step) -> None:
        with attention(step.attend):
            logits = self.engine.model(
                input_ids=step.inputs["input_ids"][None].long(),
                position_ids=step.positions[None],
                use_cache=False,
                logits_to_keep=1,
            ).logits[0, -1]
        row = step.outputs["logits"][0]
        row[: len(logits)] = logits
        row[len(logits) :] = 1e9


class _Step:
    """The lengths of a step, read from its inputs as the attention plugin reads them."""

    def __init__(
        self, engine: Engine, inputs: dict[str, torch.Tensor], outputs: dict[str, torch.Tensor]
    ) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self._engine = engine
        count = len(inputs["input_ids"])
        generating = _one(inputs, "host_request_types") == 1
        context = _one(inputs, "context_lengths")
        length = _one(inputs, "sequence_length")
        past = _one(inputs, "host_past_key_value_lengths")
        expect(_one(inputs, "host_context_lengths") == context, "host_context_lengths")
        expect(_one(inputs, "last_token_ids") == count, "last_token_ids")
        if generating:
            expect(count == 1, "a generation step has one token")
            expect(length == past + 1, "sequence_length counts the step's token")
            self._start = past
        else:
            expect(count == context == length == past, "lengths of a context step")
            self._start = 0
        end = self._start + count
        # Rotary embedding inside the attention counts from the lengths; the ids must agree.
        self.positions = torch.arange(self._start, end)
        expect(torch.equal(inputs["position_ids"].long(), self.positions), "position_ids")
        capacity = inputs["cache_indirection"].shape[2]
        expect(inputs["cache_indirection"].shape == (1, 1, capacity), "cache_indirection shape")
        expect(end <= capacity <= engine.limits["max_seq_len"], "the cache's capacity")
        layers = engine.config.num_hidden_layers
        windows = inputs["host_max_attention_window_sizes"]
        expect(windows.tolist() == [capacity] * layers, "host_max_attention_window_sizes")
        expect(_one(inputs, "host_sink_token_length") == 0, "host_sink_token_length")
        if "host_runtime_perf_knobs" in inputs:
            expect(len(inputs["host_runtime_perf_knobs"]) == 16, "host_runtime_perf_knobs")
        kv_heads, head_dim = engine.config.num_key_value_heads, engine.config.head_dim
        for layer in range(layers):
            cache = inputs[f"past_key_value_{layer}"]
            expect(cache.shape == (1, 2, kv_heads, capacity, head_dim), "the cache's shape")
            present = outputs[f"present_key_value_{layer}"]
            expect(present.data_ptr() == cache.data_ptr(), "the cache would be copied")
        self._rows = inputs["scoring_query_index"].long()
        expect(bool((self._rows < count).all()), "scoring_query_index")

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scaling: float,
        sliding_window: int | None,
    ) -> torch.Tensor:
        end = self._start + query.shape[1]
        cache = self.outputs[f"present_key_value_{layer}"][0]  # [2, kv_heads, capacity, d]
        cache[0, :, self._start : end] = key
        cache[1, :, self._start : end] = value
        if layer in self._engine.score_layers:
            rows = query[:, self._rows].transpose(0, 1).flatten(1)  # [n, heads * d]
            self.outputs[f"scoring_queries_{layer}"].copy_(rows)
        return causal_attention(query, cache[0, :, :end], cache[1, :, :end], scaling)


def expect(condition: bool, what: str) -> None:
    """Fail where the real engine would compute something wrong or read out of bounds."""
    if not condition:
        raise AssertionError(f"the engine would misread: {what}")


def _one(inputs: dict[str, torch.Tensor], name: str) -> int:
    expect(inputs[name].shape == (1,), f"{name} shape")
    return int(inputs[name])
