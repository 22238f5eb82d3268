# SPDX-License-Identifier: Apache-2.0
"""How soon something that crashed is started again, and when no more."""

from __future__ import annotations

from dataclasses import dataclass

_STABLE_SECONDS = 60.0
_LONGEST_DELAY_SECONDS = 30.0


@dataclass(slots=True)
class RestartPolicy:
    """Counts crashes that follow each other closely.

    Attributes:
        limit: this many in a row, none after a minute of service, and it is given up; None never
            gives up.
        crashes: how many there were in a row.
    """

    limit: int | None = 5
    crashes: int = 0

    def crashed(self, served_seconds: float) -> float | None:
        """Count a crash.

        Args:
            served_seconds: for how long it had been in service; 0 if it never was.

        Returns:
            Seconds to wait before the next start (0, 1, 3, 7, ...); None gives up.
        """
        if served_seconds >= _STABLE_SECONDS:
            self.crashes = 0
        self.crashes += 1
        if self.limit is not None and self.crashes >= self.limit:
            return None
        # The exponent is bounded, too: a gateway may crash for days.
        return min(2.0 ** min(self.crashes - 1, 10) - 1, _LONGEST_DELAY_SECONDS)
