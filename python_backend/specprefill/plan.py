# SPDX-License-Identifier: Apache-2.0
"""`specprefill plan`: what a deployment can gain at best, and what it takes of each GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from specprefill.cost_model import DraftWork, IdealTimes, ideal_times, paper_work
from specprefill.errors import ConfigurationError, InvalidRequestError
from specprefill.gpus import GPUS, Gpu
from specprefill.memory_plan import (
    GIB,
    Load,
    MemoryPlan,
    ModelShape,
    kept_tokens_at_most,
    model_memory,
    plan_gpu,
    shape_of,
)
from specprefill.model_sources.shapes import PUBLISHED_SHAPES
from specprefill.settings import SelectionSettings

_KEEP_RATES = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7)
_RESERVE_GIB = 2
_NEW_TOKENS = 2048
_STEP_TOKENS = 16384
_BATCH_SIZE = 16


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What is to be planned.

    Attributes:
        target: published name, or a folder with a config.json.
        draft: the same.
        prompt_tokens: M.
        keep_rate: share of the prompt that is kept.
        gpu: name of a published GPU.
        gpus: how many share the target.
        draft_gpus: how many of them share the draft.
        fp8: the target's weights and keys are FP8.
        look_ahead: N; 1 decodes nothing (the `zscore` rule).
    """

    target: str
    draft: str
    prompt_tokens: int
    keep_rate: float
    gpu: str = "h100"
    gpus: int = 1
    draft_gpus: int = 1
    fp8: bool = False
    look_ahead: int = 8


def find_shape(model: str) -> ModelShape:
    """Return the shape of a published model, or of the one in a folder.

    Raises:
        ConfigurationError: neither a published name nor a folder with a readable config.json.
    """
    published = PUBLISHED_SHAPES.get(model.lower().removeprefix("shape:"))
    if published is not None:
        return published
    folder = Path(model).expanduser()
    if not (folder / "config.json").is_file():
        raise ConfigurationError(
            f"model: {model!r} is neither a folder with a config.json nor one of: "
            f"{', '.join(sorted(PUBLISHED_SHAPES))}"
        )
    return shape_of(folder)


def plan_times(request: PlanRequest, keep_rate: float) -> IdealTimes:
    """Return the best times of a plan at one keep rate, at the GPU's published peak rates.

    Raises:
        InvalidRequestError: a value is out of range.
        ConfigurationError: a model is not known.
    """
    gpu = _checked_gpu(request)
    draft = find_shape(request.draft)
    rates = gpu.rates.times(request.gpus)
    return ideal_times(
        find_shape(request.target),
        draft,
        _work(draft, request),
        request.prompt_tokens,
        max(1, round(keep_rate * request.prompt_tokens)),
        rates.in_fp8() if request.fp8 else rates,
        gpu.rates.times(request.draft_gpus),
    )


def plan_memory(request: PlanRequest) -> MemoryPlan:
    """Divide the GPU that holds the draft beside its share of the target.

    Raises:
        ConfigurationError: it does not fit; says every number.
    """
    gpu = _checked_gpu(request)
    selection = SelectionSettings(keep_rate=request.keep_rate)
    kept = kept_tokens_at_most(request.prompt_tokens, selection)
    load = Load(request.prompt_tokens, kept, _NEW_TOKENS, look_ahead=request.look_ahead)
    target = model_memory(
        find_shape(request.target),
        step_tokens=min(request.prompt_tokens, _STEP_TOKENS),
        batch_size=_BATCH_SIZE,
        weights="fp8" if request.fp8 else "bfloat16",
        kv_cache="fp8" if request.fp8 else "bfloat16",
        tp_size=request.gpus,
    )
    draft = model_memory(
        find_shape(request.draft),
        step_tokens=request.prompt_tokens,
        batch_size=1,
        tp_size=request.draft_gpus,
    )
    return plan_gpu(
        total=int(gpu.memory_gib * GIB),
        reserve=_RESERVE_GIB * GIB,
        target=target,
        draft=draft,
        load=load,
    )


