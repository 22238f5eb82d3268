# SPDX-License-Identifier: Apache-2.0
"""Writes tables and plots of evaluations into a page; `make quality` runs it."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from specprefill.errors import ConfigurationError
from specprefill.quality import ruler, summary
from specprefill.quality.evaluation import Evaluation, read_evaluation
from specprefill.quality.summary import Cell
from specprefill.quality.variant import DENSE

Row = list[str]

_MEASURES: tuple[tuple[str, Callable[[Cell], str]], ...] = (
    ("evidence kept", lambda c: _percent(c.evidence_kept)),
    ("same first token", lambda c: _percent(c.same_first_token)),
    ("first tokens matched", lambda c: _percent(c.matched)),
    ("KL, first token", lambda c: _number(c.first_divergence)),
    ("KL, answer", lambda c: _number(c.answer_divergence)),
    ("kept tokens", lambda c: _percent(c.kept)),
    ("draft ms", lambda c: f"{c.draft_ms:.0f}"),
    ("prefill ms", lambda c: f"{c.prefill_ms:.0f}"),
    ("time / dense", lambda c: f"{c.time_ratio:.2f}"),
)


def tables(evaluation: Evaluation) -> dict[str, tuple[Row, list[Row]]]:
    """Return title -> header and rows of every table."""
    found = {
        "Score by class (95 % interval)": score_rows(evaluation),
        "Retained share of the dense score": retained_rows(evaluation),
        "Agreement with the dense answer, and cost": measure_rows(evaluation),
    }
    if len({o.length for o in evaluation.outcomes}) > 1 and evaluation.options["suite"] == "ruler":
        found["By prompt length"] = length_rows(evaluation)
    return found


def score_rows(evaluation: Evaluation) -> tuple[Row, list[Row]]:
    """Return header and rows: a variant's score in each class, with its 95 % interval."""
    cells = summary.by_class(evaluation.outcomes)
    variants, tasks = variants_and_tasks(evaluation)
    rows = []
    for variant in variants:
        row = [variant]
        for task in tasks:
            value = cells[variant, task]
            low, high = value.interval
            row.append(f"{value.score:.2f} ({low:.2f}-{high:.2f})")
        rows.append(row)
    return ["variant", *tasks], rows


def retained_rows(evaluation: Evaluation) -> tuple[Row, list[Row]]:
    """Return header and rows: the share of dense's score that is kept, and the difference.

    The last columns hold all classes but the aggregating ones together: the share retained, the
    score over the dense score, and the score's difference from the first variant.
    """
    cells = summary.by_class(evaluation.outcomes)
    variants, tasks = variants_and_tasks(evaluation)
    found = lookup_tasks(tasks)
    overall = summary.over_classes(evaluation.outcomes, found)
    pruned = [variant for variant in variants if variant != DENSE]
    header = ["variant", *tasks]
    if found:
        header += [_group_name(evaluation), "score / dense score", f"score minus {pruned[0]}"]
    rows = []
    for variant in pruned:
        row = [variant, *(_percent(cells[variant, task].retained) for task in tasks)]
        if found:
            value = overall[variant]
            row.append(_percent(value.retained))
            if value.retained_interval:
                low, high = value.retained_interval
                row[-1] += f" ({low:.0%}-{high:.0%})"
            ratio = summary.relative(evaluation.outcomes, variant, found)
            row.append("-" if ratio is None else "{:.0%} ({:.0%}-{:.0%})".format(*ratio))
            mean, low, high = summary.difference(evaluation.outcomes, variant, pruned[0], found)
            row.append(f"{mean:+.2f} ({low:+.2f} to {high:+.2f})" if variant != pruned[0] else "-")
        rows.append(row)
    return header, rows


def measure_rows(evaluation: Evaluation) -> tuple[Row, list[Row]]:
    """Return header and rows: agreement with the dense answer, and cost, over all samples."""
    overall = summary.over_classes(evaluation.outcomes, variants_and_tasks(evaluation)[1])
    rows = [
        [variant, *(show(value) for _, show in _MEASURES)] for variant, value in overall.items()
    ]
    return ["variant", *(name for name, _ in _MEASURES)], rows


def length_rows(evaluation: Evaluation) -> tuple[Row, list[Row]]:
    """Return header and rows: retained score and time by prompt length, over all classes."""
    cells = summary.by_length(evaluation.outcomes)
    lengths = list(dict.fromkeys(length for _, length in cells))
    variants = [v for v in variants_and_tasks(evaluation)[0] if v != DENSE]
    header = ["variant"]
    for length in lengths:
        header += [f"{length}: retained", f"{length}: time / dense"]
    rows = []
    for variant in variants:
        row = [variant]
        for length in lengths:
            value = cells[variant, length]
            row += [_percent(value.retained), f"{value.time_ratio:.2f}"]
        rows.append(row)
    return header, rows


def variants_and_tasks(evaluation: Evaluation) -> tuple[list[str], list[str]]:
    """Return the variants, dense first, and the classes, both as they were run."""
    variants = list(dict.fromkeys(o.variant for o in evaluation.outcomes))
    return variants, list(dict.fromkeys(o.task for o in evaluation.outcomes))


def lookup_tasks(tasks: Sequence[str]) -> list[str]:
    """Return the classes whose answer stands somewhere in the prompt."""
    return [task for task in tasks if task not in ruler.AGGREGATION]


def _group_name(evaluation: Evaluation) -> str:
    return "look-up classes" if evaluation.options["suite"] == "ruler" else "all data sets"


