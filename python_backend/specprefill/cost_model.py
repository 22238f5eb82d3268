# SPDX-License-Identifier: Apache-2.0
"""The best time to first token that dense and sparse prefill can have on given machines.

Counts what has to be done: multiply-adds of linear layers over the tokens they run on, multiply-
adds of causal or windowed attention, and bytes of weights and keys that one pass reads. Divided by
rates they give seconds. The rates are either published peaks (`specprefill.gpus`, for planning) or
what the machine at hand does in plain matrix products, plain attention and plain reading
(`benchmarks.machine`): then `ideal` means every part at the rate of its best kernel, with nothing
between the parts. Tokenising, softmax over scores, selection, launches and communication are left
out, so a measured time is longer and a measured ratio usually smaller.

Attention has a rate of its own because on a CPU it runs at another one than matrix products, and
its share grows with the prompt: one common rate would put the ideal ratio wrong at long prompts.
The measured dense time is not taken as the yardstick of the sparse one, because a slow dense path
would then flatter the sparse.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from specprefill.memory_plan import ModelShape, linear_weights
from specprefill.settings import DraftSettings, SelectionSettings


@dataclass(frozen=True, slots=True)
class Rates:
    """What a machine does per second, for one number format.

    Attributes:
        linear: multiply-adds in linear layers.
        attention: multiply-adds in attention.
        bandwidth: bytes read from memory.
        weight_bytes: bytes of one weight of a linear layer.
        cache_bytes: bytes of one number of the keys and values.
    """

    linear: float
    attention: float
    bandwidth: float = math.inf
    weight_bytes: float = 2.0
    cache_bytes: float = 2.0

    def times(self, machines: int) -> Rates:
        """Return the rates of several machines that share all work evenly, without loss."""
        return replace(
            self,
            linear=self.linear * machines,
            attention=self.attention * machines,
            bandwidth=self.bandwidth * machines,
        )

    def in_fp8(self) -> Rates:
        """Return the rates with FP8 weights and keys: twice bfloat16's, in half the bytes."""
        return replace(
            self,
            linear=2 * self.linear,
            attention=2 * self.attention,
            weight_bytes=self.weight_bytes / 2,
            cache_bytes=self.cache_bytes / 2,
        )


@dataclass(frozen=True, slots=True)
class Pass:
    """What one run of a model over some tokens takes.

    Attributes:
        linear: multiply-adds in linear layers.
        attention: multiply-adds in attention.
        weights: weights of linear layers that are read.
        cached: numbers of keys and values that are read.
    """

    linear: float
    attention: float
    weights: float
    cached: float = 0.0

    def seconds(self, rates: Rates) -> float:
        """Return the time at these rates: computing and reading weights overlap."""
        read = self.weights * rates.weight_bytes + self.cached * rates.cache_bytes
        computed = self.linear / rates.linear + self.attention / rates.attention
        return max(computed, read / rates.bandwidth)


@dataclass(frozen=True, slots=True)
class DraftWork:
    """How much of the draft runs.

    Attributes:
        layers: whole layers that run over the prompt.
        partial_layer: one more layer runs up to its queries, keys and values: the last scored one,
            when no token is decoded.
        scored_layers: layers whose attention counts.
        queries: prompt queries per scored layer.
        look_ahead: N; N - 1 tokens are decoded.
        window: earlier tokens that a hidden state attends to, itself included; None: all.
        sinks: first tokens that it attends to besides.
    """

    layers: int
    partial_layer: bool = False
    scored_layers: int = 0
    queries: int = 1
    look_ahead: int = 1
    window: int | None = None
    sinks: int = 0


def draft_work(
    shape: ModelShape, settings: DraftSettings, prompt_queries: int, look_ahead: int
) -> DraftWork:
    """Read from a deployment how much of its draft runs, as `TorchDraft` does.

    Args:
        shape: the whole draft.
        settings: of the draft.
        prompt_queries: prompt queries of the scoring rule.
        look_ahead: N of the scoring rule; 1 decodes nothing.
    """
    loaded = settings.layers or shape.layers
    first, last = settings.score_layers or (0, loaded - 1)
    decodes = look_ahead > 1
    return DraftWork(
        layers=loaded if decodes else last,
        partial_layer=not decodes,
        scored_layers=last - first + 1,
        queries=prompt_queries,
        look_ahead=look_ahead,
        window=settings.attention_window,
        sinks=settings.sink_tokens if settings.attention_window else 0,
    )


