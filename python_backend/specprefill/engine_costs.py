# SPDX-License-Identifier: Apache-2.0
"""What each engine took at start-up, exchanged between the processes through a folder."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from specprefill.errors import ConfigurationError

TARGET, DRAFT = "target", "draft"


@dataclass(frozen=True, slots=True)
class EngineCost:
    """Measured cost of one engine.

    Attributes:
        engine: what was measured; another engine's cost is never taken for it.
        seconds_per_operation: seconds per multiply-add of a prefill.
        step_seconds: seconds per decoded token.
    """

    engine: str
    seconds_per_operation: float
    step_seconds: float = 0.0


def write_cost(folder: Path, role: str, cost: EngineCost) -> None:
    """Write a cost so that a reader sees all of it or nothing."""
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".{role}.{os.getpid()}"
    temporary.write_text(json.dumps(asdict(cost)))
    temporary.replace(_path(folder, role))


def read_cost(folder: Path, role: str, engine: str | None = None) -> EngineCost | None:
    """Read a cost; None if there is none, or none of this engine.

    Args:
        folder: where costs are kept.
        role: TARGET or DRAFT.
        engine: whose cost is wanted; None takes any.

    Raises:
        ConfigurationError: the file holds no cost.
    """
    path = _path(folder, role)
    if not path.exists():
        return None
    try:
        cost = EngineCost(**json.loads(path.read_text()))
        usable = cost.seconds_per_operation > 0 and cost.step_seconds >= 0
    except (ValueError, TypeError) as error:
        raise ConfigurationError(f"gate.costs_folder: {path} holds no cost: {error}") from error
    if not usable:
        raise ConfigurationError(f"gate.costs_folder: {path} holds a cost that is not positive")
    return cost if engine in (None, cost.engine) else None


@contextmanager
def measured_alone(folder: Path) -> Iterator[None]:
    """Keep other processes from measuring at the same time: each would slow the other down."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".measuring").open("w") as lock:
        # Released by the kernel when its process dies.
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _path(folder: Path, role: str) -> Path:
    return folder / f"{role}-cost.json"
