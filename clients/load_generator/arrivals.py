# SPDX-License-Identifier: Apache-2.0
"""When requests arrive."""

from __future__ import annotations

import random
from typing import Literal

Pattern = Literal["poisson", "constant"]


def arrival_times(pattern: Pattern, rate: float, count: int, seed: int = 0) -> list[float]:
    """Return arrival times in seconds, ascending; the first is 0.

    Args:
        pattern: `poisson` draws the gaps from an exponential distribution, `constant` has them
            all the same.
        rate: requests per second on average.
        count: number of requests.
        seed: the same seed draws the same gaps, scaled by 1 / rate.
    """
    draw = random.Random(seed)
    times, now = [], 0.0
    for _ in range(count):
        times.append(now)
        now += (draw.expovariate(1.0) if pattern == "poisson" else 1.0) / rate
    return times
