# SPDX-License-Identifier: Apache-2.0
"""What the project set out to reach, and what was measured of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from benchmarks.targets import LOOK_AHEAD, SIXTEEN

Data = Mapping[str, Any]
_LONG_TOKENS, _SCORED_TOKENS = 3900, 7900


@dataclass(frozen=True, slots=True)
class Goal:
    """One goal.

    Attributes:
        text: what is to be reached.
        figure: the figure that tells.
        measured: reads the value from the figure's data; None if it is not in there.
        reached: judges the value.
        unit: `x` for a ratio, `%` for a share, `s` or `ms`.
    """

    text: str
    figure: str
    measured: Callable[[Data], float | None]
    reached: Callable[[float], bool]
    unit: str


def _least(values: Iterable[float]) -> float | None:
    return min(values, default=None)


def _long_rows(data: Data) -> list[Data]:
    return [row for row in data["rows"] if row["prompt_tokens"] >= _LONG_TOKENS]


def _of_ideal(data: Data) -> float | None:
    return _least(row["ratio"]["median"] / row["ideal_ratio"] for row in _long_rows(data))


def _of_ideal_served(data: Data) -> float | None:
    served = [
        (row[model], row["ideal_ratio"])
        for row in _long_rows(data)
        for model in ("specprefill", "ensemble")
        if model in row
    ]
    return _least(way["ratio"]["median"] / ideal for way, ideal in served)


def _ratio_with(draft: str) -> Callable[[Data], float | None]:
    return lambda data: _least(
        row["ratio"]["median"] for row in data["rows"] if row["draft_kind"] == draft
    )


def _scoring_share(data: Data) -> float | None:
    parts = [
        {part: spread["median"] for part, spread in row["parts"].items()}
        for row in data["rows"]
        if row["way"].startswith("sparse") and row["prompt_tokens"] >= _SCORED_TOKENS
    ]
    return max((part["scoring"] / part["draft prefill"] for part in parts), default=None)


def _scoring(part: str) -> Callable[[Data], float | None]:
    def value(data: Data) -> float | None:
        return _least(
            row["whole tensors"][part]["median"] / row["observer"][part]["median"]
            for row in data["rows"]
            if (row["layers"], row["prompt_tokens"]) == (16, 16384) and row["whole tensors"]
        )

    return value


def _more_requests(data: Data) -> float | None:
    dense, sparse = data["highest"]["dense"], data["highest"]["sparse"]
    return sparse / dense if dense and sparse else None


def _throughput(data: Data) -> dict[int, float]:
    return {row["concurrency"]: row["per_second"]["median"] for row in data["concurrency"]}


def _eight_streams(data: Data) -> float | None:
    speeds = _throughput(data)
    return speeds[8] / speeds[1] if 8 in speeds else None


def _smallest_step(data: Data) -> float | None:
    speeds = list(_throughput(data).values())
    return _least(after / before for before, after in pairwise(speeds))


def _after_sparse(data: Data) -> float | None:
    return _least(row["ratio"]["median"] for row in data["after_prefill"])


def _best_peer(data: Data) -> float | None:
    return _least(
        min(peer["median"] for peer in row["peers"].values()) / row["sparse"]["median"]
        for row in _long_rows(data)
        if row["peers"]
    )


def _added(data: Data) -> float | None:
    return float(data["triton_adds"]["ensemble"]["median"] * 1e3)


def _at_least(bound: float) -> Callable[[float], bool]:
    return lambda value: value >= bound


GOALS = (
    Goal(
        "ratio of ideal from 4K, in process: at least 85 %", "ttft", _of_ideal, _at_least(0.85), "%"
    ),
    Goal(
        "the same with grown x8 and each of its drafts",
        "largest",
        _of_ideal,
        _at_least(0.85),
        "%",
    ),
    Goal(
        "ratio of ideal from 4K, through Triton: at least 80 %",
        "ttft",
        _of_ideal_served,
        _at_least(0.8),
        "%",
    ),
    Goal(
        "grown x8, 6K tokens, keep rate 0.1, look-ahead draft: at least 5 x",
        "largest",
        _ratio_with(LOOK_AHEAD),
        _at_least(5),
        "x",
    ),
    Goal(
        "the same with 16 layers of the draft: at least 8 x",
        "largest",
        _ratio_with(SIXTEEN),
        _at_least(8),
        "x",
    ),
    Goal(
        "scoring beside the draft's prefill, from 8K tokens: at most 2 %",
        "breakdown",
        _scoring_share,
        lambda value: value <= 0.02,
        "%",
    ),
    Goal(
        "scoring 16 layers of 16K tokens, beside whole tensors: at least 10 x faster",
        "scoring",
        _scoring("seconds"),
        _at_least(10),
        "x",
    ),
    Goal(
        "and with a 20th of the memory or less",
        "scoring",
        _scoring("peak_bytes"),
        _at_least(20),
        "x",
    ),
    Goal(
        "requests per second, beside dense: at least 4 x", "qps", _more_requests, _at_least(4), "x"
    ),
    Goal(
        "8 streams decode at least 4 x what one does", "decode", _eight_streams, _at_least(4), "x"
    ),
    Goal("twice the streams never decode less", "decode", _smallest_step, _at_least(1), "x"),
    Goal(
        "decoding after sparse prefill is never slower than after dense",
        "decode",
        _after_sparse,
        _at_least(1),
        "x",
    ),
    Goal(
        "sparse TTFT beats the best other engine from 4K tokens on",
        "peers",
        _best_peer,
        lambda value: value > 1,
        "x",
    ),
    Goal(
        "ready within 12 s of the start, files cached",
        "startup",
        lambda data: float(data["ready"]["median"]),
        lambda value: value < 12,
        "s",
    ),
    Goal("`ensemble` adds less than 10 ms", "breakdown", _added, lambda value: value < 10, "ms"),
)


def judge(goal: Goal, data: Data | None) -> tuple[str, str]:
    """Return the measured value and whether the goal is reached, as texts."""
    value = None if data is None else goal.measured(data)
    if value is None:
        return "", "not measured in this run"
    text = {
        "%": f"{value:.0%}" if value >= 0.1 else f"{value:.1%}",
        "x": f"{value:.2f} x",
        "ms": f"{value:.1f} ms",
        "s": f"{value:.1f} s",
    }[goal.unit]
    return text, "yes" if goal.reached(value) else "**no**"
