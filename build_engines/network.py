# SPDX-License-Identifier: Apache-2.0
"""The two changes to TensorRT-LLM's Llama network; imports TensorRT-LLM only when called.

Every attention layer ends in one call of `gpt_attention`, after bias, clipping and normalisation
of q and k. Both changes take hold there, for the time of one forward pass:

- the target rotates qkv in the ExplicitRotary plugin, by the engine's input position_ids, and
  gives attention an embedding type that rotates nothing;
- the draft leaves attention as it is and rotates a copy of a few rows, which leave the engine.

Written against TensorRT-LLM 1.2.1. Not run with a real TensorRT-LLM and not run on a GPU.
"""

from __future__ import annotations

import functools
import importlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
from specprefill.errors import EngineError
from specprefill.explicit_rotary.libraries import HALF_ROTATION
from specprefill.explicit_rotary.loader import PLUGIN_NAME, PLUGIN_NAMESPACE, PLUGIN_VERSION

from build_engines.plan import SCORING_QUERY_INDEX, scoring_queries_name

POSITION_IDS = "position_ids"
FIELD_VERSION = 1

AttentionCall = Callable[..., Any]


def target_model_class(base: Any, cos_sin: npt.NDArray[np.float32]) -> Any:
    """Make a model class whose engine rotates q and k by the input position_ids.

    Args:
        base: a decoder class of TensorRT-LLM, for example LLaMAForCausalLM.
        cos_sin: float32 [max_positions, head_size], the plugin's table.

    Returns:
        A subclass of base, to be built like it.
    """

    class ExplicitRotaryTarget(base):
        def prepare_inputs(self, *args: Any, **keywords: Any) -> dict[str, Any]:
            inputs: dict[str, Any] = super().prepare_inputs(*args, **keywords)
            if inputs[POSITION_IDS] is None:
                inputs[POSITION_IDS] = _position_ids_beside(inputs["hidden_states"])
            return inputs

        def forward(self, **inputs: Any) -> Any:
            for layer in self.transformer.layers:
                disable_builtin_rotary(layer.attention)
            constant = importlib.import_module("tensorrt_llm.functional").constant
            hook = _RotateBeforeAttention(inputs[POSITION_IDS], constant(cos_sin))
            with attention_hook(hook):
                result = super().forward(**inputs)
            _check_layers(hook.layers, len(self.transformer.layers))
            _check_consumed(POSITION_IDS, len(self.transformer.layers))
            return result

    return ExplicitRotaryTarget


def draft_model_class(
    base: Any,
    cos_sin: npt.NDArray[np.float32],
    score_layers: Sequence[int],
    query_window: int,
    most_queries: int,
) -> Any:
    """Make a model class whose engine gives out rotated queries of chosen rows and layers.

    The engine has one more input, `scoring_query_index` int32 [n], rows of the step, and for every
    scored layer one more output, `scoring_queries_<layer>` [n, query_heads * head_size].

    Args:
        base: a decoder class of TensorRT-LLM, for example LLaMAForCausalLM.
        cos_sin: float32 [max_positions, head_size], the plugin's table.
        score_layers: indices of the layers.
        query_window: usual number of rows n.
        most_queries: largest number of rows n.

    Returns:
        A subclass of base, to be built like it, on one rank.
    """

    class ScoringDraft(base):
        def prepare_inputs(self, *args: Any, **keywords: Any) -> dict[str, Any]:
            inputs: dict[str, Any] = super().prepare_inputs(*args, **keywords)
            profiles = len(inputs[POSITION_IDS].profiles)
            range_of_rows = [1, query_window, most_queries]
            self.scoring_query_index = _int32_vector(
                SCORING_QUERY_INDEX, "num_scoring_queries", [range_of_rows] * profiles
            )
            return inputs

        def forward(self, **inputs: Any) -> Any:
            constant = importlib.import_module("tensorrt_llm.functional").constant
            hook = _ExportQueries(
                inputs[POSITION_IDS],
                constant(cos_sin),
                self.scoring_query_index,
                frozenset(score_layers),
            )
            with attention_hook(hook):
                result = super().forward(**inputs)
            _check_layers(hook.layers, len(score_layers))
            _check_consumed(POSITION_IDS, len(score_layers))
            return result

    return ScoringDraft


