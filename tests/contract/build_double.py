# SPDX-License-Identifier: Apache-2.0
"""A small double of what build_engines calls of TensorRT-LLM and TensorRT.

Every call binds its arguments to the names in build_api.json. Tensors carry numpy values, so that a
network under construction is also computed, and the ExplicitRotary plugin rotates for real.
"""

from __future__ import annotations

import enum
import functools
import inspect
import json
import os
import sys
import types
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

FACTS: dict[str, Any] = json.loads((Path(__file__).parent / "build_api.json").read_text())


def bound(symbol: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Check a call against the facts before it happens; methods keep their self or cls."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        allowed = FACTS["callables"][symbol]
        receives = list(inspect.signature(function).parameters)[:1]
        skip = 1 if receives in (["self"], ["cls"]) else 0

        @functools.wraps(function)
        def checked(*args: Any, **keywords: Any) -> Any:
            unknown = set(keywords) - set(allowed)
            assert not unknown, f"{symbol} has no parameter {sorted(unknown)}"
            assert len(args) - skip <= len(allowed), f"{symbol} takes {len(allowed)} arguments"
            missing = set(FACTS["required"].get(symbol, ())) - set(keywords)
            assert not missing, f"{symbol} needs {sorted(missing)}"
            return function(*args, **keywords)

        return checked

    return decorate


Kind = enum.Enum("TensorIOMode", ["INPUT", "OUTPUT"])


class TrtTensor:
    def __init__(self, name: str, value: np.ndarray) -> None:
        self.name = name
        self.value = value


class Layer:
    def __init__(self, kind: str, inputs: list[TrtTensor | None], value: np.ndarray) -> None:
        self.kind = kind
        self.inputs = inputs
        self.num_inputs = len(inputs)
        self.output = TrtTensor(f"{kind}_output", value)

    def get_input(self, index: int) -> TrtTensor | None:
        return self.inputs[index]

    def get_output(self, index: int) -> TrtTensor:
        assert index == 0
        return self.output


class TrtNetwork:
    """INetworkDefinition."""

    def __init__(self) -> None:
        self.layers: list[Layer] = []
        self.inputs: dict[str, Tensor] = {}
        self.outputs: dict[str, Any] = {}

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    def get_layer(self, index: int) -> Layer:
        return self.layers[index]

    def add(self, kind: str, inputs: list[TrtTensor | None], value: np.ndarray) -> Layer:
        self.layers.append(Layer(kind, inputs, value))
        return self.layers[-1]

    @bound("tensorrt.INetworkDefinition.add_plugin_v3")
    def add_plugin_v3(self, inputs: list[TrtTensor], shape_inputs: list[Any], plugin: Any) -> Layer:
        assert shape_inputs == []
        return self.add("ExplicitRotary", list(inputs), plugin.compute(*inputs))

    @bound("tensorrt.INetworkDefinition.add_gather")
    def add_gather(self, input: TrtTensor, indices: TrtTensor, axis: int) -> Layer:
        return self.add("Gather", [input, indices], np.take(input.value, indices.value, axis))


class World:
    """What the double remembers of one test."""

    def __init__(self) -> None:
        self.network = TrtNetwork()
        self.feeds: dict[str, np.ndarray] = {}
        self.attention_calls: list[dict[str, Any]] = []
        self.plugin_fields: list[dict[str, int]] = []
        self.build_configs: list[Any] = []
        self.quantize_calls: list[dict[str, Any]] = []
        self.plugin_is_registered = True
        self.builds_an_engine = True


WORLD = World()


class DimRange:
    def __init__(self, ranges: list[list[int]]) -> None:
        self.min, self.opt, self.max = ([r[i] for r in ranges] for i in range(3))


class Tensor:
    @bound("tensorrt_llm.functional.Tensor")
    def __init__(
        self,
        name: str | None = None,
        dtype: Any = None,
        shape: Any = None,
        dim_range: Any = None,
        is_network_input: bool = True,
        trt_tensor: TrtTensor | None = None,
    ) -> None:
        self.profiles: list[DimRange] = []
        if trt_tensor is not None:
            self.trt_tensor = trt_tensor
            return
        assert isinstance(dim_range, OrderedDict)
        count = {len(ranges) for ranges in dim_range.values()}
        assert len(count) == 1, "every dimension needs a range per profile"
        for index in range(count.pop()):
            ranges = [ranges[index] for ranges in dim_range.values()]
            self.profiles.append(DimRange([r if isinstance(r, list) else [r] * 3 for r in ranges]))
        assert name is not None
        assert name not in WORLD.network.inputs
        self.dtype, self.shape = dtype, shape
        self.trt_tensor = TrtTensor(name, WORLD.feeds.get(name, np.zeros(1, dtype=np.int32)))
        WORLD.network.inputs[name] = self

    @bound("tensorrt_llm.functional.Tensor.mark_output")
    def mark_output(self, name: str | None = None, dtype: Any = None) -> None:
        assert name is not None
        assert name not in WORLD.network.outputs
        WORLD.network.outputs[name] = self.trt_tensor.value


@bound("tensorrt_llm.functional._create_tensor")
def _create_tensor(trt_tensor: TrtTensor, producer: Layer) -> Tensor:
    assert producer.get_output(0) is trt_tensor
    return Tensor(trt_tensor=trt_tensor, is_network_input=False)


@bound("tensorrt_llm.functional.constant")
def constant(ndarray: np.ndarray) -> Tensor:
    assert ndarray.flags["C_CONTIGUOUS"]
    layer = WORLD.network.add("Constant", [], ndarray)
    return _create_tensor(layer.get_output(0), layer)


@bound("tensorrt_llm.functional.split")
def split(tensor: Tensor, split_size_or_sections: list[int], dim: int = 0) -> list[Tensor]:
    value = tensor.trt_tensor.value
    assert sum(split_size_or_sections) == value.shape[dim]
    parts = np.split(value, np.cumsum(split_size_or_sections)[:-1], axis=dim)
    layers = [WORLD.network.add("Slice", [tensor.trt_tensor], part) for part in parts]
    return [_create_tensor(layer.get_output(0), layer) for layer in layers]


@bound("tensorrt_llm.functional.gpt_attention")
def gpt_attention(**keywords: Any) -> tuple[Tensor, Tensor | None]:
    is_rope = keywords["position_embedding_type"].name.startswith("rope")
    assert is_rope == (keywords["rotary_embedding_dim"] != 0)
    WORLD.attention_calls.append(keywords)
    qkv = keywords["qkv"].trt_tensor
    layer = WORLD.network.add("GPTAttention", [qkv, None], qkv.value)
    return _create_tensor(layer.get_output(0), layer), None


class Plugin:
    def __init__(self, fields: dict[str, int]) -> None:
        self.fields = fields

    def compute(self, qkv: TrtTensor, position_ids: TrtTensor, cos_sin: TrtTensor) -> np.ndarray:
        f = self.fields
        rows, half = qkv.value, f["rotary_dim"] // 2
        heads = f["num_q_heads"] + 2 * f["num_kv_heads"]
        assert rows.shape == (len(position_ids.value), heads * f["head_size"])
        assert position_ids.value.dtype == np.int32
        assert cos_sin.value.dtype == np.float32
        table = cos_sin.value[position_ids.value][:, None, :]
        cos, sin = table[..., :half], table[..., half:]
        out = rows.reshape(len(rows), heads, f["head_size"]).copy()
        turned = out[:, : f["num_q_heads"] + f["num_kv_heads"]]
        first, second = turned[..., :half].copy(), turned[..., half:].copy()
        turned[..., :half] = first * cos - second * sin
        turned[..., half:] = second * cos + first * sin
        return out.reshape(rows.shape)


class Creator:
    @bound("tensorrt.IPluginCreatorV3One.create_plugin")
    def create_plugin(self, name: str, field_collection: Any, phase: Any) -> Plugin:
        assert (name, phase) == ("ExplicitRotary", "BUILD")
        fields = {}
        for field in field_collection:
            assert field.type == "INT32"
            assert field.data.dtype == np.int32
            assert field.data.shape == (1,)
            fields[field.name] = int(field.data[0])
        WORLD.plugin_fields.append(fields)
        return Plugin(fields)


class Registry:
    @bound("tensorrt.IPluginRegistry.get_creator")
    def get_creator(self, type: str, version: str, plugin_namespace: str) -> Creator | None:
        known = (type, version, plugin_namespace) == ("ExplicitRotary", "1", "specprefill")
        return Creator() if known and WORLD.plugin_is_registered else None


class PluginField:
    @bound("tensorrt.PluginField")
    def __init__(self, name: str, data: np.ndarray, type: Any) -> None:
        self.name, self.data, self.type = name, data, type


class Runtime:
    @bound("tensorrt.Runtime")
    def __init__(self, logger: Any) -> None:
        pass

    @bound("tensorrt.Runtime.deserialize_cuda_engine")
    def deserialize_cuda_engine(self, serialized_engine: bytes) -> CudaEngine | None:
        assert os.environ.get("IS_BUILDING") == "1", "a rank would wait for the others"
        return CudaEngine(json.loads(serialized_engine)) if serialized_engine else None


class CudaEngine:
    def __init__(self, content: dict[str, Any]) -> None:
        self.content = content
        self.names = content["inputs"] + content["outputs"]
        self.num_io_tensors = len(self.names)

    @bound("tensorrt.ICudaEngine.get_tensor_name")
    def get_tensor_name(self, index: int) -> str:
        return str(self.names[index])

    @bound("tensorrt.ICudaEngine.get_tensor_mode")
    def get_tensor_mode(self, name: str) -> Any:
        return Kind.INPUT if name in self.content["inputs"] else Kind.OUTPUT

    @bound("tensorrt.ICudaEngine.create_engine_inspector")
    def create_engine_inspector(self) -> CudaEngine:
        return self

    @bound("tensorrt.EngineInspector.get_engine_information")
    def get_engine_information(self, format: Any) -> str:
        assert format == "JSON"
        return json.dumps({"Layers": self.content["layers"]})


class Keywords:
    """An object that remembers the keywords that it was made with."""

    symbol: str

    def __init__(self, **keywords: Any) -> None:
        unknown = set(keywords) - set(FACTS["callables"][self.symbol])
        assert not unknown, f"{self.symbol} has no parameter {sorted(unknown)}"
        self.__dict__.update(keywords)


def keywords_class(symbol: str) -> type[Keywords]:
    return type(symbol.rpartition(".")[2], (Keywords,), {"symbol": symbol})


Mapping = keywords_class("tensorrt_llm.Mapping")
BuildConfig = keywords_class("tensorrt_llm.builder.BuildConfig")
PluginConfig = keywords_class("tensorrt_llm.plugin.PluginConfig")
QuantConfig = keywords_class("tensorrt_llm.models.modeling_utils.QuantConfig")
POSITION_TYPE, SCALING_TYPE, CACHE_TYPE = (
    enum.Enum(symbol.rpartition(".")[2], FACTS["enums"][symbol])
    for symbol in (
        "tensorrt_llm.functional.PositionEmbeddingType",
        "tensorrt_llm.functional.RotaryScalingType",
        "tensorrt_llm.builder.KVCacheType",
    )
)


class Attention:
    def __init__(self, config: Any, local_layer_idx: int) -> None:
        tp_size = config.mapping.tp_size
        self.local_layer_idx = local_layer_idx
        self.num_attention_heads = config.num_attention_heads // tp_size
        self.num_attention_kv_heads = -(-config.num_key_value_heads // tp_size)
        self.attention_head_size = config.head_size
        self.position_embedding_type = POSITION_TYPE.rope_gpt_neox
        self.rotary_embedding_dim = config.head_size
        self.rotary_embedding_scale_type = SCALING_TYPE.llama3
        self.rotary_embedding_scale = 8.0
        assert set(self.__dict__) == set(FACTS["attention_fields"])

    def __call__(self, qkv: np.ndarray) -> Any:
        layer = WORLD.network.add("Gemm", [], qkv)
        unused = ("past_key_value", "sequence_length", "host_past_key_value_lengths")
        unused += ("host_max_attention_window_sizes", "host_sink_token_length", "context_lengths")
        unused += ("cache_indirection", "host_request_types")
        # As in TensorRT-LLM, the name is looked up in the module at every call.
        return sys.modules["tensorrt_llm.layers.attention"].gpt_attention(
            **dict.fromkeys(unused),
            qkv=_create_tensor(layer.get_output(0), layer),
            layer_idx=self.local_layer_idx,
            num_heads=self.num_attention_heads,
            num_kv_heads=self.num_attention_kv_heads,
            hidden_size_per_head=self.attention_head_size,
            q_scaling=1.0,
            rotary_embedding_dim=self.rotary_embedding_dim,
            rotary_embedding_scale_type=self.rotary_embedding_scale_type,
            rotary_embedding_scale=self.rotary_embedding_scale,
            position_embedding_type=self.position_embedding_type,
        )


class LLaMAForCausalLM:
    """Declares inputs and outputs as generation_mixin.py and modeling_utils.py do."""

    def __init__(self, config: Any) -> None:
        self.config = config
        count = config.num_hidden_layers // config.mapping.pp_size
        layers = [types.SimpleNamespace(attention=Attention(config, i)) for i in range(count)]
        self.transformer = types.SimpleNamespace(layers=layers)

    @property
    def first_layer(self) -> int:
        mapping = self.config.mapping
        return mapping.rank // mapping.tp_size * len(self.transformer.layers)

    @classmethod
    @bound("tensorrt_llm.models.LLaMAForCausalLM.from_hugging_face")
    def from_hugging_face(
        cls, hf_model_or_dir: str, dtype: str, mapping: Any, quant_config: Any
    ) -> LLaMAForCausalLM:
        hf = json.loads((Path(hf_model_or_dir) / "config.json").read_text())
        assert dtype == "bfloat16"
        return cls(make_config(hf, mapping))

    @classmethod
    @bound("tensorrt_llm.models.LLaMAForCausalLM.from_checkpoint")
    def from_checkpoint(cls, ckpt_dir: str, rank: int) -> LLaMAForCausalLM:
        folder = Path(ckpt_dir)
        assert (folder / f"rank{rank}.safetensors").is_file()
        saved = json.loads((folder / "config.json").read_text())
        return cls(make_config(saved["hf"], Mapping(**{**saved["mapping"], "rank": rank})))

    @classmethod
    @bound("tensorrt_llm.models.LLaMAForCausalLM.quantize")
    def quantize(cls, hf_model_dir: str, output_dir: str, **keywords: Any) -> None:
        WORLD.quantize_calls.append(keywords)
        folder, mapping = Path(output_dir), keywords["mapping"]
        folder.mkdir(parents=True, exist_ok=True)
        hf = json.loads((Path(hf_model_dir) / "config.json").read_text())
        text = json.dumps({"hf": hf, "mapping": mapping.__dict__})
        (folder / "config.json").write_text(text)
        for rank in range(mapping.world_size):
            (folder / f"rank{rank}.safetensors").write_bytes(b"weights")

    @bound("tensorrt_llm.models.LLaMAForCausalLM.prepare_inputs")
    def prepare_inputs(self, **keywords: Any) -> dict[str, Any]:
        mapping, build = self.config.mapping, WORLD.build_configs[-1]
        paged = build.plugin_config.paged_kv_cache
        # Without the GEMM plugin, contiguous keys give a profile for prefill and one for decoding.
        profiles = 1 if paged or build.plugin_config.gemm_plugin else 2
        tokens = [[1, 8, keywords["max_num_tokens"]]] * profiles
        first = mapping.rank < mapping.tp_size
        inputs: dict[str, Any] = {"input_ids": None, "position_ids": None, "use_cache": True}
        if first:
            inputs["input_ids"] = declare("input_ids", num_tokens=tokens)
            inputs["position_ids"] = declare("position_ids", position_ids_num_tokens_range=tokens)
        else:
            width = [self.config.hidden_size] * profiles
            inputs["hidden_states"] = declare("hidden_states_input", num_tokens=tokens, width=width)
        names = set(FACTS["engine_tensors"]) - {"input_ids", "position_ids", "logits"}
        for name in sorted(n for n in names if not n.startswith("hidden_states")):
            self._declare_other(name, paged, profiles)
        return inputs

    def _declare_other(self, name: str, paged: bool, profiles: int) -> None:
        mapping = self.config.mapping
        last = mapping.rank >= mapping.world_size - mapping.tp_size
        if (name == "last_token_ids" and not last) or name.startswith("present"):
            return
        if name == "all_reduce_workspace" and mapping.tp_size == 1:
            return
        if "kv_cache" in name and not paged:
            return
        if name == "past_key_value_{i}":
            layers = () if paged else range(len(self.transformer.layers))
            for layer in layers:
                declare(name.format(i=self.first_layer + layer), any=[1] * profiles)
            return
        declare(name, any=[1] * profiles)

    @bound("tensorrt_llm.models.LLaMAForCausalLM.forward")
    def forward(self, **inputs: Any) -> None:
        mapping = self.config.mapping
        for index, layer in enumerate(self.transformer.layers):
            attention = layer.attention
            heads = attention.num_attention_heads + 2 * attention.num_attention_kv_heads
            tokens = len(WORLD.feeds["position_ids"])
            random = np.random.default_rng(self.first_layer + index)
            qkv = random.standard_normal((tokens, heads * attention.attention_head_size))
            output, _ = attention(qkv.astype(np.float32))
            if not WORLD.build_configs[-1].plugin_config.paged_kv_cache:
                output.mark_output(f"present_key_value_{self.first_layer + index}", "kv")
        last = mapping.rank >= mapping.world_size - mapping.tp_size
        output.mark_output("logits" if last else "hidden_states_output", "float32")


def declare(name: str, **dimensions: Any) -> Tensor:
    return Tensor(name=name, dtype="int32", shape=[-1], dim_range=OrderedDict(dimensions))


def make_config(hf: dict[str, Any], mapping: Any) -> Any:
    """Read a Hugging Face configuration as transformers 4 and LLaMAConfig do."""
    assert "rope_parameters" not in hf
    assert "auto_map" not in hf
    return types.SimpleNamespace(
        num_hidden_layers=hf["num_hidden_layers"],
        num_attention_heads=hf["num_attention_heads"],
        num_key_value_heads=hf["num_key_value_heads"],
        head_size=hf["head_dim"],
        hidden_size=hf["hidden_size"],
        rotary_base=hf.get("rope_theta", 10000.0),
        rotary_scaling=hf.get("rope_scaling"),
        vocab_size=hf["vocab_size"],
        mapping=mapping,
    )


class Engine:
    def __init__(self, model: LLaMAForCausalLM, config: Any) -> None:
        network, self.model, self.build_config = WORLD.network, model, config
        layers = [
            {
                "Name": f"{layer.kind}_{index}",
                "Inputs": [{"Name": tensor.name} for tensor in layer.inputs if tensor],
            }
            for index, layer in enumerate(network.layers)
        ]
        content = {
            "inputs": list(network.inputs),
            "outputs": list(network.outputs),
            "layers": layers,
        }
        self.engine = json.dumps(content).encode() if WORLD.builds_an_engine else None

    @bound("tensorrt_llm.builder.Engine.save")
    def save(self, engine_dir: str) -> None:
        folder = Path(engine_dir)
        folder.mkdir(parents=True, exist_ok=True)
        config, mapping = self.model.config, self.model.config.mapping
        if mapping.rank == 0:
            pretrained = {k: v for k, v in config.__dict__.items() if k != "mapping"}
            pretrained["mapping"] = mapping.__dict__
            build = {k: v for k, v in self.build_config.__dict__.items() if isinstance(v, int)}
            text = json.dumps(
                {"version": "1.2.1", "pretrained_config": pretrained, "build_config": build}
            )
            (folder / "config.json").write_text(text)
        (folder / f"rank{mapping.rank}.engine").write_bytes(self.engine)


@bound("tensorrt_llm.builder.build")
def build(model: LLaMAForCausalLM, build_config: Any) -> Engine:
    WORLD.network = TrtNetwork()
    WORLD.build_configs.append(build_config)
    inputs = model.prepare_inputs(
        max_batch_size=build_config.max_batch_size,
        max_input_len=build_config.max_input_len,
        max_seq_len=build_config.max_seq_len,
        max_num_tokens=build_config.max_num_tokens,
        use_cache=True,
    )
    profiles = {name: len(t.profiles) for name, t in WORLD.network.inputs.items()}
    assert len(set(profiles.values())) == 1, f"inputs differ in their profiles: {profiles}"
    model.forward(**inputs)
    Path(build_config.output_timing_cache).write_bytes(b"timing")
    return Engine(model, build_config)


def install(monkeypatch: Any, feeds: dict[str, np.ndarray]) -> World:
    """Put the double where tensorrt and tensorrt_llm would be imported from."""
    global WORLD
    WORLD = World()
    WORLD.feeds = feeds
    simple = types.SimpleNamespace
    logger = type("Logger", (), {"WARNING": 2, "__init__": lambda self, min_severity: None})
    functional = {
        "gpt_attention": gpt_attention,
        "constant": constant,
        "split": split,
        "Tensor": Tensor,
        "_create_tensor": _create_tensor,
        "PositionEmbeddingType": POSITION_TYPE,
        "RotaryScalingType": SCALING_TYPE,
    }
    modules: dict[str, dict[str, Any]] = {
        "tensorrt": {
            "__version__": "10.14.1.48",
            "int32": "int32",
            "get_plugin_registry": Registry,
            "PluginField": PluginField,
            "PluginFieldType": simple(INT32="INT32"),
            "PluginFieldCollection": bound("tensorrt.PluginFieldCollection")(
                lambda fields: list(fields)
            ),
            "TensorRTPhase": simple(BUILD="BUILD"),
            "Runtime": Runtime,
            "Logger": logger,
            "TensorIOMode": Kind,
            "LayerInformationFormat": simple(JSON="JSON"),
        },
        "tensorrt_llm": {"__version__": "1.2.1", "Mapping": Mapping, "__path__": []},
        "tensorrt_llm._common": {
            "default_trtnet": bound("tensorrt_llm._common.default_trtnet")(lambda: WORLD.network)
        },
        "tensorrt_llm.functional": functional,
        "tensorrt_llm.layers": {"__path__": []},
        "tensorrt_llm.layers.attention": {"gpt_attention": gpt_attention},
        "tensorrt_llm.models": {"LLaMAForCausalLM": LLaMAForCausalLM, "__path__": []},
        "tensorrt_llm.models.modeling_utils": {"QuantConfig": QuantConfig},
        "tensorrt_llm.quantization": {"QuantAlgo": simple(FP8="FP8")},
        "tensorrt_llm.plugin": {"PluginConfig": PluginConfig},
        "tensorrt_llm.builder": {
            "BuildConfig": BuildConfig,
            "KVCacheType": CACHE_TYPE,
            "build": build,
        },
        "tensorrt_llm.bindings": {"__path__": []},
        "tensorrt_llm.bindings.executor": {"Request": type("Request", (), {"cache_salt_id": 0})},
    }
    for name, members in modules.items():
        module = types.ModuleType(name)
        module.__dict__.update(members)
        monkeypatch.setitem(sys.modules, name, module)
    return WORLD
