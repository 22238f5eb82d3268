# SPDX-License-Identifier: Apache-2.0
"""Finds the draft's retrieval heads on generated prompts whose answers' places are known."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from specprefill.embedded_model import resolve_model
from specprefill.engines import make_draft, make_prompt_encoder, speculator_of
from specprefill.errors import ConfigurationError, EngineError
from specprefill.prompt import Prompt
from specprefill.quality.evidence import evidence_mask
from specprefill.quality.head_observer import HeadObserver
from specprefill.quality.ruler import generate_samples
from specprefill.quality.sample import Sample
from specprefill.scoring import make_rule
from specprefill.selection import protected_mask
from specprefill.settings import DraftSettings, SelectionSettings, Settings, load_settings
from specprefill.tokenizer import load_tokenizer

# Heads are chosen on the first, and must not get worse on the second: other texts, other questions.
CALIBRATION_TASKS = ("niah_single", "niah_multi_key")
HELD_OUT_TASKS = ("niah_multi_value", "qa_prose", "qa_config", "qa_table")

Head = tuple[int, int]
Report = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class Calibration:
    """What a calibration found.

    Attributes:
        reciprocal_rank: mean reciprocal rank of the answer's chunk by (layer, head).
        recall: mean share of the answer within the kept chunks by (layer, head).
        heads: the chosen (layer, head) pairs, ascending.
        before: class -> share of the answer's tokens kept with the heads that counted so far.
        after: the same with the chosen heads.
        keep_rate: the keep rate that recall, before and after were taken at.
        all_layers: layers outside the configured score_layers were looked at as well.
    """

    reciprocal_rank: dict[Head, float]
    recall: dict[Head, float]
    heads: tuple[Head, ...]
    before: dict[str, float]
    after: dict[str, float]
    keep_rate: float
    all_layers: bool

    @property
    def holds(self) -> bool:
        """Whether the held-out classes, taken together, are at least as good as before."""
        after, before = (
            statistics.fmean(kept[task] for task in HELD_OUT_TASKS)
            for kept in (self.after, self.before)
        )
        return after >= before


def calibrate(
    settings: Settings,
    report: Report,
    heads: int = 16,
    samples: int = 4,
    lengths: Sequence[int] = (1024, 2048),
    all_layers: bool = False,
    seed: int = 1,
) -> Calibration:
    """Choose the heads that rank the answer's chunk best, and try them on other prompts.

    Args:
        settings: the deployment; its scorer, chunk size and keep rate are used as they are.
        report: told how many of all readings are done, and which is next.
        heads: how many to choose.
        samples: prompts per class and length.
        lengths: prompt tokens.
        all_layers: look at every loaded layer, not only at draft.score_layers.
        seed: of the prompts.

    Raises:
        ConfigurationError: the deployment's scorer reads no attention or only one layer, or its
            engine is not of torch.
    """
    rule = make_rule(settings.selection)
    if not rule.needs_draft or rule.layer is not None:
        raise ConfigurationError(
            f"selection.scorer: {rule.name} does not use score_heads; allowed: lookahead, zscore, "
            "window"
        )
    if settings.engine != "torch":
        raise ConfigurationError("engine: calibrate runs on torch; calibrate there, copy the heads")
    tokenizer = load_tokenizer(resolve_model(settings.target.model), settings.trust_remote_code)
    encoder = make_prompt_encoder(settings)
    # Every prompt counts here, however short.
    selection = settings.selection.for_request({"min_prompt_tokens": 0})
    draft = make_draft(settings)
    layers = None if all_layers else settings.draft.score_layers
    tasks = (*CALIBRATION_TASKS, *HELD_OUT_TASKS)
    prompts = generate_samples(tokenizer, lengths, samples, tasks, seed)
    chosen_from = [sample for sample in prompts if sample.task in CALIBRATION_TASKS]
    total, done = len(chosen_from) + 2 * len(prompts), 0

    observers = []
    for sample in chosen_from:
        report(done, total, f"heads on {sample.name}")
        prompt, evidence = _encode(sample, encoder, tokenizer, selection)
        protected = protected_mask(
            len(evidence), selection.protect_first, selection.protect_last, prompt.protected
        )
        if not (evidence & ~protected).any():
            raise EngineError(f"sample {sample.name}: its answer is protected; use longer prompts")
        observer = HeadObserver(selection, evidence, protected, layers)
        draft.observe(prompt.token_ids, observer)
        observers.append(observer)
        done += 1
    reciprocal_rank = _mean([observer.reciprocal_rank for observer in observers])
    order = sorted(reciprocal_rank, key=lambda head: (-reciprocal_rank[head], head))
    chosen = tuple(sorted(order[:heads]))

    kept: list[dict[str, float]] = []
    for name, trial in (
        ("before", settings),
        ("after", with_heads(settings, chosen, all_layers)),
    ):
        speculator = speculator_of(draft, trial)
        shares: dict[str, list[float]] = {}
        for sample in prompts:
            report(done, total, f"{name} on {sample.name}")
            prompt, evidence = _encode(sample, encoder, tokenizer, selection)
            speculation = speculator.speculate(prompt, selection)
            if speculation.draft_failed:
                raise EngineError(speculation.selection.reason)
            share = evidence[speculation.selection.kept].sum() / evidence.sum()
            shares.setdefault(sample.task, []).append(float(share))
            done += 1
        kept.append({task: statistics.fmean(values) for task, values in shares.items()})
    report(total, total, "done")
    return Calibration(
        reciprocal_rank,
        _mean([observer.recall for observer in observers]),
        chosen,
        kept[0],
        kept[1],
        selection.keep_rate,
        all_layers,
    )


def with_heads(settings: Settings, heads: Sequence[Head], all_layers: bool) -> Settings:
    """Return settings in which the given heads count, and with all_layers nothing else decides."""
    values = {**settings.draft.model_dump(), "score_heads": tuple(heads)}
    if all_layers:
        values["score_layers"] = None
    return settings.model_copy(update={"draft": DraftSettings.model_validate(values)})


def write_heads(path: Path, calibration: Calibration) -> None:
    """Set draft.score_heads in a YAML file; every other line stays as it is.

    With `all_layers` draft.score_layers is taken out, because it would still leave layers out.

    Raises:
        ConfigurationError: the file's draft section is not one setting per line, or the result
            would not be a working configuration; the file is then left as it was.
    """
    text = path.read_text()
    pairs = ", ".join(f"[{layer}, {head}]" for layer, head in calibration.heads)
    section = re.search(r"^draft:[ \t]*(#.*)?\n((?:[ \t]+.*\n|[ \t]*\n|#.*\n)*)", text + "\n", re.M)
    if section is None:
        raise ConfigurationError(f"{path} has no draft section of one setting per line")
    dropped = ("score_heads", *(("score_layers",) if calibration.all_layers else ()))
    lines = [
        line
        for line in section[2].splitlines(keepends=True)
        if not re.match(rf"\s+({'|'.join(dropped)}):", line)
    ]
    indent = next((re.match(r"[ \t]*", line)[0] for line in lines if line.strip()), "  ")  # type: ignore[index]
    lines.insert(0, f"{indent}score_heads: [{pairs}]\n")
    start, end = section.span(2)
    changed = text[:start] + "".join(lines) + text[end:]
    try:
        path.write_text(changed)
        loaded = load_settings(path, environment={})
        if loaded.draft.score_heads != calibration.heads:
            raise ConfigurationError(f"{path}: score_heads could not be set")
    except ConfigurationError:
        path.write_text(text)
        raise


def tables(calibration: Calibration) -> dict[str, tuple[list[str], list[list[str]]]]:
    """Return title -> header and rows: the chosen heads, and what they change."""
    heads = [
        [
            f"{layer}",
            f"{head}",
            f"{calibration.reciprocal_rank[layer, head]:.2f}",
            f"{calibration.recall[layer, head]:.0%}",
        ]
        for layer, head in calibration.heads
    ]
    changes = [
        [
            task,
            "held out" if task in HELD_OUT_TASKS else "calibration",
            f"{calibration.before[task]:.0%}",
            f"{calibration.after[task]:.0%}",
        ]
        for task in calibration.before
    ]
    rate = f"{calibration.keep_rate:g}"
    return {
        "Chosen heads": (["layer", "head", "mean reciprocal rank", f"recall at {rate}"], heads),
        f"Share of the answer's tokens kept at keep rate {rate}": (
            ["class", "used for", "before", "chosen heads"],
            changes,
        ),
    }


def plot_heads(calibration: Calibration, path: Path) -> None:
    """Draw the mean reciprocal rank of every layer and head; the chosen ones are framed."""
    try:
        import matplotlib
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            "the plot needs matplotlib; pip install 'specprefill-triton[reports]'"
        ) from error
    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.patches import Rectangle

    layers = sorted({layer for layer, _ in calibration.reciprocal_rank})
    count = 1 + max(head for _, head in calibration.reciprocal_rank)
    grid = np.full((len(layers), count), np.nan)
    for (layer, head), value in calibration.reciprocal_rank.items():
        grid[layers.index(layer), head] = value
    figure, axis = pyplot.subplots(figsize=(2.5 + 0.35 * count, 1.5 + 0.28 * len(layers)))
    image = axis.imshow(grid, vmin=0, vmax=1, cmap="viridis", aspect="auto")
    for layer, head in calibration.heads:
        corner = (head - 0.5, layers.index(layer) - 0.5)
        axis.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor="red", linewidth=1.5))
    axis.set(xlabel="head", ylabel="layer", title="Mean reciprocal rank of the answer's chunk")
    axis.set_xticks(range(count))
    axis.set_yticks(range(len(layers)), [str(layer) for layer in layers])
    figure.colorbar(image)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    pyplot.close(figure)


def _encode(
    sample: Sample, encoder: Any, tokenizer: Any, selection: SelectionSettings
) -> tuple[Prompt, Any]:
    """Return the prompt and where its answer stands, bool [M]."""
    prompt: Prompt = encoder.encode(
        sample.text,
        sample.messages,
        sample.max_tokens,
        protect_last_user_tokens=selection.protect_last_user_tokens,
    )
    return prompt, evidence_mask(sample, tokenizer, prompt.token_ids)


def _mean(values: Sequence[Mapping[Head, float]]) -> dict[Head, float]:
    return {head: statistics.fmean(value[head] for value in values) for head in values[0]}
