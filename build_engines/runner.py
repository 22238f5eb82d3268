# SPDX-License-Identifier: Apache-2.0
"""Carries out a plan: every step once, and again only if what it was made from has changed."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from specprefill.errors import ConfigurationError
from specprefill.settings import Settings
from specprefill.tokenizer import check_same_tokenizer, load_tokenizer

from build_engines import engines
from build_engines.digest import file_digest, folder_digest, value_digest
from build_engines.isolation import Isolation, run_in_own_process
from build_engines.plan import SCORING_QUERY_ROOM, BuildPlan, EnginePlan, Step
from build_engines.report import StepResult
from build_engines.source_model import SourceModel, check_path, stage_model_folder

MANIFEST_FORMAT = 1


@dataclass(frozen=True, slots=True)
class _Work:
    """One step with what it depends on.

    Attributes:
        step: its name and place.
        inputs: everything whose change makes it run again.
        run: does it.
    """

    step: Step
    inputs: Mapping[str, Any]
    run: Callable[[], None]


def check_inputs(plan: BuildPlan, settings: Settings) -> None:
    """Check the files that a build needs, before any GPU time is spent.

    Args:
        plan: the plan.
        settings: the deployment.

    Raises:
        ConfigurationError: weights, tokenizer or calibration texts are missing, or the tokenizers
            differ.
    """
    for engine in (plan.draft, plan.target):
        folder = engine.model.folder
        check_path(folder, f"{engine.name}.model")
        if engine.checkpoint is None and not any(folder.glob("*.safetensors")):
            raise ConfigurationError(
                f"{engine.name}.model: {folder} has no *.safetensors; allowed: a Hugging Face "
                "folder with weights"
            )
        if engine.needs_calibration:
            _check_calibration(settings.build.calibration_dataset, engine)
    if not settings.draft.cross_family:
        draft = load_tokenizer(plan.draft.model.folder)
        check_same_tokenizer(draft, load_tokenizer(plan.target.model.folder))


def _check_calibration(dataset: str | None, engine: EnginePlan) -> None:
    if dataset is None or not Path(dataset).is_dir():
        raise ConfigurationError(
            f"build.calibration_dataset: got {dataset}; allowed: a folder of texts, because the "
            f"{engine.name} has to be quantised to FP8 (or give weights that are FP8 already)"
        )


def build_all(
    plan: BuildPlan,
    settings: Settings,
    versions: Mapping[str, str],
    console: Console,
    isolate: Isolation = run_in_own_process,
) -> list[StepResult]:
    """Do every step that is not done yet, then write the manifest.

    Args:
        plan: the plan, whose inputs were checked.
        settings: the deployment.
        versions: of what builds.
        console: shows the step at work and the time it took.
        isolate: calls a function with arguments, in a process of its own unless told otherwise.

    Returns:
        What became of every step.

    Raises:
        SpecPrefillError: a step failed; the steps before it are kept.
    """
    records = plan.output / "work" / "steps"
    records.mkdir(parents=True, exist_ok=True)
    digests = {
        engine.name: folder_digest(engine.checkpoint or engine.model.folder)
        for engine in (plan.draft, plan.target)
    }
    results = []
    for work in _works(plan, settings, versions, digests, isolate):
        results.append(_do(work, plan.output, records, console))
    _remove_engines_of_other_ranks(plan)
    _write_manifest(plan, settings, versions, digests)
    return results


def _remove_engines_of_other_ranks(plan: BuildPlan) -> None:
    """Leave no engine of an earlier build with more ranks beside the ones of this build."""
    for engine in (plan.draft, plan.target):
        wanted = {f"rank{rank}.engine" for rank in range(engine.world_size)}
        for file in (plan.output / engine.name).glob("rank*.engine"):
            if file.name not in wanted:
                file.unlink()


def _do(work: _Work, output: Path, records: Path, console: Console) -> StepResult:
    name = work.step.name
    record_file, made = records / f"{name}.json", output / work.step.output
    record = {"inputs": value_digest(work.inputs), "output": work.step.output}
    if made.exists() and _read_record(record_file) == record:
        console.print(f"[green]already there[/green] {name}")
        return StepResult(name, "already there", 0.0)
    # Without its manifest a folder is not served, whatever happens from here on.
    (output / "manifest.json").unlink(missing_ok=True)
    record_file.unlink(missing_ok=True)
    started = time.monotonic()
    status = console.status(f"{name}: {work.step.detail}") if console.is_terminal else nullcontext()
    with status:
        work.run()
    seconds = time.monotonic() - started
    record_file.write_text(json.dumps(record) + "\n")
    console.print(f"[green]done[/green] {name} in {seconds:.1f} s")
    return StepResult(name, "done", seconds)


def _read_record(file: Path) -> Any:
    try:
        return json.loads(file.read_text())
    except (OSError, ValueError):
        return None


def _works(
    plan: BuildPlan,
    settings: Settings,
    versions: Mapping[str, str],
    digests: Mapping[str, str],
    isolate: Isolation,
) -> list[_Work]:
    works = []
    plugin = file_digest(Path(versions["plugin"]))
    for step in plan.steps():
        kind, name = step.name.split("_")[:2]
        engine = plan.draft if name == "draft" else plan.target
        inputs: dict[str, Any] = {
            "source": digests[name],
            "layers": engine.model.shape.layers,
            "rope": asdict(engine.model.rope),
        }
        if kind != "stage":
            inputs.update(_quantization_inputs(engine, settings))
            inputs["tensorrt_llm"] = versions["tensorrt_llm"]
        if kind == "build":
            inputs.update(_describe(engine), plugin=plugin, tensorrt=versions["tensorrt"])
            inputs["query_window"] = settings.selection.query_window if engine.score_layers else 0
        action = _action(kind, step, engine, plan.output, settings, isolate)
        works.append(_Work(step, inputs, action))
    return works


def _quantization_inputs(engine: EnginePlan, settings: Settings) -> dict[str, Any]:
    """List what a checkpoint depends on: nothing that only the engine's sizes depend on."""
    build = settings.build
    calibration = (build.calibration_dataset, build.calibration_samples, build.calibration_tokens)
    return {
        "weights": engine.weights,
        "kv_cache": engine.kv_cache,
        "tp_size": engine.tp_size,
        "pp_size": engine.pp_size,
        "calibration": calibration if engine.needs_calibration else None,
    }


