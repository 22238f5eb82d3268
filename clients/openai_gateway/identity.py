# SPDX-License-Identifier: Apache-2.0
"""What all chunks of one answer have in common."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Identity:
    """Names one answer.

    Attributes:
        id: unique.
        created: seconds since 1970.
        model: the gateway's model name.
    """

    id: str
    created: int
    model: str

    @classmethod
    def fresh(cls, prefix: str, model: str) -> Identity:
        """Name a new answer."""
        return cls(f"{prefix}-{uuid.uuid4().hex}", int(time.time()), model)
