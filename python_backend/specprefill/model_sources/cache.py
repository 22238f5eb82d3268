# SPDX-License-Identifier: Apache-2.0
"""The folder of models that this package writes itself, each written once and whole."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from specprefill.errors import ConfigurationError

_MARKER = "specprefill_source.json"


def cache_folder() -> Path:
    """Return the folder for models written here: SPECPREFILL_CACHE, else the user's cache."""
    named = os.environ.get("SPECPREFILL_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "specprefill"


def write_once(folder: Path, write: Callable[[Path], None]) -> None:
    """Write a folder aside and rename it, so that a crash or two processes leave no half of one.

    Args:
        folder: replaced if it exists.
        write: fills the empty folder that it is given.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=".unpack-", dir=folder.parent))
    try:
        write(staging)
        if folder.exists():
            shutil.rmtree(folder)
        staging.rename(folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def check_space(folder: Path, needed: int) -> None:
    """Refuse to write a model that the disk has no room for.

    Args:
        folder: where it would lie.
        needed: bytes.

    Raises:
        ConfigurationError: less is free.
    """
    existing = folder
    while not existing.exists():
        existing = existing.parent
    free = shutil.disk_usage(existing).free
    if needed > free:
        raise ConfigurationError(
            f"{folder.name} needs {needed / 1e9:.1f} GB in {folder.parent}, and "
            f"{free / 1e9:.1f} GB are free; name another folder with SPECPREFILL_CACHE"
        )


def mark(folder: Path, source: str, remark: str) -> None:
    """Note in a finished folder what the model is, and the size of every file.

    Args:
        folder: the model's folder.
        source: the name that it is resolved from.
        remark: what a reader of its figures must know.
    """
    sizes = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
    text = json.dumps({"source": source, "remark": remark, "sizes": sizes}, indent=1)
    (folder / _MARKER).write_text(text)


def is_marked_whole(folder: Path, source: str) -> bool:
    """Tell whether a folder holds that model with every file in its full size."""
    marker = _read(folder)
    try:
        return marker.get("source") == source and all(
            (folder / name).stat().st_size == size for name, size in marker["sizes"].items()
        )
    except (OSError, KeyError, AttributeError):
        return False


def remark(folder: str | Path) -> str:
    """Return what a reader of a model's figures must know; empty for a model as published."""
    return str(_read(Path(folder)).get("remark", ""))


def _read(folder: Path) -> dict[str, Any]:
    try:
        marker = json.loads((folder / _MARKER).read_text())
    except (OSError, ValueError):
        return {}
    return marker if isinstance(marker, dict) else {}
