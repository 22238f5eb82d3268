# SPDX-License-Identifier: Apache-2.0
"""When a request arrived and until when its answer is wanted, as it travels through the steps."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from specprefill.errors import InvalidRequestError, RequestTimeoutError
from specprefill.triton_models import requests
from specprefill.triton_models.tensors import TIMEOUT, TIMING

_NS_PER_MS = 1_000_000


@dataclass(frozen=True, slots=True)
class Timing:
    """Arrival and deadline of one request.

    Attributes:
        arrival_ns: in nanoseconds of the monotonic clock.
        deadline_ns: likewise; 0 for none.
    """

    arrival_ns: int
    deadline_ns: int = 0

    @classmethod
    def start(cls, request: Any) -> Timing:
        """Begin with a client's request.

        Raises:
            InvalidRequestError: timeout_ms is not positive.
        """
        now = time.monotonic_ns()
        timeout_ms = requests.read_scalar(request, TIMEOUT.name)
        if timeout_ms is None:
            return cls(now)
        if timeout_ms < 1:
            raise InvalidRequestError(TIMEOUT.name, f"got {timeout_ms}", "integer from 1")
        return cls(now, now + timeout_ms * _NS_PER_MS)

    @classmethod
    def read(cls, request: Any) -> Timing:
        """Take over what an earlier step sent; a step that is called alone starts anew."""
        values = requests.read_array(request, TIMING.name)
        return cls(time.monotonic_ns()) if values is None else cls(int(values[0]), int(values[1]))

    @classmethod
    def of(cls, tensors: dict[str, Any]) -> Timing:
        """Read it from the tensors that preprocessing answered with."""
        arrival, deadline = tensors[TIMING.name].as_numpy()[0]
        return cls(int(arrival), int(deadline))

    def tensor(self) -> Any:
        """Return the tensor for the next step."""
        return requests.batched(TIMING, [self.arrival_ns, self.deadline_ns])

    @property
    def remaining_seconds(self) -> float | None:
        """Return the seconds until the deadline, at least 0; None without one."""
        if not self.deadline_ns:
            return None
        return max(0.0, (self.deadline_ns - time.monotonic_ns()) / 1e9)

    @property
    def passed(self) -> bool:
        """Tell whether the deadline has passed."""
        return self.remaining_seconds == 0.0

    @property
    def elapsed_seconds(self) -> float:
        """Return the seconds since the arrival."""
        return (time.monotonic_ns() - self.arrival_ns) / 1e9

    def error(self) -> RequestTimeoutError:
        """Return the error of a request whose deadline has passed."""
        return RequestTimeoutError((self.deadline_ns - self.arrival_ns) / _NS_PER_MS)
