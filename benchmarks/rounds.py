# SPDX-License-Identifier: Apache-2.0
"""Rounds: repeats a grid of measurements as often as its time allows, never one cell alone.

A shared machine gets faster and slower by the minute. All cells of a round, dense and sparse, run
one after the other, so that each ratio compares neighbours in time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from rich.progress import Progress

# More repeats tell little more than these.
_MOST = 5

Cell = Callable[[], Mapping[str, float]]
# Cell -> measurement -> one value per round.
Samples = dict[str, dict[str, list[float]]]


def run_rounds(
    cells: Mapping[str, Cell], seconds: float, progress: Progress, label: str
) -> Samples:
    """Run whole rounds until the next would end after the time; at least one.

    Args:
        cells: name -> what to run; returns measurements by name.
        seconds: for all rounds.
        progress: shows what runs.
        label: of the progress bar.
    """
    samples: Samples = {name: {} for name in cells}
    task = progress.add_task(label, total=len(cells))
    started = time.perf_counter()
    rounds = 0
    while True:
        for name, cell in cells.items():
            progress.update(task, description=f"{label}: {name}")
            for measurement, value in cell().items():
                samples[name].setdefault(measurement, []).append(value)
            progress.advance(task)
        rounds += 1
        elapsed = time.perf_counter() - started
        planned = min(_MOST, max(rounds, int(seconds / (elapsed / rounds))))
        progress.update(task, total=planned * len(cells))
        if rounds >= planned:
            progress.update(task, description=label)
            return samples
