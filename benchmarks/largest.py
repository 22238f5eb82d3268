# SPDX-License-Identifier: Apache-2.0
"""TTFT of the pair with the most to gain: a long prompt, a target of eight times the cost."""

from __future__ import annotations

from typing import Any

from rich.progress import Progress

from benchmarks.deployments import tiny_model
from benchmarks.options import SMOKE_TOKENS, Options
from benchmarks.targets import EARLY_EXIT, LOOK_AHEAD, SIXTEEN, Target, measure_target

TITLE = "A long prompt and a large target"

_DRAFTS = (EARLY_EXIT, SIXTEEN, LOOK_AHEAD)
_KEEP_RATE = 0.1


def measure(options: Options, progress: Progress) -> dict[str, Any]:
    """Measure every draft in one round: dense alone takes minutes."""
    model, length = "grown:smollm2-x8", 6000
    if options.smoke:
        model, length = str(tiny_model(options.output)), SMOKE_TOKENS
    target = Target(model, length, _DRAFTS, 1.0, keep_rate=_KEEP_RATE)
    return {"rows": measure_target(target, options, progress)}