def _action(
    kind: str,
    step: Step,
    engine: EnginePlan,
    output: Path,
    settings: Settings,
    isolate: Isolation,
) -> Callable[[], None]:
    work = output / "work"
    staged = work / f"{engine.name}_model"
    quantized = work / f"{engine.name}_checkpoint"
    if kind == "stage":
        return lambda: stage_model_folder(engine.model, staged)
    if kind == "quantize":
        return lambda: isolate(engines.quantize, engine, staged, quantized, settings.build)
    rank = int(step.name.rpartition("rank")[2])
    source = engine.checkpoint or (quantized if engine.needs_calibration else staged)
    window = settings.selection.query_window
    return lambda: isolate(
        engines.build_and_check, engine, rank, source, output / engine.name, window, work
    )


def _describe(engine: EnginePlan) -> dict[str, Any]:
    return {
        "architecture": engine.model.architecture,
        "layers": engine.model.shape.layers,
        "weights": engine.weights,
        "kv_cache": engine.kv_cache,
        "tp_size": engine.tp_size,
        "pp_size": engine.pp_size,
        "max_batch_size": engine.max_batch_size,
        "max_input_len": engine.max_input_len,
        "max_seq_len": engine.max_seq_len,
        "max_num_tokens": engine.max_num_tokens,
        "tokens_per_block": engine.tokens_per_block,
        "score_layers": list(engine.score_layers),
        "max_scoring_queries": SCORING_QUERY_ROOM if engine.score_layers else 0,
    }


def model_facts(model: SourceModel, digest: str) -> dict[str, Any]:
    """Describe a source for the manifest."""
    return {"folder": str(model.folder), "digest": digest, "rope": asdict(model.rope)}


def _write_manifest(
    plan: BuildPlan,
    settings: Settings,
    versions: Mapping[str, str],
    digests: Mapping[str, str],
) -> None:
    scored = plan.draft.score_layers
    files = {}
    for engine in (plan.draft, plan.target):
        folder = plan.output / engine.name
        for file in sorted(folder.glob("*")):
            name = f"{engine.name}/{file.name}"
            files[name] = {"bytes": file.stat().st_size, "digest": file_digest(file)}
    plugin = Path(versions["plugin"])
    manifest = {
        "format": MANIFEST_FORMAT,
        "versions": {**versions, "python": platform.python_version()},
        "plugin_digest": file_digest(plugin),
        "score_layers": [scored[0], scored[-1]],
        "query_window": SCORING_QUERY_ROOM,
        # Positions that the target's rotary table has; its cache is bounded by max_seq_len.
        "context_length": plan.target.model.shape.max_positions,
        "max_prompt_tokens": plan.target.max_input_len,
        "kv_cache_free_gpu_memory_fraction": plan.gpu.kv_cache_free_gpu_memory_fraction,
        "draft": {
            **_describe(plan.draft),
            "source": model_facts(plan.draft.model, digests["draft"]),
        },
        "target": {
            **_describe(plan.target),
            "source": model_facts(plan.target.model, digests["target"]),
        },
        "files": files,
        "memory": asdict(plan.gpu),
        "settings": settings.model_dump(mode="json"),
    }
    partial = plan.output / "manifest.json.partial"
    partial.write_text(json.dumps(manifest, indent=2) + "\n")
    partial.replace(plan.output / "manifest.json")
