# SPDX-License-Identifier: Apache-2.0
"""Imports TensorRT-LLM only where its engines are configured."""

from __future__ import annotations

import importlib
from types import ModuleType

from specprefill.errors import ConfigurationError


def import_tensorrt_llm(module: str, built_with: str) -> ModuleType:
    """Import one module of TensorRT-LLM, of the version that built the engines.

    Args:
        module: name below `tensorrt_llm`, for example `runtime`.
        built_with: version that the engine's config.json names.

    Raises:
        ConfigurationError: TensorRT-LLM is not installed, has no such module, or is of another
            version: compiled engines only run in the version that built them.
    """
    try:
        version = importlib.import_module("tensorrt_llm").__version__
        imported = importlib.import_module(f"tensorrt_llm.{module}")
    except ImportError as error:
        raise ConfigurationError(
            f"engine: tensorrt_llm needs the package tensorrt_llm with compiled engines: {error}"
        ) from error
    if version != built_with:
        raise ConfigurationError(
            f"the engines were built with TensorRT-LLM {built_with} but {version} is installed; "
            "build them again"
        )
    return imported