def markdown(evaluation: Evaluation, images: Sequence[str] = ()) -> str:
    """Return the tables of one evaluation, and links to its plots."""
    options = evaluation.options
    variants, tasks = variants_and_tasks(evaluation)
    samples = len({o.sample for o in evaluation.outcomes})
    lengths = ", ".join(str(length) for length in options["lengths"])
    what = f"lengths {lengths}" if options["suite"] == "ruler" else f"data {options['data']}"
    parts = [
        f"Suite {options['suite']}, {samples} prompts in {len(tasks)} classes, {what}; "
        f"{len(variants) - 1} variants; {evaluation.machine}."
    ]
    for title, (header, rows) in tables(evaluation).items():
        parts += [f"{title}:", _table(header, rows)]
    parts += [f"![{Path(image).stem}]({image})" for image in images]
    return "\n\n".join(parts)


def plot_time(evaluation: Evaluation, path: Path) -> None:
    """Draw the retained score over time to first token relative to dense, one curve per scorer."""
    tasks = variants_and_tasks(evaluation)[1]
    groups = (
        (_group_name(evaluation), lookup_tasks(tasks)),
        ("aggregating classes", [task for task in tasks if task in ruler.AGGREGATION]),
    )
    drawn = [(title, summary.over_classes(evaluation.outcomes, names)) for title, names in groups]
    drawn = [(title, cells) for title, cells in drawn if cells]
    figure, axes = _figure(1, len(drawn), 5.5 * len(drawn), 4.2)
    for axis, (title, cells) in zip(axes[0], drawn, strict=True):
        curves: dict[str, list[Cell]] = {}
        for label, value in cells.items():
            if label != DENSE and value.retained is not None:
                curves.setdefault(label.partition("@")[0], []).append(value)
        for name, points in curves.items():
            points.sort(key=lambda c: c.time_ratio)
            ratios = [point.time_ratio for point in points]
            axis.plot(ratios, [point.retained for point in points], marker="o", label=name)
        axis.axvline(1, color="grey", linewidth=0.8, linestyle=":")
        axis.set(title=title, xlabel="(draft + prefill) / dense prefill", ylim=(-0.03, 1.05))
    axes[0][0].set_ylabel("retained share of the dense score")
    if axes[0][0].get_lines()[1:]:  # more than the line at 1
        axes[0][0].legend(fontsize=7)
    _save(figure, path)


def plot_classes(evaluation: Evaluation, path: Path) -> None:
    """Draw the retained score of every variant and class as a heat map."""
    cells = summary.by_class(evaluation.outcomes)
    variants, tasks = variants_and_tasks(evaluation)
    pruned = [variant for variant in variants if variant != DENSE]
    shares = [[cells[variant, task].retained for task in tasks] for variant in pruned]
    numbers = [[float("nan") if share is None else share for share in row] for row in shares]
    figure, axes = _figure(1, 1, 1.5 + 0.9 * len(tasks), 1.5 + 0.3 * len(pruned))
    axis = axes[0][0]
    axis.imshow(numbers, vmin=0, vmax=1, cmap="RdYlGn", aspect="auto")
    axis.set_xticks(range(len(tasks)), tasks, rotation=40, ha="right", fontsize=8)
    axis.set_yticks(range(len(pruned)), pruned, fontsize=8)
    for y, row in enumerate(shares):
        for x, share in enumerate(row):
            axis.text(x, y, _percent(share), ha="center", va="center", fontsize=7)
    axis.set_title("Retained share of the dense score", fontsize=10)
    _save(figure, path)


def find_place(page: Path, name: str) -> re.Match[str]:
    """Find a page's generated part.

    Args:
        page: Markdown file.
        name: stem of the results' file.

    Raises:
        ConfigurationError: no such page, or it has no place for these results.
    """
    try:
        text = page.read_text()
    except OSError as error:
        raise ConfigurationError(f"page {page}: {error.strerror}") from error
    place = re.search(
        rf"(?<=<!-- generated: {re.escape(name)} -->\n).*?(?=<!-- end -->)", text, re.S
    )
    if place is None:
        raise ConfigurationError(
            f"page {page} has no lines '<!-- generated: {name} -->' and '<!-- end -->'"
        )
    return place


def write_page(page: Path, evaluations: Sequence[Evaluation]) -> None:
    """Replace a page's generated parts; each evaluation has its own, named after its file.

    Raises:
        ConfigurationError: the page has no place for one of them.
    """
    images = page.parent / "images"
    plots = {"time": plot_time, "classes": plot_classes}
    for evaluation in evaluations:
        name = evaluation.path.stem
        place = find_place(page, name)
        images.mkdir(exist_ok=True)
        for kind, plot in plots.items():
            plot(evaluation, images / f"quality-{name}-{kind}.png")
        links = [f"images/quality-{name}-{kind}.png" for kind in plots]
        content = f"\n{markdown(evaluation, links)}\n\n"
        text = place.string
        page.write_text(text[: place.start()] + content + text[place.end() :])


def _table(header: Row, rows: list[Row]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _figure(rows: int, columns: int, width: float, height: float) -> tuple[Any, Any]:
    try:
        import matplotlib
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            "plots need matplotlib; pip install 'specprefill-triton[reports]'"
        ) from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot.subplots(rows, columns, figsize=(width, height), squeeze=False)


def _save(figure: Any, path: Path) -> None:
    figure.tight_layout()
    # Without the date and the version of matplotlib the same figures give the same file.
    figure.savefig(path, dpi=110, metadata={"Software": None})
    from matplotlib import pyplot

    pyplot.close(figure)


if __name__ == "__main__":
    write_page(Path(sys.argv[1]), [read_evaluation(Path(name)) for name in sys.argv[2:]])
