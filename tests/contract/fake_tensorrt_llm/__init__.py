# SPDX-License-Identifier: Apache-2.0
"""A double of TensorRT-LLM 1.2.1 on a CPU, built on the torch engines.

It takes the arguments that trtllm_api.json lists and no others, and follows the runtime's rules
for positions, stop words, log probabilities and cached blocks. An engine file of the double is a
JSON object that names a Hugging Face folder.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import pytest
import torch

from fake_tensorrt_llm import api, session
from fake_tensorrt_llm.executor import Executor


@dataclass
class Double:
    """What a test sets before an adapter is made, and looks at afterwards."""

    rank: int = 0
    plugin_loaded: bool = False
    executors: list[Any] = field(default_factory=list)
    sessions: list[session.Session] = field(default_factory=list)
    bindings: ModuleType | None = None


def install(
    monkeypatch: pytest.MonkeyPatch,
    version: str = "1.2.1",
    without: frozenset[str] = frozenset(),
) -> Double:
    """Put the double into sys.modules, leaving out the named optional parameters."""
    double = Double()
    package = ModuleType("tensorrt_llm")
    package.__path__ = []  # type: ignore[attr-defined]
    package.__version__ = version  # type: ignore[attr-defined]
    bindings = ModuleType("tensorrt_llm.bindings")
    bindings.__path__ = []  # type: ignore[attr-defined]
    executor = ModuleType("tensorrt_llm.bindings.executor")
    for name in api.names("tensorrt_llm.bindings.executor."):
        if name != "Executor":
            setattr(executor, name, api.make(f"tensorrt_llm.bindings.executor.{name}", without))
    attributes = {"bindings": executor, "double": double}
    executor.Executor = type("Executor", (Executor,), attributes)  # type: ignore[attr-defined]
    runtime = ModuleType("tensorrt_llm.runtime")
    runtime.Session = type(  # type: ignore[attr-defined]
        "Session", (session.Session,), {"double": double}
    )
    utils = ModuleType("tensorrt_llm._utils")
    utils.trt_dtype_to_torch = trt_dtype_to_torch  # type: ignore[attr-defined]
    double.bindings = executor
    for module in (package, bindings, executor, runtime, utils):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return double


def trt_dtype_to_torch(dtype: session.DataType) -> torch.dtype:
    return dtype.value
