# SPDX-License-Identifier: Apache-2.0
"""Cache: what a run computed, so that the next one goes on from there."""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Arrays = Mapping[str, npt.NDArray[Any]]


class Cache:
    """Arrays in files, under keys that name everything the arrays depend on."""

    def __init__(self, folder: Path) -> None:
        """Use a folder; it is made when the first entry is written."""
        self._folder = folder

    @staticmethod
    def key(**parts: Any) -> str:
        """Digest of named parts: JSON values and arrays."""
        digest = hashlib.sha256()
        for name, value in sorted(parts.items()):
            if isinstance(value, np.ndarray):
                text = f"{name}:{value.dtype}:{value.shape}:"
                digest.update(text.encode() + np.ascontiguousarray(value).tobytes())
            else:
                digest.update(f"{name}:{json.dumps(value, sort_keys=True)}".encode())
        return digest.hexdigest()

    def get(self, key: str) -> dict[str, npt.NDArray[Any]] | None:
        """Return an entry, or None; a damaged file is as good as none."""
        try:
            with np.load(self._path(key), allow_pickle=False) as stored:
                return {name: stored[name] for name in stored.files}
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            return None

    def put(self, key: str, arrays: Arrays) -> None:
        """Write an entry; readers see it whole or not at all."""
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}")
        with temporary.open("wb") as file:
            np.savez(file, **arrays)
        temporary.replace(path)

    def _path(self, key: str) -> Path:
        return self._folder / key[:2] / f"{key}.npz"


def code_digest(*names: str) -> str:
    """Digest of source files and folders of this package, so that old results are not reused."""
    root = Path(__file__).resolve().parents[1]
    digest = hashlib.sha256()
    for name in names:
        path = root / name
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            digest.update(file.read_bytes())
    return digest.hexdigest()


def model_digest(folder: Path) -> str:
    """Digest of a model folder: its configuration, and the names and sizes of its weights."""
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    for file in sorted(folder.iterdir()):
        if file.suffix in (".safetensors", ".bin"):
            digest.update(f"{file.name}:{file.stat().st_size}".encode())
    return digest.hexdigest()