def paper_work(shape: ModelShape, selection: SelectionSettings) -> DraftWork:
    """Return the paper's work: the whole draft, all layers scored, look-ahead decoded."""
    return draft_work(shape, DraftSettings(), 1, selection.look_ahead)


def attended_pairs(tokens: int, window: int | None = None, sinks: int = 0) -> float:
    """Count the (query, key) pairs of causal attention over n tokens.

    Args:
        tokens: n.
        window: a token sees itself and the window - 1 before it; None: all before it.
        sinks: first tokens that every token sees besides.
    """
    if window is None or tokens <= window + sinks:
        return tokens * (tokens + 1) / 2
    full = window + sinks
    return full * (full + 1) / 2 + float(tokens - full) * full


def prefill_pass(shape: ModelShape, tokens: int) -> Pass:
    """Count the prefill of n tokens and the logits of the last one.

    Args:
        shape: the model.
        tokens: n, all prompt tokens for a dense prefill, the kept ones for a sparse one.
    """
    weights = shape.layers * linear_weights(shape, 1)
    output = shape.vocabulary_size * shape.hidden_size
    width = shape.query_heads * shape.head_size
    return Pass(
        linear=float(weights) * tokens + output,
        attention=2.0 * shape.layers * width * attended_pairs(tokens),
        weights=weights + output,
    )


def draft_passes(shape: ModelShape, work: DraftWork, prompt_tokens: int) -> list[Pass]:
    """Count the draft's reading of the prompt and each token that it decodes.

    Args:
        shape: the whole draft.
        work: how much of it runs.
        prompt_tokens: M.
    """
    layer = linear_weights(shape, 1)
    width = shape.query_heads * shape.head_size
    weights = work.layers * layer
    if work.partial_layer:
        weights += shape.hidden_size * (width + 2 * shape.kv_heads * shape.head_size)
    pairs = attended_pairs(prompt_tokens, work.window, work.sinks)
    # Scoring multiplies queries with keys, and no values.
    scoring = float(work.scored_layers) * width * work.queries * prompt_tokens
    output = shape.vocabulary_size * shape.hidden_size if work.look_ahead > 1 else 0
    prompt = Pass(
        linear=float(weights) * prompt_tokens + output,
        attention=2.0 * work.layers * width * pairs + scoring,
        weights=weights + output,
    )
    cached = 2.0 * work.layers * shape.kv_heads * shape.head_size * prompt_tokens
    scoring = float(work.scored_layers) * width * prompt_tokens
    step = Pass(
        linear=float(weights + output),
        attention=2.0 * work.layers * width * prompt_tokens + scoring,
        weights=weights + output,
        cached=cached,
    )
    return [prompt, *[step] * (work.look_ahead - 1)]


@dataclass(frozen=True, slots=True)
class IdealTimes:
    """Best times to first token, in seconds.

    Attributes:
        dense: prefill of the whole prompt.
        draft: the draft's reading and decoding.
        sparse_prefill: prefill of the kept tokens.
    """

    dense: float
    draft: float
    sparse_prefill: float

    @property
    def sparse(self) -> float:
        """Draft and prefill of the kept tokens, one after the other."""
        return self.draft + self.sparse_prefill

    @property
    def ratio(self) -> float:
        """Dense over sparse."""
        return self.dense / self.sparse


def ideal_times(
    target: ModelShape,
    draft: ModelShape,
    work: DraftWork,
    prompt_tokens: int,
    kept_tokens: int,
    target_rates: Rates,
    draft_rates: Rates,
) -> IdealTimes:
    """Return the best times that a prompt can have.

    Args:
        target: shape of the target.
        draft: shape of the whole draft.
        work: how much of the draft runs.
        prompt_tokens: M.
        kept_tokens: K.
        target_rates: of what the target runs on.
        draft_rates: of what the draft runs on.
    """
    return IdealTimes(
        dense=prefill_pass(target, prompt_tokens).seconds(target_rates),
        draft=sum(one.seconds(draft_rates) for one in draft_passes(draft, work, prompt_tokens)),
        sparse_prefill=prefill_pass(target, kept_tokens).seconds(target_rates),
    )
