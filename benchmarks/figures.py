# SPDX-License-Identifier: Apache-2.0
"""The figures by name, in the order in which they are measured and reported."""

from __future__ import annotations

import importlib
from types import ModuleType

# Name of a module of this package -> what it is about.
FIGURES = {
    "ttft": "time to first token against prompt length and keep rate",
    "targets": "time to first token of targets that are larger than their draft",
    "largest": "time to first token of a long prompt with a large target",
    "breakdown": "where the time to the first token goes",
    "operators": "which operators a prefill spends its time in",
    "scoring": "time and memory of scoring",
    "qps": "requests per second under an objective",
    "decode": "decoding throughput and speed",
    "startup": "seconds from start to ready",
    "memory": "the server's memory over many requests",
    "peers": "other engines with the same weights",
}


def load_figure(name: str) -> ModuleType:
    """Import the module that measures a figure; it has `TITLE` and `measure`."""
    return importlib.import_module(f"benchmarks.{name}")
