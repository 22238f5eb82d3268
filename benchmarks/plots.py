# SPDX-License-Identifier: Apache-2.0
"""One plot per figure, named as the figure; small PNG files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

Data = Mapping[str, Any]

_DENSE, _SPARSE, _IDEAL = "tab:gray", "tab:green", "tab:blue"


@contextmanager
def _figure(path: Path, columns: int = 1) -> Iterator[Sequence[Axes]]:
    figure, axes = plt.subplots(1, columns, figsize=(4.6 * columns, 3.2), squeeze=False)
    yield axes[0]
    for axis in figure.axes:
        if axis.get_yscale() == "linear" and axis.dataLim.ymin >= 0 and not axis.yaxis_inverted():
            axis.set_ylim(0, 1.08 * axis.dataLim.ymax)
    figure.tight_layout()
    # No software version inside, so that the same figures give the same file.
    figure.savefig(path, dpi=80, metadata={"Software": None})
    plt.close(figure)


def _line(
    axes: Axes, x: Sequence[float], spreads: Sequence[Data], label: str, **style: Any
) -> None:
    middle = [spread["median"] for spread in spreads]
    below = [spread["median"] - spread["min"] for spread in spreads]
    above = [spread["max"] - spread["median"] for spread in spreads]
    axes.errorbar(x, middle, yerr=(below, above), label=label, marker="o", capsize=3, **style)


def ttft(data: Data, path: Path) -> None:
    """Draw TTFT against prompt length, and the ratio against the keep rate."""
    rate = data["keep_rate"]
    by_length = sorted(
        (row for row in data["rows"] if row["keep_rate"] == rate),
        key=lambda row: row["prompt_tokens"],
    )
    lengths = [row["length"] for row in data["rows"]]
    swept = max(set(lengths), key=lengths.count)
    by_rate = sorted(
        (row for row in data["rows"] if row["length"] == swept), key=lambda row: row["keep_rate"]
    )
    with _figure(path, 2) as (left, right):
        x = [row["prompt_tokens"] for row in by_length]
        _line(left, x, [row["dense"] for row in by_length], "dense", color=_DENSE)
        _line(left, x, [row["sparse"] for row in by_length], f"{rate:.0%} kept", color=_SPARSE)
        left.plot(x, [row["ideal_sparse"] for row in by_length], "--", color=_IDEAL, label="ideal")
        left.set(xlabel="prompt tokens", ylabel="time to first token, s")
        left.legend()
        x = [row["keep_rate"] for row in by_rate]
        _line(right, x, [row["ratio"] for row in by_rate], "measured", color=_SPARSE)
        right.plot(x, [row["ideal_ratio"] for row in by_rate], "--", color=_IDEAL, label="ideal")
        right.axhline(1, color=_DENSE, linewidth=1)
        tokens = by_rate[0]["prompt_tokens"]
        right.set(xlabel="keep rate", ylabel=f"dense / sparse, {tokens:,} tokens")
        right.legend()


def targets(data: Data, path: Path) -> None:
    """Draw measured and ideal ratios as bars."""
    rows = data["rows"]
    names = [f"{row['target'].split(':')[-1]}\n{row['draft_kind']}" for row in rows]
    places = np.arange(len(rows))
    with _figure(path, 2 if len(rows) > 2 else 1) as axes:
        for spare in axes[1:]:
            spare.remove()
        if len(axes) > 1:
            axes[0].set_position((0, 0, 1, 1))
            axes[0].set_subplotspec(axes[0].get_gridspec()[:])
        middle = [row["ratio"]["median"] for row in rows]
        below = [row["ratio"]["median"] - row["ratio"]["min"] for row in rows]
        above = [row["ratio"]["max"] - row["ratio"]["median"] for row in rows]
        axes[0].bar(
            places - 0.2, middle, 0.4, yerr=(below, above), capsize=3, color=_SPARSE,
            label="measured",
        )  # fmt: skip
        ideal = [row["ideal_ratio"] for row in rows]
        axes[0].bar(places + 0.2, ideal, 0.4, color=_IDEAL, alpha=0.5, label="ideal")
        axes[0].axhline(1, color=_DENSE, linewidth=1)
        axes[0].set_xticks(places, names, fontsize=7)
        axes[0].set_ylabel("TTFT, dense / sparse")
        axes[0].legend()


largest = targets


def operators(data: Data, path: Path) -> None:
    """Draw the groups of operators as stacked bars."""
    _stacked([row["run"] for row in data["rows"]], [row["parts"] for row in data["rows"]], path)


def breakdown(data: Data, path: Path) -> None:
    """Draw the parts of the time to first token as stacked bars."""
    parts = [
        {part: spread["median"] for part, spread in row["parts"].items()} for row in data["rows"]
    ]
    _stacked([row["way"] for row in data["rows"]], parts, path)


def _stacked(names: Sequence[str], parts: Sequence[Mapping[str, float]], path: Path) -> None:
    """Draw one bar of seconds per name, in parts."""
    with _figure(path, 2) as axes:
        axes[1].remove()
        axes[0].set_subplotspec(axes[0].get_gridspec()[:])
        left = np.zeros(len(names))
        for part in parts[0]:
            width = np.array([row[part] for row in parts])
            axes[0].barh(names, width, left=left, label=part)
            left += width
        axes[0].invert_yaxis()
        axes[0].set_xlabel("seconds")
        axes[0].legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))


def scoring(data: Data, path: Path) -> None:
    """Draw seconds and peak memory against the prompt's length."""
    shapes = sorted({(row["layers"], row["head_size"]) for row in data["rows"]})
    with _figure(path, 2) as (left, right):
        for style, (layers, size) in zip(("-", "--", ":"), shapes, strict=False):
            for way, color in (("whole tensors", _DENSE), ("observer", _SPARSE)):
                rows = [
                    row
                    for row in data["rows"]
                    if (row["layers"], row["head_size"]) == (layers, size) and row[way]
                ]
                x = [row["prompt_tokens"] for row in rows]
                label = f"{way}, {layers} layers, d = {size}"
                for axes, key, scale in ((left, "seconds", 1), (right, "peak_bytes", 2**-30)):
                    y = [scale * row[way][key]["median"] for row in rows]
                    axes.plot(x, y, style, marker="o", color=color, label=label)
        left.set(xlabel="prompt tokens", ylabel="seconds", xscale="log", yscale="log")
        right.set(xlabel="prompt tokens", ylabel="peak memory, GiB", xscale="log", yscale="log")
        left.legend(fontsize=6)


