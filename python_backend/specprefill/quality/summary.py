# SPDX-License-Identifier: Apache-2.0
"""Outcomes -> one figure per variant and class, with its uncertainty."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from specprefill.quality.outcome import Outcome
from specprefill.quality.variant import DENSE

_Z = 1.96  # 95 %
_RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Cell:
    """One variant on one group of samples; means, and None where nothing was measured.

    Attributes:
        samples: how many there are.
        score: mean score.
        interval: 95 % Wilson interval of the score.
        retained: share of the dense score that is kept, sample by sample: what a variant gets
            right that dense gets wrong does not make up for what it loses. None if dense scores 0.
        retained_interval: 95 % Wilson interval of it.
        evidence_kept: share of the tokens that hold the answer which were kept.
        same_first_token: share of samples whose first token is the dense one.
        matched: share of the dense answer's first tokens that the answer starts with.
        first_divergence: median KL divergence of the first token from dense, nats.
        answer_divergence: the same over the dense answer's first tokens.
        kept: share of the prompt's tokens.
        draft_ms: median time of draft and scoring.
        prefill_ms: median time of the target's prefill.
        time_ratio: median of (draft + prefill) / dense prefill.
    """

    samples: int
    score: float
    interval: tuple[float, float]
    retained: float | None
    retained_interval: tuple[float, float] | None
    evidence_kept: float | None
    same_first_token: float | None
    matched: float | None
    first_divergence: float | None
    answer_divergence: float | None
    kept: float
    draft_ms: float
    prefill_ms: float
    time_ratio: float


def wilson(successes: float, trials: float) -> tuple[float, float]:
    """95 % Wilson score interval of a proportion; fractional successes are allowed.

    Args:
        successes: sum of scores in [0, 1].
        trials: greater than 0.
    """
    p = successes / trials
    centre = p + _Z**2 / (2 * trials)
    margin = _Z * math.sqrt(max(0.0, p * (1 - p)) / trials + _Z**2 / (4 * trials**2))
    scale = 1 + _Z**2 / trials
    return max(0.0, (centre - margin) / scale), min(1.0, (centre + margin) / scale)


def cell(outcomes: Sequence[Outcome], dense: dict[str, Outcome]) -> Cell:
    """Summarise one variant's outcomes on one group of samples.

    Args:
        outcomes: at least one, all of one variant.
        dense: the dense outcome of every sample by its name.
    """
    wholes = [dense[o.sample] for o in outcomes]
    total = sum(o.score for o in outcomes)
    possible = sum(whole.score for whole in wholes)
    saved = sum(min(o.score, whole.score) for o, whole in zip(outcomes, wholes, strict=True))

    def over(
        read: Callable[[Outcome], float | None], reduce: Callable[[list[float]], float]
    ) -> float | None:
        values = [value for outcome in outcomes if (value := read(outcome)) is not None]
        return reduce(values) if values else None

    ratios = [
        (o.draft_ms + o.prefill_ms) / whole.prefill_ms
        for o, whole in zip(outcomes, wholes, strict=True)
        if whole.prefill_ms
    ]
    return Cell(
        samples=len(outcomes),
        score=total / len(outcomes),
        interval=wilson(total, len(outcomes)),
        retained=saved / possible if possible else None,
        retained_interval=wilson(saved, possible) if possible else None,
        evidence_kept=over(lambda o: o.evidence_kept, statistics.fmean),
        same_first_token=over(lambda o: o.same_first_token, statistics.fmean),
        matched=over(lambda o: o.matched, statistics.fmean),
        first_divergence=over(lambda o: o.first_divergence, statistics.median),
        answer_divergence=over(lambda o: o.answer_divergence, statistics.median),
        kept=statistics.fmean(o.kept_tokens / o.prompt_tokens for o in outcomes),
        draft_ms=statistics.median(o.draft_ms for o in outcomes),
        prefill_ms=statistics.median(o.prefill_ms for o in outcomes),
        time_ratio=statistics.median(ratios) if ratios else math.nan,
    )


def by_class(outcomes: Iterable[Outcome]) -> dict[tuple[str, str], Cell]:
    """Summarise by (variant, class), in the order of first appearance."""
    return _grouped(list(outcomes), lambda o: o.task)


def by_length(outcomes: Iterable[Outcome]) -> dict[tuple[str, str], Cell]:
    """Summarise by (variant, nominal length)."""
    return _grouped(list(outcomes), lambda o: str(o.length))


def over_classes(outcomes: Iterable[Outcome], tasks: Sequence[str]) -> dict[str, Cell]:
    """Summarise by variant over some classes; empty if none of them was run."""
    chosen = [o for o in outcomes if o.task in tasks]
    return {variant: value for (variant, _), value in _grouped(chosen, lambda _: "").items()}


def difference(
    outcomes: Iterable[Outcome], variant: str, baseline: str, tasks: Sequence[str]
) -> tuple[float, float, float]:
    """Mean difference of two variants' scores over the same samples, with its 95 % interval.

    The interval is the percentile bootstrap over samples, with a fixed seed.
    """
    scores: dict[str, dict[str, float]] = {variant: {}, baseline: {}}
    for outcome in outcomes:
        if outcome.task in tasks and outcome.variant in scores:
            scores[outcome.variant][outcome.sample] = outcome.score
    gains = [score - scores[baseline][name] for name, score in scores[variant].items()]
    draw = random.Random(0)
    means = sorted(statistics.fmean(draw.choices(gains, k=len(gains))) for _ in range(_RESAMPLES))
    low, high = means[round(0.025 * _RESAMPLES)], means[round(0.975 * _RESAMPLES) - 1]
    return statistics.fmean(gains), low, high


def relative(
    outcomes: Iterable[Outcome], variant: str, tasks: Sequence[str]
) -> tuple[float, float, float] | None:
    """Ratio of a variant's mean score to the dense one, with its 95 % interval.

    Unlike `Cell.retained` it counts what the variant gets right that dense gets wrong, so it may
    exceed 1. The interval is the percentile bootstrap over samples, with a fixed seed; resamples
    that dense scores 0 on are left out.

    Returns:
        None where dense scores 0 on all samples.
    """
    scores: dict[str, dict[str, float]] = {variant: {}, DENSE: {}}
    for outcome in outcomes:
        if outcome.task in tasks and outcome.variant in scores:
            scores[outcome.variant][outcome.sample] = outcome.score
    pairs = [(score, scores[DENSE][name]) for name, score in scores[variant].items()]

    def ratio(chosen: Sequence[tuple[float, float]]) -> float | None:
        dense = sum(score for _, score in chosen)
        return sum(score for score, _ in chosen) / dense if dense else None

    whole = ratio(pairs)
    if whole is None:
        return None
    draw = random.Random(0)
    resampled = (ratio(draw.choices(pairs, k=len(pairs))) for _ in range(_RESAMPLES))
    ratios = sorted(value for value in resampled if value is not None)
    low, high = (ratios[round(share * (len(ratios) - 1))] for share in (0.025, 0.975))
    return whole, low, high


def _grouped(
    outcomes: list[Outcome], group: Callable[[Outcome], str]
) -> dict[tuple[str, str], Cell]:
    dense = {o.sample: o for o in outcomes if o.variant == DENSE}
    groups: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault((outcome.variant, group(outcome)), []).append(outcome)
    return {key: cell(members, dense) for key, members in groups.items()}
