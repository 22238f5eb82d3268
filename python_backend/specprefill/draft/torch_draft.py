# SPDX-License-Identifier: Apache-2.0
"""TorchDraft: any Hugging Face causal LM as the draft."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from specprefill.draft.base import DraftEngine
from specprefill.errors import ConfigurationError, EngineError, RequestCancelledError
from specprefill.observer import AttentionObserver
from specprefill.settings import DraftSettings
from specprefill.torch_engine.causal_lm import attention, load_causal_lm, stop_token_ids
from specprefill.torch_engine.few_rows_linear import speed_up_few_rows
from specprefill.torch_engine.int8_linear import quantize_linears
from specprefill.torch_engine.kernels import causal_attention, windowed_attention
from specprefill.torch_engine.kv_cache import KVCache

# Activations of a chunk this long stay in the processor's cache; longer ones are slower.
_CHUNK_TOKENS = 1024


class _LastLayerReached(Exception):  # noqa: N818 - a signal, not an error
    """Nothing after this layer's keys and queries is needed."""


class TorchDraft(DraftEngine):
    """A draft that reads the prompt in chunks and frees its keys and values afterwards."""

    def __init__(
        self, folder: str | Path, settings: DraftSettings, trust_remote_code: bool = False
    ) -> None:
        """Load the draft.

        Raises:
            ConfigurationError: the folder or the settings do not fit together.
        """
        self._settings = settings
        self._model = load_causal_lm(
            folder, settings.dtype, settings.device, settings.layers, trust_remote_code
        )
        self._layers: int = self._model.config.num_hidden_layers
        if settings.score_layers is not None and settings.score_layers[1] >= self._layers:
            raise ConfigurationError(
                f"draft.score_layers ends at layer {settings.score_layers[1]} but the draft has "
                f"{self._layers} layers"
            )
        for layer, head in settings.score_heads or ():
            heads = int(self._model.config.num_attention_heads)
            if layer >= self._layers or head >= heads:
                raise ConfigurationError(
                    f"draft.score_heads: [{layer}, {head}] but the draft has {self._layers} layers "
                    f"of {heads} heads"
                )
        if settings.weights == "int8":
            quantize_linears(self._model)
        speed_up_few_rows(self._model)
        self._stop_ids = stop_token_ids(self._model)

    @property
    def context_length(self) -> int:
        """Most prompt tokens that the draft can read."""
        return int(self._model.config.max_position_embeddings)

    @torch.inference_mode()
    def observe(
        self,
        prompt_ids: npt.NDArray[np.int32],
        observer: AttentionObserver,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        """Read the prompt and its look-ahead; see `DraftEngine.observe`."""
        if len(prompt_ids) > self.context_length:
            raise EngineError(
                f"the prompt has {len(prompt_ids)} tokens but the draft reads at most "
                f"{self.context_length}"
            )
        reading = _Reading(self._model, self._settings, self._layers, observer, len(prompt_ids))
        tokens = torch.from_numpy(np.asarray(prompt_ids, dtype=np.int64)).to(self._settings.device)
        try:
            token = reading.prompt(tokens, cancelled)
            for step in range(1, observer.rule.look_ahead):
                if int(token) in self._stop_ids and not observer.rule.ignore_eos:
                    break
                if cancelled():
                    raise RequestCancelledError("cancelled during the draft's look-ahead")
                token = reading.look_ahead(token, step)
        except RuntimeError as error:  # out of memory, or a kernel that failed
            raise EngineError(f"the draft failed: {error}") from error


class _Reading:
    """One pass of the draft over one prompt."""

    def __init__(
        self,
        model: Any,
        settings: DraftSettings,
        layers: int,
        observer: AttentionObserver,
        prompt_length: int,
    ) -> None:
        self._model = model
        self._settings = settings
        self._observer = observer
        self._prompt_length = prompt_length
        self._cache = KVCache(prompt_length + observer.rule.look_ahead - 1)
        self._step = 0
        self._last_layer: int | None = None
        wanted = observer.wanted_of(range(layers))
        if observer.rule.look_ahead == 1:
            self._last_layer = wanted[-1]

    def prompt(self, tokens: torch.Tensor, cancelled: Callable[[], bool]) -> torch.Tensor:
        """Read all prompt tokens; return the most likely next token, int64 [1]."""
        token = tokens[:0]
        # Chunks of equal size, so that the last one always holds every scoring query.
        for chunk in tokens.tensor_split(-(-len(tokens) // _CHUNK_TOKENS)):
            if cancelled():
                raise RequestCancelledError("cancelled while the draft read the prompt")
            token = self._forward(chunk)
        return token

    def look_ahead(self, token: torch.Tensor, step: int) -> torch.Tensor:
        """Decode one token; return the next, int64 [1]."""
        self._step = step
        return self._forward(token)

    def _forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Run tokens [n] at the cache's end; return the most likely next token, int64 [1]."""
        start = self._cache.length
        positions = torch.arange(start, start + len(tokens), device=tokens.device)
        try:
            with attention(self._attend):
                output = self._model(
                    input_ids=tokens[None],
                    position_ids=positions[None],
                    use_cache=False,
                    logits_to_keep=1,
                )
        except _LastLayerReached:
            self._cache.advance(len(tokens))
            return tokens[:0]
        self._cache.advance(len(tokens))
        return output.logits[0, -1].argmax(dim=-1, keepdim=True)

    def _attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scaling: float,
        sliding_window: int | None,
    ) -> torch.Tensor:
        keys, values = self._cache.append(layer, key, value)
        if keys.shape[1] >= self._prompt_length:
            queries = query[:, -self._observer.prompt_queries :] if self._step == 0 else query
            prompt_keys = keys[:, : self._prompt_length]
            self._observer.update(layer, self._step, queries, prompt_keys, scaling)
        if layer == self._last_layer:
            raise _LastLayerReached
        window, sinks = self._settings.attention_window, self._settings.sink_tokens
        if window is None and sliding_window is not None:
            window, sinks = sliding_window, 0
        if window is None or query.shape[1] == 1:
            return causal_attention(query, keys, values, scaling)
        return windowed_attention(query, keys, values, scaling, window, sinks)