def qps(data: Data, path: Path) -> None:
    """Draw the objective's percentile against the rate."""
    with _figure(path) as (axes,):
        for way, color in (("dense", _DENSE), ("sparse", _SPARSE)):
            rows = [r for r in data["runs"] if r["way"] == way and r["ttft_p90"] is not None]
            x, y = [row["rate"] for row in rows], [row["ttft_p90"] for row in rows]
            axes.plot(x, y, marker="o", color=color, label=way)
        axes.axhline(data["bound_seconds"], color="tab:red", linewidth=1, label="objective")
        axes.set(xlabel="requests per second", ylabel="TTFT p90, s")
        axes.legend()


def decode(data: Data, path: Path) -> None:
    """Draw throughput against concurrency."""
    rows = data["concurrency"]
    with _figure(path) as (axes,):
        x = [row["concurrency"] for row in rows]
        _line(axes, x, [row["per_second"] for row in rows], "all answers", color=_SPARSE)
        axes.set_xscale("log", base=2)
        axes.set_xticks(x, [str(number) for number in x])
        axes.set(xlabel="answers at once", ylabel="tokens per second")


def memory(data: Data, path: Path) -> None:
    """Draw resident memory against the number of requests."""
    with _figure(path) as (axes,):
        x = [sample["request"] for sample in data["samples"]]
        y = [sample["rss_bytes"] / 2**30 for sample in data["samples"]]
        axes.plot(x, y, color=_SPARSE)
        axes.set(xlabel="requests", ylabel="resident memory, GiB")


def peers(data: Data, path: Path) -> None:
    """Draw the times of all engines as bars, one group per prompt length."""
    rows = data["rows"]
    engines: list[tuple[str, list[Data]]] = [
        ("ours, dense", [row["dense"] for row in rows]),
        ("ours, sparse", [row["sparse"] for row in rows]),
    ]
    engines += [(name, [row["peers"][name] for row in rows]) for name in data["versions"]]
    width = 0.8 / len(engines)
    places = np.arange(len(rows))
    with _figure(path) as (axes,):
        for index, (name, spreads) in enumerate(engines):
            y = [spread["median"] for spread in spreads]
            axes.bar(places + index * width, y, width, label=name)
        middle = places + width * (len(engines) - 1) / 2
        axes.set_xticks(middle, [f"{row['prompt_tokens']:,} tokens" for row in rows])
        axes.set_ylabel("time to first token, s")
        axes.legend(fontsize=7)
