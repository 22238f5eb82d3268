# SPDX-License-Identifier: Apache-2.0
"""Digests of folders and values, cheap enough for hundreds of gigabytes of weights."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# Larger files are known by their size, their first and their last bytes: a safetensors file starts
# with the names, types and offsets of its tensors.
LARGEST_WHOLE_FILE = 64 * 1024**2
SAMPLE = 4 * 1024**2


def file_digest(file: Path) -> str:
    """Digest one file.

    Args:
        file: a file; a large one is sampled at both ends.
    """
    size = file.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with file.open("rb") as stream:
        if size <= LARGEST_WHOLE_FILE:
            digest.update(stream.read())
        else:
            digest.update(stream.read(SAMPLE))
            stream.seek(-SAMPLE, 2)
            digest.update(stream.read(SAMPLE))
    return digest.hexdigest()


def folder_digest(folder: Path) -> str:
    """Digest the names and contents of the files right inside a folder, hidden ones left out."""
    digest = hashlib.sha256()
    for file in sorted(folder.iterdir()):
        if file.is_file() and not file.name.startswith("."):
            digest.update(f"{file.name}:{file_digest(file)}\n".encode())
    return digest.hexdigest()


def value_digest(value: Mapping[str, Any]) -> str:
    """Digest a value that JSON can hold."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()
