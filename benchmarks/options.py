# SPDX-License-Identifier: Apache-2.0
"""Options: how a figure is measured."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# Prompt of a smoke run: longer than a last user message that is kept whole.
SMOKE_TOKENS = 600


@dataclass(frozen=True, slots=True)
class Options:
    """How a figure is measured.

    Attributes:
        config: deployment to measure; None: configs/smollm2-cpu.yaml.
        device: `cpu` or `cuda`, for both models.
        minutes: time for the repeats of one figure; one repeat is always done.
        smoke: a tiny random model and the smallest grid, to test the script itself.
        output: folder of the results.
        peer_python: interpreter that has the peers installed.
    """

    config: Path | None = None
    device: str = "cpu"
    minutes: float = 5.0
    smoke: bool = False
    output: Path = ROOT / "build" / "bench"
    peer_python: Path | None = None

    @property
    def seconds(self) -> float:
        """Time for the repeats; none beyond the first where the script itself is tested."""
        return 0.0 if self.smoke else 60 * self.minutes
