# SPDX-License-Identifier: Apache-2.0
"""Workspace: a temporary folder that a later start removes if its owner was killed."""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import tempfile
from pathlib import Path

_PREFIX = "specprefill-"
_LOCK = "lock"


class Workspace:
    """A temporary folder with a lock on it for as long as its owner lives.

    The kernel lifts the lock when the owner dies, however it dies. A process id would not do: in
    another container that shares the folder for temporary files it means another process.
    """

    def __init__(self) -> None:
        """Create the folder."""
        self._folder = tempfile.TemporaryDirectory(prefix=_PREFIX)
        new = self.path / f".{_LOCK}"
        self._lock = new.open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        # Under its name only when it is held: whoever sees it can tell whether its owner lives.
        new.rename(self.path / _LOCK)

    @property
    def path(self) -> Path:
        """The folder."""
        return Path(self._folder.name)

    def cleanup(self) -> None:
        """Remove the folder."""
        self._folder.cleanup()
        self._lock.close()


def remove_stale_workspaces() -> None:
    """Remove the folders whose owners were killed."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/{_LOCK}"):
        # Another user's, or gone meanwhile.
        with contextlib.suppress(OSError), path.open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path.parent, ignore_errors=True)
