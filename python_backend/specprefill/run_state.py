# SPDX-License-Identifier: Apache-2.0
"""What the launcher and the entry model tell each other, in two small files."""

from __future__ import annotations

import os
from pathlib import Path

FOLDER_VARIABLE = "SPECPREFILL_RUN_FOLDER"
_COUNT_BYTES = 8


class RunState:
    """Requests in flight, told by the entry model, and the drain, told by the launcher.

    Files, because they outlive the process that wrote them: what was in flight in a process that
    was killed is just what the launcher must know.
    """

    def __init__(self, folder: str | Path) -> None:
        """Use a folder that both can write to."""
        self._in_flight = Path(folder) / "in_flight"
        self._draining = Path(folder) / "draining"
        self._in_flight.touch(0o600)
        self._file = self._in_flight.open("r+b", buffering=0)

    @property
    def in_flight(self) -> int:
        """Requests that the entry model has taken and not answered."""
        return int.from_bytes(os.pread(self._file.fileno(), _COUNT_BYTES, 0), "little")

    @in_flight.setter
    def in_flight(self, count: int) -> None:
        os.pwrite(self._file.fileno(), count.to_bytes(_COUNT_BYTES, "little"), 0)

    @property
    def draining(self) -> bool:
        """Whether new requests are refused because the server is about to end."""
        return self._draining.exists()

    def drain(self) -> None:
        """Refuse new requests from now on."""
        self._draining.touch()