def disable_builtin_rotary(attention: Any) -> None:
    """Make a layer of TensorRT-LLM's attention rotate nothing.

    Args:
        attention: a tensorrt_llm.layers.attention.Attention with built-in RoPE.

    Raises:
        EngineError: the layer does not rotate whole heads to begin with.
    """
    functional = importlib.import_module("tensorrt_llm.functional")
    if attention.rotary_embedding_dim not in (0, attention.attention_head_size):
        raise EngineError(
            f"attention rotates {attention.rotary_embedding_dim} of "
            f"{attention.attention_head_size} numbers per head; the plugin's table has all"
        )
    attention.position_embedding_type = functional.PositionEmbeddingType.learned_absolute
    # The C++ attention refuses an embedding type that is no RoPE with a rotary dimension.
    attention.rotary_embedding_dim = 0
    attention.rotary_embedding_scale_type = functional.RotaryScalingType.none
    attention.rotary_embedding_scale = 1.0


def explicit_rotary(
    qkv: Any, position_ids: Any, cos_sin: Any, num_q_heads: int, num_kv_heads: int, head_size: int
) -> Any:
    """Add an ExplicitRotary layer to the network under construction.

    Args:
        qkv: tensor [T, (num_q_heads + 2 * num_kv_heads) * head_size], float16 or bfloat16.
        position_ids: tensor [T], int32.
        cos_sin: tensor [max_positions, head_size], float32.
        num_q_heads: query heads of this rank.
        num_kv_heads: key-value heads of this rank.
        head_size: numbers per head, all rotated.

    Returns:
        A tensor like qkv with q and k rotated.

    Raises:
        EngineError: the plugin is not loaded in this process, or refuses its fields.
    """
    common = importlib.import_module("tensorrt_llm._common")
    functional = importlib.import_module("tensorrt_llm.functional")
    plugin = rotary_plugin(num_q_heads, num_kv_heads, head_size)
    tensors = [qkv.trt_tensor, position_ids.trt_tensor, cos_sin.trt_tensor]
    layer = common.default_trtnet().add_plugin_v3(tensors, [], plugin)
    return functional._create_tensor(layer.get_output(0), layer)


def rotary_plugin(num_q_heads: int, num_kv_heads: int, head_size: int) -> Any:
    """Make an instance of the ExplicitRotary plugin, to be added to a network.

    Args:
        num_q_heads: query heads of this rank.
        num_kv_heads: key-value heads of this rank.
        head_size: numbers per head, all rotated.

    Raises:
        EngineError: the plugin is not loaded in this process, or refuses its fields.
    """
    trt = importlib.import_module("tensorrt")
    creator = trt.get_plugin_registry().get_creator(PLUGIN_NAME, PLUGIN_VERSION, PLUGIN_NAMESPACE)
    if creator is None:
        raise EngineError(f"the plugin {PLUGIN_NAME} is not registered; call load_plugin first")
    values = {
        "num_q_heads": num_q_heads,
        "num_kv_heads": num_kv_heads,
        "head_size": head_size,
        "rotary_dim": head_size,
        "rotary_style": HALF_ROTATION,
        "field_version": FIELD_VERSION,
    }
    # A field only points to its array, which must outlive create_plugin.
    arrays = {name: np.array([value], dtype=np.int32) for name, value in values.items()}
    fields = trt.PluginFieldCollection(
        [trt.PluginField(name, array, trt.PluginFieldType.INT32) for name, array in arrays.items()]
    )
    plugin = creator.create_plugin(PLUGIN_NAME, fields, trt.TensorRTPhase.BUILD)
    if plugin is None:
        raise EngineError(f"the plugin {PLUGIN_NAME} refused its fields {values}")
    return plugin


@contextmanager
def attention_hook(hook: Callable[..., Any]) -> Iterator[None]:
    """Let a hook stand before TensorRT-LLM's attention.

    Args:
        hook: called with the original `gpt_attention` and its keywords; returns what it returns.
    """
    layers: Any = importlib.import_module("tensorrt_llm.layers.attention")
    original: AttentionCall = layers.gpt_attention
    layers.gpt_attention = functools.partial(hook, original)
    try:
        yield
    finally:
        layers.gpt_attention = original


