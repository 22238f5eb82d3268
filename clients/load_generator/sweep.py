# SPDX-License-Identifier: Apache-2.0
"""Sweep: raises the rate until an objective breaks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from specprefill.errors import InvalidRequestError

from load_generator.objective import Objective
from load_generator.report import Report


@dataclass(frozen=True, slots=True)
class Sweep:
    """Runs at several rates.

    Attributes:
        objective: what each run had to keep.
        reports: in the order in which they were run.
    """

    objective: Objective
    reports: tuple[Report, ...]

    @property
    def highest_rate(self) -> float | None:
        """The highest rate that held, in requests per second; None if none did."""
        held = [r.plan.rate for r in self.reports if self.objective.broken_by(r) is None]
        return max(held, default=None)

    def as_json(self) -> dict[str, Any]:
        """Return everything, raw requests included."""
        limits = self.objective.limits.items()
        return {
            "objective": {
                "limits_seconds": {
                    f"{metric}_p{percent}": value for (metric, percent), value in limits
                },
                "tolerated_timeouts": self.objective.tolerated_timeouts,
            },
            "highest_rate": self.highest_rate,
            "runs": [
                {"broken": self.objective.broken_by(report), **report.as_json()}
                for report in self.reports
            ],
        }


def sweep(run_at: Callable[[float], Report], rates: Iterable[float], objective: Objective) -> Sweep:
    """Run at each rate in turn until one breaks the objective.

    Args:
        run_at: runs the load at a rate.
        rates: ascending, requests per second.
        objective: what each run must keep.
    """
    reports = []
    for rate in rates:
        reports.append(run_at(rate))
        if objective.broken_by(reports[-1]) is not None:
            break
    return Sweep(objective, tuple(reports))


def bisect(
    run_at: Callable[[float], Report],
    lowest: float,
    highest: float,
    objective: Objective,
    halvings: int = 3,
) -> Sweep:
    """Double the rate from the lowest until one breaks, then halve the gap a few times.

    Args:
        run_at: runs the load at a rate.
        lowest: first rate, requests per second.
        highest: last rate to try.
        objective: what each run must keep.
        halvings: runs between the highest rate that held and the lowest that broke.

    Raises:
        InvalidRequestError: the range is empty.
    """
    if not 0 < lowest < highest:
        raise InvalidRequestError("rates", f"got {lowest:g}:{highest:g}", "0 < lowest < highest")
    doubled = [lowest]
    while doubled[-1] < highest:
        doubled.append(min(2 * doubled[-1], highest))
    found = sweep(run_at, doubled, objective)
    held, broken = found.highest_rate, found.reports[-1].plan.rate
    reports = list(found.reports)
    if held is None or held == broken:
        return found
    for _ in range(halvings):
        rate = (held + broken) / 2
        reports.append(run_at(rate))
        if objective.broken_by(reports[-1]) is None:
            held = rate
        else:
            broken = rate
    return Sweep(objective, tuple(reports))