def render(request: PlanRequest) -> Iterator[Table | str]:
    """Yield the tables and lines of `specprefill plan`.

    Raises:
        InvalidRequestError: a value is out of range.
        ConfigurationError: a model is not known.
    """
    title = (
        f"{request.target} ({'FP8' if request.fp8 else 'bfloat16'}, {request.gpus} x {request.gpu})"
        f" with {request.draft} (bfloat16, {request.draft_gpus} x {request.gpu}), "
        f"prompt of {request.prompt_tokens} tokens"
    )
    yield f"[bold]{title}[/]"
    times = Table(title="Time to first token, at best")
    for column in ("keep rate", "dense", "draft", "target, kept tokens", "sparse", "ratio"):
        times.add_column(column, justify="right")
    for keep_rate in sorted({*_KEEP_RATES, request.keep_rate}):
        ideal = plan_times(request, keep_rate)
        cells = (ideal.dense, ideal.draft, ideal.sparse_prefill, ideal.sparse)
        style = "bold" if keep_rate == request.keep_rate else ""
        times.add_row(
            f"{keep_rate:.0%}",
            *(f"{seconds * 1e3:.0f} ms" for seconds in cells),
            f"{ideal.ratio:.2f}",
            style=style,
        )
    yield times
    yield (
        "By published peak rates, without launches and communication: real times are often twice "
        "as long, the ratio is what holds best. The ratios that the paper measured lie less than "
        "10 % below it (docs/benchmarks.md)."
    )
    try:
        memory = plan_memory(request)
    except ConfigurationError as error:
        yield f"[yellow]It does not fit:[/] {error}"
        return
    yield _memory_table(memory, request)


def _memory_table(memory: MemoryPlan, request: PlanRequest) -> Table:
    table = Table(title="Memory of the GPU that holds the draft too")
    table.add_column("part")
    table.add_column("size", justify="right")
    for label, size in (
        ("GPU", memory.total),
        ("reserve", memory.reserve),
        ("target weights", memory.target_weights),
        ("target activations", memory.target_activations),
        ("draft weights", memory.draft_weights),
        ("draft activations", memory.draft_activations),
        ("draft keys and values", memory.draft_kv),
        ("target keys and values (pool)", memory.pool),
    ):
        table.add_row(label, f"{size / GIB:.1f} GiB")
    table.add_row("dense prompts in the pool", str(memory.dense_sequences))
    table.add_row(f"prompts kept to {request.keep_rate:.0%}", str(memory.pruned_sequences))
    return table


def _work(draft: ModelShape, request: PlanRequest) -> DraftWork:
    return paper_work(draft, SelectionSettings(look_ahead=request.look_ahead))


def _checked_gpu(request: PlanRequest) -> Gpu:
    gpu = GPUS.get(request.gpu.lower())
    if gpu is None:
        raise InvalidRequestError("gpu", f"got {request.gpu!r}", ", ".join(sorted(GPUS)))
    if request.fp8 and not gpu.has_fp8:
        raise InvalidRequestError("fp8", f"{request.gpu} has no FP8", "another gpu, or no fp8")
    if request.prompt_tokens < 1:
        raise InvalidRequestError("prompt", f"got {request.prompt_tokens}", "integer from 1")
    if not 0 < request.keep_rate <= 1:
        raise InvalidRequestError("keep", f"got {request.keep_rate}", "above 0, up to 1")
    if not 1 <= request.look_ahead <= 64:
        raise InvalidRequestError("look_ahead", f"got {request.look_ahead}", "from 1 to 64")
    for field, model, gpus in (
        ("gpus", request.target, request.gpus),
        ("draft_gpus", request.draft, request.draft_gpus),
    ):
        heads = find_shape(model).query_heads
        if gpus < 1 or heads % gpus:
            raise InvalidRequestError(field, f"got {gpus}", f"a divisor of {heads} query heads")
    if request.draft_gpus > request.gpus:
        raise InvalidRequestError(
            "draft_gpus", f"got {request.draft_gpus}", f"up to gpus, {request.gpus}"
        )
    return gpu
