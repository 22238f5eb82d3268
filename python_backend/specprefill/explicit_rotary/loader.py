# SPDX-License-Identifier: Apache-2.0
"""Loads the ExplicitRotary plugin into this process.

TensorRT finds a plugin in the registry of the process that builds or deserialises an engine, so
every rank calls `load_plugin` after importing tensorrt_llm and before it creates its executor.
Worker processes that run no Python of ours need the library in LD_PRELOAD instead.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import re
import threading
from pathlib import Path

from specprefill.errors import EngineError
from specprefill.explicit_rotary.libraries import PLUGIN_PATH_VARIABLE, library_folders

PLUGIN_NAME = "ExplicitRotary"
PLUGIN_VERSION = "1"
PLUGIN_NAMESPACE = "specprefill"

_FILE_NAME = re.compile(r"libexplicit_rotary_trt(\d+)\.so")

_lock = threading.Lock()
_loaded_path: Path | None = None
# Kept so that the library stays open for the life of the process.
_loaded_library: ctypes.CDLL | None = None


def load_plugin(path: str | Path | None = None) -> Path:
    """Load the plugin once per process and register its creator.

    Safe to call from several threads and any number of times.

    Args:
        path: the library or its folder. None means the path in SPECPREFILL_PLUGIN_PATH, else this
            package's folder, else plugins/explicit_rotary/build of a checkout.

    Returns:
        The library that is loaded.

    Raises:
        EngineError: no library fits the TensorRT that this process uses, it cannot be loaded, or
            another file was loaded before.
    """
    global _loaded_path, _loaded_library
    with _lock:
        if _loaded_path is not None:
            if path is not None and not _names(Path(path), _loaded_path):
                raise EngineError(f"{_loaded_path} is already loaded, not {path}")
            return _loaded_path
        tensorrt_version = _running_tensorrt_version()
        chosen = _choose(_candidates(path), tensorrt_version)
        _loaded_library = _open_and_register(chosen, tensorrt_version)
        _loaded_path = chosen
        return chosen


def _names(given: Path, loaded: Path) -> bool:
    resolved = given.resolve()
    return loaded in (resolved, resolved / loaded.name)


def _running_tensorrt_version() -> str:
    try:
        return str(importlib.import_module("tensorrt").__version__)
    except ImportError as error:
        raise EngineError(
            "TensorRT cannot be imported in this process, and the plugin needs its library: "
            f"{error}"
        ) from error


def _candidates(path: str | Path | None) -> list[Path]:
    named = path or os.environ.get(PLUGIN_PATH_VARIABLE)
    if named and not Path(named).is_dir():
        file = Path(named).resolve()
        if not file.is_file():
            raise EngineError(f"the plugin library {named} does not exist")
        if not _FILE_NAME.fullmatch(file.name):
            raise EngineError(
                f"{file.name} does not name its TensorRT major (libexplicit_rotary_trt<major>.so)"
            )
        return [file]
    folders = [Path(path)] if path else library_folders()
    found = [
        file.resolve()
        for folder in folders
        for file in sorted(folder.glob("libexplicit_rotary_trt*.so"))
        if _FILE_NAME.fullmatch(file.name)
    ]
    if not found:
        raise EngineError(
            "the ExplicitRotary plugin is not built (searched: "
            f"{', '.join(str(folder) for folder in folders)}); build the CMake target plugin of "
            f"plugins/explicit_rotary or set {PLUGIN_PATH_VARIABLE}"
        )
    return found


def _choose(candidates: list[Path], tensorrt_version: str) -> Path:
    running_major = tensorrt_version.partition(".")[0]
    for file in candidates:
        if _built_for(file) == running_major:
            return file
    built = ", ".join(f"{file} for TensorRT {_built_for(file)}" for file in candidates)
    raise EngineError(
        f"no plugin fits the running TensorRT {tensorrt_version}: {built}; "
        f"build it with TensorRT {running_major} headers"
    )


def _built_for(file: Path) -> str:
    match = _FILE_NAME.fullmatch(file.name)
    assert match is not None
    return match.group(1)


def _open_and_register(file: Path, tensorrt_version: str) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(str(file), mode=ctypes.RTLD_GLOBAL)
        compiled_major = library.explicit_rotary_tensorrt_major
        register = library.explicit_rotary_register
    except (OSError, AttributeError) as error:
        raise EngineError(f"{file} cannot be loaded: {error}") from error
    compiled_major.restype = ctypes.c_int32
    register.restype = ctypes.c_int32
    if str(compiled_major()) != tensorrt_version.partition(".")[0]:
        raise EngineError(
            f"{file} was compiled for TensorRT {compiled_major()}, "
            f"but TensorRT {tensorrt_version} is running"
        )
    if register() < 0:
        raise EngineError(f"TensorRT {tensorrt_version} refused the creator of {file}")
    return library
