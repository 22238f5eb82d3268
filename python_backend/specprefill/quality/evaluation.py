# SPDX-License-Identifier: Apache-2.0
"""Evaluation: choose samples, run the variants on them, keep the outcomes."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from specprefill.embedded_model import resolve_model
from specprefill.errors import ConfigurationError
from specprefill.model_folder import read_config
from specprefill.quality import longbench, ruler
from specprefill.quality.cache import Cache
from specprefill.quality.endpoint import Endpoint
from specprefill.quality.outcome import Outcome
from specprefill.quality.runner import Runner
from specprefill.quality.sample import Sample
from specprefill.quality.variant import Variant, read_variants
from specprefill.settings import Settings
from specprefill.tokenizer import load_tokenizer

# Tells how many of all outcomes are there, and of what comes next.
Report = Callable[[int, int, str], None]


class _Answerer(Protocol):
    def run(self, sample: Sample, variants: Sequence[Variant]) -> Iterator[Outcome]: ...


@dataclass(frozen=True, slots=True)
class Options:
    """What to evaluate.

    Attributes:
        suite: `ruler` generates prompts, `longbench` reads them from a folder.
        variants: as `read_variants` takes them.
        samples: per class and length, or per data set; None takes all of a data set.
        lengths: prompt tokens of generated prompts.
        classes: classes or data sets; none means all.
        seed: of generated prompts.
        data: LongBench folder.
        max_prompt_tokens: longer LongBench prompts lose their middle; None takes the model's
            context, less the answer.
        base_url: ask an OpenAI-compatible gateway in place of engines in this process.
        model: the gateway's model name.
        output: folder of the results and of what later runs can go on from.
    """

    suite: str = "ruler"
    variants: tuple[str, ...] = ("scorers",)
    samples: int | None = None
    lengths: tuple[int, ...] = (1024, 2048)
    classes: tuple[str, ...] = ()
    seed: int = 0
    data: Path | None = None
    max_prompt_tokens: int | None = None
    base_url: str | None = None
    model: str = "specprefill"
    output: Path = Path("build/quality")


DEFAULT_SAMPLES = 4
# Longest published LongBench answer, and room for a chat template.
_ANSWER_AND_TEMPLATE_TOKENS = 512 + 128


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What was run, and what came of it.

    Attributes:
        options: what was asked for.
        outcomes: all of them.
        machine: what it ran on.
        path: the JSON file that holds the same.
    """

    options: dict[str, Any]
    outcomes: list[Outcome]
    machine: str
    path: Path


def evaluate(settings: Settings, options: Options, report: Report) -> Evaluation:
    """Run an evaluation; a second one with the same output folder goes on from the first.

    Raises:
        SpecPrefillError: options, data or models that do not work.
    """
    variants = read_variants(options.variants, settings)
    samples = read_samples(settings, options)
    answerer: _Answerer
    if options.base_url is None:
        answerer = Runner(settings, Cache(options.output / "cache"))
    else:
        answerer = Endpoint(options.base_url, options.model)
    total = len(samples) * (len(variants) + 1)
    outcomes: list[Outcome] = []
    for sample in samples:
        report(len(outcomes), total, sample.name)
        for outcome in answerer.run(sample, variants):
            outcomes.append(outcome)
            report(len(outcomes), total, f"{sample.name}, {outcome.variant}")
    path = result_path(options)
    described = {
        name: str(value) if isinstance(value, Path) else value
        for name, value in dataclasses.asdict(options).items()
    }
    evaluation = Evaluation(described, outcomes, _machine(settings), path)
    _write(evaluation)
    return evaluation


def result_path(options: Options) -> Path:
    """Return where an evaluation's results go; named after its suite and variants."""
    names = ["inline" if "=" in name else Path(name).stem for name in options.variants]
    return options.output / f"{'-'.join((options.suite, *dict.fromkeys(names)))}.json"


def read_evaluation(path: Path) -> Evaluation:
    """Read what `evaluate` wrote.

    Raises:
        ConfigurationError: no such file, or none of ours.
    """
    try:
        stored = json.loads(path.read_text())
        outcomes = [Outcome(**outcome) for outcome in stored["outcomes"]]
        options, machine = dict(stored["options"]), str(stored["machine"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(f"results {path}: {error}") from error
    return Evaluation(options, outcomes, machine, path)


def read_samples(settings: Settings, options: Options) -> list[Sample]:
    """Generate or read the samples; raises ConfigurationError."""
    folder = resolve_model(settings.target.model)
    tokenizer = load_tokenizer(folder, settings.trust_remote_code)
    if options.suite == "ruler":
        tasks = options.classes or tuple(ruler.TASKS)
        per_cell = DEFAULT_SAMPLES if options.samples is None else options.samples
        return ruler.generate_samples(tokenizer, options.lengths, per_cell, tasks, options.seed)
    if options.suite != "longbench":
        raise ConfigurationError(f"suite: got {options.suite!r}; allowed: ruler, longbench")
    if options.data is None:
        raise ConfigurationError("data: the suite longbench needs the folder of its JSONL files")
    limit = options.max_prompt_tokens
    if limit is None:
        config = read_config(folder, settings.trust_remote_code)
        limit = max(1, int(config.max_position_embeddings) - _ANSWER_AND_TEMPLATE_TOKENS)
    return longbench.load_samples(options.data, options.classes, options.samples, tokenizer, limit)


def _write(evaluation: Evaluation) -> None:
    evaluation.path.parent.mkdir(parents=True, exist_ok=True)
    stored = {
        "options": evaluation.options,
        "machine": evaluation.machine,
        "outcomes": [dataclasses.asdict(outcome) for outcome in evaluation.outcomes],
    }
    evaluation.path.write_text(json.dumps(stored, indent=1))


def _machine(settings: Settings) -> str:
    import torch

    threads = settings.threads or torch.get_num_threads()
    device = settings.target.device
    where = f"{platform.machine()}, {os.cpu_count()} cores, {threads} threads"
    return f"{device} ({where}), torch {torch.__version__}"
