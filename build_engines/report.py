# SPDX-License-Identifier: Apache-2.0
"""A build plan, and what became of it, as tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from specprefill.memory_plan import GIB, MemoryPlan

from build_engines.plan import BuildPlan, EnginePlan, EngineTensor


@dataclass(frozen=True, slots=True)
class StepResult:
    """What became of one step.

    Attributes:
        name: the step.
        outcome: `done` or `already there`.
        seconds: how long it took.
    """

    name: str
    outcome: str
    seconds: float


def print_plan(console: Console, plan: BuildPlan) -> None:
    """Show engines, inputs and outputs, steps and memory."""
    console.print(_engine_table(plan))
    for engine in (plan.draft, plan.target):
        for rank in _ranks_to_show(engine):
            console.print(_tensor_table(engine, rank))
    console.print(_step_table(plan))
    console.print(_memory_table(plan))


def print_results(console: Console, results: Sequence[StepResult]) -> None:
    """Show what every step did and how long it took."""
    table = Table("step", "outcome", "seconds", title="Steps")
    for result in results:
        table.add_row(result.name, result.outcome, f"{result.seconds:.1f}")
    console.print(table)


def _ranks_to_show(engine: EnginePlan) -> list[int]:
    """Take one rank of every kind of pipeline stage: first, middle, last."""
    stages = sorted({0, min(1, engine.pp_size - 1), engine.pp_size - 1})
    return [stage * engine.tp_size for stage in stages]


def _engine_table(plan: BuildPlan) -> Table:
    table = Table("", "draft", "target", title="Engines")

    def row(name: str, draft: object, target: object) -> None:
        table.add_row(name, str(draft), str(target))

    engines = (plan.draft, plan.target)
    row("model", *(engine.model.folder for engine in engines))
    row("architecture", *(engine.model.architecture for engine in engines))
    shapes = [engine.model.shape for engine in engines]
    row("layers", *(shape.layers for shape in shapes))
    row("query heads", *(shape.query_heads for shape in shapes))
    row("key-value heads", *(shape.kv_heads for shape in shapes))
    row("head size", *(shape.head_size for shape in shapes))
    row("RoPE", *(f"{e.model.rope.rope_type}, theta {e.model.rope.theta:g}" for e in engines))
    row("weights", *(engine.weights for engine in engines))
    row("keys and values", *(_cache_words(engine) for engine in engines))
    row("tp x pp", *(f"{engine.tp_size} x {engine.pp_size}" for engine in engines))
    row("max_batch_size", *(engine.max_batch_size for engine in engines))
    row("max_input_len", *(engine.max_input_len for engine in engines))
    row("max_seq_len", *(engine.max_seq_len for engine in engines))
    row("max_num_tokens", *(engine.max_num_tokens for engine in engines))
    row("rotary embedding", "inside attention", "ExplicitRotary plugin, before attention")
    scored = plan.draft.score_layers
    row("scored layers", f"{scored[0]} to {scored[-1]}", "-")
    return table


def _cache_words(engine: EnginePlan) -> str:
    if engine.is_paged:
        return f"{engine.kv_cache}, blocks of {engine.tokens_per_block} tokens"
    return f"{engine.kv_cache}, contiguous"


def _tensor_table(engine: EnginePlan, rank: int) -> Table:
    title = f"{engine.name}/rank{rank}.engine"
    table = Table("tensor", "", "type", "shape", "memory", title=title)
    for tensor in _collapse_layers(engine.tensors(rank)):
        table.add_row(
            tensor.name,
            "in" if tensor.is_input else "out",
            tensor.dtype,
            f"({', '.join(str(size) for size in tensor.shape)})",
            "host" if tensor.on_host else "GPU",
        )
    return table


def _collapse_layers(tensors: Sequence[EngineTensor]) -> list[EngineTensor]:
    """Write tensors that exist once per layer as one row."""
    groups: dict[tuple[str, bool], list[EngineTensor]] = {}
    for tensor in tensors:
        stem, _, number = tensor.name.rpartition("_")
        name = stem if number.isdigit() else tensor.name
        groups.setdefault((name, tensor.is_input), []).append(tensor)
    rows = []
    for (stem, is_input), group in groups.items():
        first, last = group[0], group[-1]
        name = first.name
        if len(group) > 1:
            name = f"{stem}_{{{first.name.removeprefix(stem)[1:]}..{last.name.rpartition('_')[2]}}}"
        rows.append(EngineTensor(name, is_input, first.dtype, first.shape, first.on_host))
    return rows


def _step_table(plan: BuildPlan) -> Table:
    table = Table("step", "does", "makes", title=f"Steps in {plan.output}")
    for step in plan.steps():
        table.add_row(step.name, step.detail, step.output)
    table.add_row("manifest", "versions, digests, sizes, settings", "manifest.json")
    return table


def _memory_table(plan: BuildPlan) -> Table:
    table = Table("", title="Memory of one GPU by formula, GiB")
    columns: list[MemoryPlan] = [plan.gpu]
    table.add_column("with the draft" if plan.gpu.draft_weights else "target", justify="right")
    if plan.other_gpu is not None:
        columns.append(plan.other_gpu)
        table.add_column("other GPUs", justify="right")

    def row(name: str, attribute: str) -> None:
        sizes = [getattr(column, attribute) / GIB for column in columns]
        table.add_row(name, *(f"{size:.2f}" for size in sizes))

    row("total", "total")
    row("reserve", "reserve")
    row("target weights", "target_weights")
    row("target activations", "target_activations")
    row("draft weights", "draft_weights")
    row("draft activations", "draft_activations")
    row("draft keys and values", "draft_kv")
    row("target key-value pool", "pool")

    def count(name: str, attribute: str) -> None:
        table.add_row(name, *(str(getattr(column, attribute)) for column in columns))

    table.add_section()
    count("tokens in the pool", "pool_tokens")
    count("pruned sequences at once", "pruned_sequences")
    count("dense sequences at once", "dense_sequences")
    fraction = plan.gpu.kv_cache_free_gpu_memory_fraction
    table.add_row("kv_cache_free_gpu_memory_fraction", *([f"{fraction}"] * len(columns)))
    return table
