# SPDX-License-Identifier: Apache-2.0
"""Which process runs which Triton model, read from /proc."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_STUB = "triton_python_backend_stub"
# Fields of /proc/PID/stat behind the command's name.
_STATE, _PARENT, _START = 0, 1, 19
_DEAD = ("Z", "X", "x")


@dataclass(frozen=True, slots=True)
class ModelProcess:
    """The Python process of one model.

    Attributes:
        model: the model's name.
        pid: process id.
        start_ticks: when it started, in clock ticks since the machine did; a process id that is
            used again differs in it.
    """

    model: str
    pid: int
    start_ticks: int

    def is_alive(self) -> bool:
        """Tell whether the process runs; one that ended and was not yet waited for does not."""
        fields = _stat(self.pid)
        return (
            fields is not None
            and fields[_STATE] not in _DEAD
            and int(fields[_START]) == self.start_ticks
        )

    def kill(self) -> None:
        """End the process at once, if it still runs."""
        if self.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


def model_processes(server_pid: int) -> dict[str, ModelProcess]:
    """Find the running model processes below a tritonserver.

    Args:
        server_pid: process id of tritonserver, or of the mpirun above several; of those, each
            model's first rank is found.

    Returns:
        Model name -> its process; empty where /proc does not tell.
    """
    found: dict[str, ModelProcess] = {}
    for pid in sorted(_descendants(server_pid)):
        model = _model(pid)
        fields = _stat(pid)
        if model is None or fields is None or fields[_STATE] in _DEAD:
            continue
        found.setdefault(model, ModelProcess(model, pid, int(fields[_START])))
    return found


def _descendants(root: int) -> Iterator[int]:
    children: dict[int, list[int]] = {}
    for folder in _PROC.glob("[0-9]*"):
        fields = _stat(int(folder.name))
        if fields is not None:
            children.setdefault(int(fields[_PARENT]), []).append(int(folder.name))
    open_pids = [root]
    while open_pids:
        below = children.get(open_pids.pop(), [])
        yield from below
        open_pids += below


def _stat(pid: int) -> list[str] | None:
    with contextlib.suppress(OSError):
        # The name, in brackets, may hold spaces and brackets.
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    return None


def _model(pid: int) -> str | None:
    """Return the model that a stub runs: its first argument is .../MODEL/VERSION/model.py."""
    with contextlib.suppress(OSError):
        words = (_PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
        if len(words) > 1 and Path(words[0].decode()).name == _STUB:
            return Path(words[1].decode()).parent.parent.name
    return None
