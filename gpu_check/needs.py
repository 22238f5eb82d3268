# SPDX-License-Identifier: Apache-2.0
"""What checks may need, and why it is missing.

Nothing here imports TensorRT-LLM: the import starts MPI, and that belongs to the processes that
run checks.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from specprefill.errors import SpecPrefillError
from specprefill.explicit_rotary.libraries import library_folders

from gpu_check.bench import Options

_TENSORRT_LLM = "1.2."

Need = Callable[[Options], str | None]


def missing(needs: Sequence[str], options: Options) -> str | None:
    """Return why the first missing one of the needs is missing, or None."""
    for name in needs:
        reason = NEEDS[name](options)
        if reason is not None:
            return reason
    return None


def _cuda(_: Options) -> str | None:
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed"
    import torch

    if not torch.cuda.is_available():
        return f"no CUDA device that torch {torch.__version__} can use"
    return None


def _two_gpus(options: Options) -> str | None:
    reason = _cuda(options)
    if reason is not None:
        return reason
    import torch

    count = torch.cuda.device_count()
    return None if count >= 2 else f"{count} GPU; two are needed"


def _program(name: str) -> Need:
    return lambda _: None if shutil.which(name) else f"{name} is not on PATH"


def _tensorrt(_: Options) -> str | None:
    return None if importlib.util.find_spec("tensorrt") else "TensorRT is not installed"


def _tensorrt_llm(_: Options) -> str | None:
    try:
        version = importlib.metadata.version("tensorrt_llm")
    except importlib.metadata.PackageNotFoundError:
        return "TensorRT-LLM is not installed"
    if not version.startswith(_TENSORRT_LLM):
        return f"TensorRT-LLM is {version}; compiled engines need {_TENSORRT_LLM}x"
    return None


def _plugin(_: Options) -> str | None:
    for folder in library_folders():
        if any(folder.glob("libexplicit_rotary_trt*.so")):
            return None
    return "the plugin is not built (plugins/explicit_rotary/README.md)"


def _transformers_5(_: Options) -> str | None:
    try:
        version = importlib.metadata.version("transformers")
    except importlib.metadata.PackageNotFoundError:
        return "transformers is not installed"
    major = int(version.partition(".")[0])
    return None if major >= 5 else f"transformers is {version}; the torch engines need 5"


def _engines(options: Options) -> str | None:
    try:
        settings = options.settings()
    except SpecPrefillError as error:
        return str(error)
    folder = settings.tensorrt_llm.engine_dir
    if settings.engine != "tensorrt_llm" or folder is None:
        return "no configuration with engine: tensorrt_llm was given (--config)"
    if not (Path(folder) / "manifest.json").is_file():
        return f"no engines in {folder} (specprefill build)"
    return None


def _weights(options: Options) -> str | None:
    try:
        settings = options.settings()
    except SpecPrefillError as error:
        return str(error)
    for section in (settings.target, settings.draft):
        if not any(Path(section.model).glob("*.safetensors")):
            return f"no weights in {section.model}"
    if (Path(settings.target.model) / "hf_quant_config.json").is_file():
        return "the target's folder holds FP8 weights, which Hugging Face's classes cannot run"
    return None


def _bfloat16_engines(options: Options) -> str | None:
    if options.bfloat16_engines is None:
        return "no bfloat16 engines were given (--bfloat16-engines)"
    if not (options.bfloat16_engines / "manifest.json").is_file():
        return f"no engines in {options.bfloat16_engines}"
    return None


def _unused(what: str) -> Need:
    return lambda _: f"{what}; nothing in this repository uses it"


NEEDS: Mapping[str, Need] = {
    "cuda": _cuda,
    "two GPUs": _two_gpus,
    "nvcc": _program("nvcc"),
    "cmake": _program("cmake"),
    "mpirun": _program("mpirun"),
    "tensorrt": _tensorrt,
    "tensorrt_llm": _tensorrt_llm,
    "plugin": _plugin,
    "transformers 5": _transformers_5,
    "engines": _engines,
    "weights": _weights,
    "bfloat16 engines": _bfloat16_engines,
    "extra ids": _unused("extra token ids as part of the block key need a prompt-table engine"),
    "python paged pool": _unused("a paged pool owned by Python is an alternative for the draft"),
    "ahead-of-time plugin": _unused("a plugin embedded in the engine as PTX is an alternative"),
}
