# SPDX-License-Identifier: Apache-2.0
"""TrtllmDraft: a compiled TensorRT-LLM engine as the draft, run tensor by tensor.

The engine is the stock model with a contiguous key-value cache and, beyond its usual tensors, an
input `scoring_query_index` (rows of the step whose queries are wanted) and an output
`scoring_queries_{layer}` per scored layer (those queries, rotated by the ExplicitRotary plugin).

Not run on a GPU. Written against the signatures of TensorRT-LLM 1.2.1 and tested against a double
of them that runs on a CPU.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from specprefill.draft.base import DraftEngine
from specprefill.errors import ConfigurationError, EngineError, RequestCancelledError
from specprefill.explicit_rotary import loader
from specprefill.model_folder import read_config
from specprefill.observer import AttentionObserver
from specprefill.scoring import make_rule
from specprefill.settings import DraftSettings, SelectionSettings, TensorRTSettings
from specprefill.trtllm_engine.folder import EngineConfig, read_engine_folder, read_stop_token_ids
from specprefill.trtllm_engine.package import import_tensorrt_llm

# Inputs that every step fills, with their types; those named host_ lie in host memory.
_STEP_INPUTS = {
    "input_ids": torch.int32,
    "position_ids": torch.int32,
    "last_token_ids": torch.int32,
    "context_lengths": torch.int32,
    "sequence_length": torch.int32,
    "cache_indirection": torch.int32,
    "host_request_types": torch.int32,
    "host_past_key_value_lengths": torch.int32,
    "host_context_lengths": torch.int32,
    "host_max_attention_window_sizes": torch.int32,
    "host_sink_token_length": torch.int32,
    "host_runtime_perf_knobs": torch.int64,
    "host_context_progress": torch.int64,
    "scoring_query_index": torch.int32,
}
# Newer and older builds differ in these; what the adapter cannot do without is the rest.
_OPTIONAL_INPUTS = frozenset(("host_runtime_perf_knobs", "host_context_progress"))

# Quantised keys would need their scale before they can be scored.
_CACHE_TYPES = (torch.float32, torch.float16, torch.bfloat16)

# The cache grows in steps of this many tokens, so that prompts of like length share one.
_CACHE_STEP = 4096


class TrtllmDraft(DraftEngine):
    """A draft that reads each prompt in one pass; prompts take turns on its one cache."""

    def __init__(
        self,
        folder: str | Path,
        settings: DraftSettings,
        tensorrt: TensorRTSettings,
        selection: SelectionSettings,
        trust_remote_code: bool = False,
    ) -> None:
        """Load the engine.

        Args:
            folder: the draft's Hugging Face folder, for its stop tokens.
            settings: `device` and `score_layers` count; what the build fixed cannot be changed.
            tensorrt: where the engines lie.
            selection: the deployment's defaults, which the engine has to be able to serve.
            trust_remote_code: run code that the folder brings.

        Raises:
            ConfigurationError: TensorRT-LLM is missing or of another version, a file of the
                engine is missing, the engine has a tensor that is not known here or lacks one,
                or the settings ask for what the engine was not built for.
            EngineError: the ExplicitRotary plugin cannot be loaded.
        """
        engines = read_engine_folder(tensorrt.engine_dir)
        self._config = engines.draft
        self._query_window = engines.query_window
        self._device = _cuda_device(settings.device)
        self._stop_ids = read_stop_token_ids(folder, read_config(folder, trust_remote_code))
        runtime = import_tensorrt_llm("runtime", self._config.version)
        convert = import_tensorrt_llm("_utils", self._config.version).trt_dtype_to_torch
        # The engine's deserialisation looks the plugin up in this process's registry.
        loader.load_plugin()
        self._stream = torch.cuda.Stream(self._device) if self._device.type == "cuda" else None
        file = self._config.folder / "rank0.engine"
        try:
            with torch.cuda.stream(self._stream):
                self._session = runtime.Session.from_serialized_engine(file.read_bytes())
        except Exception as error:  # assertions and C++ exceptions, as the version likes
            raise ConfigurationError(f"the engine {file} does not run: {error}") from error
        self._tensors = _EngineTensors(self._session.engine, convert, self._config)
        self._check_settings(settings, selection)
        self._cache: list[torch.Tensor] = []
        self._turn = threading.Lock()

    @property
    def context_length(self) -> int:
        """Most prompt tokens that the draft can read: a contiguous cache takes one pass only."""
        config = self._config
        return min(config.max_input_len, config.max_num_tokens, config.max_seq_len)

    def observe(
        self,
        prompt_ids: npt.NDArray[np.int32],
        observer: AttentionObserver,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        """Read the prompt and its look-ahead; see `DraftEngine.observe`."""
        steps = observer.rule.look_ahead
        observer.wanted_of(self._tensors.score_layers)
        self._check_fits(len(prompt_ids), steps, observer.prompt_queries)
        with self._turn, torch.inference_mode(), torch.cuda.stream(self._stream):
            if self._session is None:
                raise EngineError("the draft engine is closed")
            if cancelled():
                raise RequestCancelledError("cancelled before the draft began")
            try:
                self._reserve_cache(len(prompt_ids) + steps - 1)
                token = self._step(prompt_ids, 0, len(prompt_ids), observer)
                for step in range(1, steps):
                    if token in self._stop_ids and not observer.rule.ignore_eos:
                        break
                    if cancelled():
                        raise RequestCancelledError("cancelled during the draft's look-ahead")
                    ids = np.array([token], dtype=np.int32)
                    token = self._step(ids, step, len(prompt_ids), observer)
            except (RuntimeError, ValueError) as error:  # out of memory, or shapes refused
                raise EngineError(f"the draft failed: {error}") from error

    def close(self) -> None:
        """Release the cache and the engine."""
        with self._turn:
            self._cache = []
            self._session = None

    def _check_settings(self, settings: DraftSettings, selection: SelectionSettings) -> None:
        if settings.layers not in (None, self._config.layers):
            raise ConfigurationError(
                f"draft.layers: {settings.layers} but the draft engine was built with "
                f"{self._config.layers}"
            )
        if settings.attention_window is not None or settings.weights != "as_dtype":
            name = "weights" if settings.attention_window is None else "attention_window"
            raise ConfigurationError(
                f"draft.{name}: not for engine: tensorrt_llm, where the build fixes it"
            )
        rule = make_rule(selection)
        first, last = settings.score_layers or (0, -1)
        asked = {
            "draft.score_layers": set(range(first, last + 1)),
            "draft.score_heads": {layer for layer, _ in settings.score_heads or ()},
            "selection.single_layer": set() if rule.layer is None else {rule.layer},
        }
        exported = self._tensors.score_layers
        for field, layers in asked.items():
            missing = sorted(layers - set(exported))
            if missing:
                raise ConfigurationError(
                    f"{field}: layer {missing[0]} is not among those that the draft engine was "
                    f"built to score: {', '.join(map(str, exported))}"
                )
        if rule.prompt_queries > self._query_window:
            raise ConfigurationError(
                f"selection.query_window: {selection.query_window} but the draft engine was built "
                f"for at most {self._query_window}"
            )

    def _check_fits(self, length: int, steps: int, queries: int) -> None:
        if length > self.context_length or length + steps - 1 > self._config.max_seq_len:
            raise EngineError(
                f"the prompt has {length} tokens but the draft reads at most "
                f"{self.context_length}, and {self._config.max_seq_len} with its look-ahead"
            )
        if queries > self._query_window:
            raise EngineError(
                f"query_window {queries} is more than the {self._query_window} queries that the "
                "draft engine was built for"
            )

    def _reserve_cache(self, tokens: int) -> None:
        """Make every layer's cache hold at least `tokens` tokens."""
        if self._cache and self._cache[0].shape[3] >= tokens:
            return
        config = self._config
        capacity = min(-(-tokens // _CACHE_STEP) * _CACHE_STEP, config.max_seq_len)
        # The old cache goes first: both together may not fit.
        self._cache = []
        shape = (1, 2, config.kv_heads, capacity, config.head_size)
        self._cache = [
            torch.zeros(shape, dtype=self._tensors.cache_type, device=self._device)
            for _ in range(config.layers)
        ]

    def _step(
        self,
        token_ids: npt.NDArray[np.int32],
        step: int,
        prompt_length: int,
        observer: AttentionObserver,
    ) -> int:
        """Run the prompt (step 0) or one generated token; return the most likely next token.

        Args:
            token_ids: int32 [T]; all M prompt tokens, or one.
            step: index of the look-ahead step.
            prompt_length: M.
            observer: receives the step's queries and the prompt's keys.
        """
        queries = observer.prompt_queries if step == 0 else 1
        inputs = self._inputs(token_ids, step, prompt_length, queries)
        outputs = self._outputs(queries)
        self._session.set_shapes(inputs)
        handle = 0 if self._stream is None else self._stream.cuda_stream
        if not self._session.run(inputs, outputs, handle):
            raise EngineError("the draft failed: TensorRT did not run the engine")
        if self._stream is not None:
            # TensorRT reads the host inputs while it runs; they must live until it is done.
            self._stream.synchronize()
        heads, head_size = self._config.heads, self._config.head_size
        for layer in self._tensors.score_layers:
            if observer.wants(layer):
                rows = outputs[f"scoring_queries_{layer}"]  # [n, heads * d]
                observer.update(
                    layer,
                    step,
                    rows.view(queries, heads, head_size).transpose(0, 1),
                    self._cache[layer][0, 0, :, :prompt_length],
                    head_size**-0.5,
                )
        # Columns beyond the vocabulary are padding of the weights' rows.
        token = outputs["logits"][0, : self._config.vocab_size].argmax()
        # This waits for the stream, the observer's work included: its result is read elsewhere.
        return int(token)

    def _inputs(
        self, token_ids: npt.NDArray[np.int32], step: int, prompt_length: int, queries: int
    ) -> dict[str, torch.Tensor]:
        count = len(token_ids)
        length = prompt_length + step  # with the tokens of this step
        # Before this step; a context step gives its own length, as TensorRT-LLM's runtime does.
        past = prompt_length + max(step - 1, 0)
        capacity = self._cache[0].shape[3]
        start = length - count
        values: dict[str, Any] = {
            "input_ids": token_ids.copy(),  # torch warns of memory that it may not write
            "position_ids": torch.arange(start, length),
            "last_token_ids": [count],
            "context_lengths": [prompt_length],
            "sequence_length": [length],
            "cache_indirection": torch.zeros((1, 1, capacity), device=self._device),  # one beam
            "host_request_types": [min(step, 1)],  # 0 is context, 1 generation
            "host_past_key_value_lengths": [past],
            "host_context_lengths": [prompt_length],
            "host_max_attention_window_sizes": [capacity] * self._config.layers,
            "host_sink_token_length": [0],
            "host_runtime_perf_knobs": [1] + [-1] * 15,  # the first is the multi-block mode
            "host_context_progress": [0],
            "scoring_query_index": torch.arange(count - queries, count),
        }
        inputs = {}
        for name in self._tensors.step_inputs:
            device = torch.device("cpu") if name.startswith("host_") else self._device
            inputs[name] = torch.as_tensor(values[name], dtype=_STEP_INPUTS[name], device=device)
        for layer, cache in enumerate(self._cache):
            inputs[f"past_key_value_{layer}"] = cache
        return inputs

    def _outputs(self, queries: int) -> dict[str, torch.Tensor]:
        tensors = self._tensors
        width = self._config.heads * self._config.head_size
        outputs = {
            "logits": torch.empty(
                (1, tensors.logits_width), dtype=tensors.logits_type, device=self._device
            )
        }
        for layer in tensors.score_layers:
            outputs[f"scoring_queries_{layer}"] = torch.empty(
                (queries, width), dtype=tensors.query_type, device=self._device
            )
        # The same memory as the inputs: with another one TensorRT-LLM copies the cache each step.
        for layer, cache in enumerate(self._cache):
            outputs[f"present_key_value_{layer}"] = cache
        return outputs


class _EngineTensors:
    """The tensors that an engine reads and writes, checked against what the adapter fills.

    Attributes:
        step_inputs: names of the inputs, the cache left out.
        score_layers: layers whose queries the engine gives, ascending.
        cache_type: type of the cache's elements.
        query_type: type of the scoring queries.
        logits_type: type of the logits.
        logits_width: columns of the logits, at least the vocabulary's size.
    """

    def __init__(
        self, engine: Any, convert: Callable[[Any], torch.dtype], config: EngineConfig
    ) -> None:
        inputs: dict[str, torch.dtype] = {}
        outputs: dict[str, torch.dtype] = {}
        for index in range(engine.num_io_tensors):
            name = engine.get_tensor_name(index)
            side = inputs if engine.get_tensor_mode(name).name == "INPUT" else outputs
            side[name] = convert(engine.get_tensor_dtype(name))
        caches = [f"past_key_value_{layer}" for layer in range(config.layers)]
        presents = [f"present_key_value_{layer}" for layer in range(config.layers)]
        matches = [re.fullmatch(r"scoring_queries_(\d+)", name) for name in outputs]
        self.score_layers = sorted(int(match.group(1)) for match in matches if match)
        scoring = [f"scoring_queries_{layer}" for layer in self.score_layers]
        _check_names(
            "input", set(inputs), {*_STEP_INPUTS, *caches} - _OPTIONAL_INPUTS, _OPTIONAL_INPUTS
        )
        _check_names("output", set(outputs), {"logits", *presents, *scoring})
        if not scoring or self.score_layers[-1] >= config.layers:
            raise ConfigurationError(
                "the draft engine gives the scoring queries of no layer that it has"
            )
        self.step_inputs = [name for name in _STEP_INPUTS if name in inputs]
        self.cache_type = inputs[caches[0]]
        self.query_type = outputs[scoring[0]]
        self.logits_type = outputs["logits"]
        self.logits_width = int(tuple(engine.get_tensor_shape("logits"))[-1])
        if self.cache_type not in _CACHE_TYPES:
            raise ConfigurationError(
                f"the draft engine keeps its keys as {self.cache_type}; allowed: "
                f"{', '.join(map(str, _CACHE_TYPES))}"
            )
        for name in self.step_inputs:
            if inputs[name] != _STEP_INPUTS[name]:
                raise ConfigurationError(
                    f"the draft engine reads its input {name} as {inputs[name]}, not as "
                    f"{_STEP_INPUTS[name]}"
                )


def _check_names(
    kind: str, found: set[str], needed: set[str], optional: frozenset[str] = frozenset()
) -> None:
    """Refuse an engine that reads what nobody writes or writes what nobody takes."""
    unknown = sorted(found - needed - optional)
    if unknown:
        raise ConfigurationError(
            f"the draft engine has the {kind} {unknown[0]}, which is not known here; "
            "build it with the version of build_engines that belongs to this package"
        )
    missing = sorted(needed - found)
    if missing:
        raise ConfigurationError(f"the draft engine lacks the {kind} {missing[0]}")


def _cuda_device(setting: str) -> torch.device:
    """Return the configured device; its default, the CPU, is meant for torch engines."""
    device = torch.device(setting)
    if device.type != "cuda" and torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return device