class _RotateBeforeAttention:
    """Gives attention what the plugin made of qkv."""

    def __init__(self, position_ids: Any, cos_sin: Any) -> None:
        self._position_ids = position_ids
        self._cos_sin = cos_sin
        self.layers: list[int] = []

    def __call__(self, original: AttentionCall, **keywords: Any) -> Any:
        if keywords["rotary_embedding_dim"] != 0:
            raise EngineError(
                f"attention of layer {keywords['layer_idx']} would rotate a second time: "
                f"rotary_embedding_dim is {keywords['rotary_embedding_dim']}"
            )
        rotated = explicit_rotary(
            _fused(keywords["qkv"]),
            self._position_ids,
            self._cos_sin,
            keywords["num_heads"],
            keywords["num_kv_heads"],
            keywords["hidden_size_per_head"],
        )
        self.layers.append(keywords["layer_idx"])
        return original(**{**keywords, "qkv": rotated})


class _ExportQueries:
    """Marks the rotated queries of the chosen rows as outputs; attention stays as it is."""

    def __init__(
        self, position_ids: Any, cos_sin: Any, row_index: Any, score_layers: frozenset[int]
    ) -> None:
        self._position_ids = position_ids
        self._cos_sin = cos_sin
        self._row_index = row_index
        self._score_layers = score_layers
        self.layers: list[int] = []

    def __call__(self, original: AttentionCall, **keywords: Any) -> Any:
        layer = keywords["layer_idx"]
        if layer in self._score_layers:
            self._export(layer, keywords)
            self.layers.append(layer)
        return original(**keywords)

    def _export(self, layer: int, keywords: dict[str, Any]) -> None:
        heads, head_size = keywords["num_heads"], keywords["hidden_size_per_head"]
        # Gathered first, so that no tensor of the prompt's length is added.
        rotated = explicit_rotary(
            _gather_rows(_fused(keywords["qkv"]), self._row_index),
            _gather_rows(self._position_ids, self._row_index),
            self._cos_sin,
            heads,
            keywords["num_kv_heads"],
            head_size,
        )
        split = importlib.import_module("tensorrt_llm.functional").split
        widths = [heads * head_size, 2 * keywords["num_kv_heads"] * head_size]
        queries = split(rotated, widths, dim=1)[0]
        queries.mark_output(scoring_queries_name(layer))


def _fused(qkv: Any) -> Any:
    if isinstance(qkv, list | tuple):
        raise EngineError("q, k and v come from separate products; the plugin needs one tensor")
    return qkv


def _gather_rows(tensor: Any, row_index: Any) -> Any:
    """Take rows [n, ...] of a tensor [T, ...]."""
    common = importlib.import_module("tensorrt_llm._common")
    functional = importlib.import_module("tensorrt_llm.functional")
    # functional.index_select ends in a reshape that hides the static width from the plugin.
    layer = common.default_trtnet().add_gather(tensor.trt_tensor, row_index.trt_tensor, 0)
    return functional._create_tensor(layer.get_output(0), layer)


def _position_ids_beside(hidden_states: Any) -> Any:
    """Declare position_ids on a pipeline stage that receives hidden states [T, hidden_size]."""
    ranges = [
        [profile.min[0], profile.opt[0], profile.max[0]] for profile in hidden_states.profiles
    ]
    return _int32_vector(POSITION_IDS, "position_ids_num_tokens_range", ranges)


def _int32_vector(name: str, dimension: str, ranges: list[list[int]]) -> Any:
    """Declare an input int32 [n] with (min, opt, max) of n for every optimisation profile."""
    trt = importlib.import_module("tensorrt")
    tensor = importlib.import_module("tensorrt_llm.functional").Tensor
    return tensor(
        name=name, dtype=trt.int32, shape=[-1], dim_range=OrderedDict([(dimension, ranges)])
    )


def _check_layers(hooked: Sequence[int], expected: int) -> None:
    if len(hooked) != expected or len(set(hooked)) != expected:
        raise EngineError(
            f"the hook saw the attention of layers {list(hooked)}, expected {expected} of them: "
            "this TensorRT-LLM calls gpt_attention in another way"
        )


def _check_consumed(name: str, at_least: int) -> None:
    """Check that layers of the network read an input: TensorRT keeps inputs that nobody reads."""
    network = importlib.import_module("tensorrt_llm._common").default_trtnet()
    readers = 0
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        inputs = [layer.get_input(number) for number in range(layer.num_inputs)]
        readers += any(tensor is not None and tensor.name == name for tensor in inputs)
    if readers < at_least:
        raise EngineError(
            f"{readers} layers of the network read {name}, expected at least {at_least}"
        )
