# SPDX-License-Identifier: Apache-2.0
"""LoadPlan: how one run sends its requests."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from specprefill.errors import InvalidRequestError

from load_generator.arrivals import Pattern


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """How one run sends its requests; it ends at the latest max_seconds + timeout_seconds in.

    Attributes:
        rate: requests per second on average.
        requests: how many to send; None sends each query once, more than there are start over.
        arrivals: `poisson` or `constant`.
        seed: of the arrival times.
        timeout_seconds: when the client gives a request up and cancels it.
        max_seconds: no request is sent after this.
        warmup: requests sent one by one before the clock starts, not reported.
        mark_prompts: put a fresh number before each prompt, so that neither a remembered
            selection nor a prefix cache can answer for a prompt that comes again.
    """

    rate: float
    requests: int | None = None
    arrivals: Pattern = "poisson"
    seed: int = 0
    timeout_seconds: float = 60.0
    max_seconds: float = 600.0
    warmup: int = 1
    mark_prompts: bool = True

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            InvalidRequestError: a value is out of range.
        """
        for name in ("rate", "timeout_seconds", "max_seconds"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise InvalidRequestError(name, f"got {value}", "finite number greater than 0")
        for name, least in (("requests", 1), ("warmup", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise InvalidRequestError(name, f"got {value}", f"integer from {least}")
        if self.arrivals not in ("poisson", "constant"):
            raise InvalidRequestError("arrivals", f"got {self.arrivals!r}", "poisson, constant")

    def as_json(self) -> dict[str, object]:
        """Return all attributes by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}
