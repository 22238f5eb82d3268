# SPDX-License-Identifier: Apache-2.0
"""Ideal times of a deployment on the machine at hand, by `specprefill.cost_model`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from specprefill.cost_model import DraftWork, IdealTimes, Rates, draft_work, ideal_times
from specprefill.embedded_model import resolve_model
from specprefill.memory_plan import ModelShape
from specprefill.plan import find_shape
from specprefill.scoring import make_rule
from specprefill.settings import Settings
from specprefill.torch_engine.processor import resolve_dtype

from benchmarks.machine import measure_rates
from benchmarks.options import Options


@dataclass(frozen=True, slots=True)
class Ideal:
    """The parts of the cost model for one deployment.

    Attributes:
        target: shape of the target.
        draft: shape of the whole draft.
        work: how much of the draft runs.
        target_rates: measured.
        draft_rates: measured, in the draft's own number format.
    """

    target: ModelShape
    draft: ModelShape
    work: DraftWork
    target_rates: Rates
    draft_rates: Rates

    def times(self, prompt_tokens: int, kept_tokens: int) -> IdealTimes:
        """Return the best times of one prompt."""
        return ideal_times(
            self.target,
            self.draft,
            self.work,
            prompt_tokens,
            kept_tokens,
            self.target_rates,
            self.draft_rates,
        )

    def as_json(self) -> dict[str, Any]:
        """Return the rates and what of the draft runs."""
        return {
            "target_rates": asdict(self.target_rates),
            "draft_rates": asdict(self.draft_rates),
            "draft_work": asdict(self.work),
        }


def ideal_of(settings: Settings, options: Options) -> Ideal:
    """Measure the rates that a deployment's ideal times need; takes some seconds.

    Called again, after a figure's rounds too, it keeps the best of all its measurements.
    """
    seconds = 0.02 if options.smoke else 1.0
    _measure(settings, seconds)
    # Rates that both models share are the best found for either, so noise cannot set them apart.
    return _measure(settings, 0.0)


def _measure(settings: Settings, seconds: float) -> Ideal:
    target = find_shape(str(resolve_model(settings.target.model)))
    draft = find_shape(str(resolve_model(settings.draft.model)))
    rule = make_rule(settings.selection)
    return Ideal(
        target,
        draft,
        draft_work(draft, settings.draft, rule.prompt_queries, rule.look_ahead),
        measure_rates(
            target,
            resolve_dtype(settings.target.dtype, settings.target.device),
            settings.target.device,
            seconds=seconds,
        ),
        measure_rates(
            draft,
            resolve_dtype(settings.draft.dtype, settings.draft.device),
            settings.draft.device,
            int8=settings.draft.weights == "int8",
            seconds=seconds,
        ),
    )
