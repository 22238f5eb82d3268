# SPDX-License-Identifier: Apache-2.0
"""What a figure leaves behind: one JSON file with its machine, versions and settings."""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
import torch

from benchmarks.options import Options

_PACKAGES = ("specprefill-triton", "torch", "transformers", "nvidia-pytriton", "numpy")


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return median, extremes and number of some repeats."""
    return {
        "median": statistics.median(values),
        "min": min(values),
        "max": max(values),
        "n": len(values),
    }


def ratios(dense: Sequence[float], sparse: Sequence[float]) -> dict[str, float]:
    """Return dense over sparse, round by round: neighbours in time are compared."""
    return spread([d / s for d, s in zip(dense, sparse, strict=True)])


def environment(device: str) -> dict[str, Any]:
    """Describe machine and versions; the load tells whether the machine was idle."""
    return {
        "machine": {
            "processor": _processor(),
            "cores": len(os.sched_getaffinity(0)),
            "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
            "instructions": torch.backends.cpu.get_cpu_capability(),
            "threads": torch.get_num_threads(),
            "gpu": torch.cuda.get_device_name() if device == "cuda" else None,
            "load_before": os.getloadavg()[0],
        },
        "versions": {"python": platform.python_version(), **_versions()},
    }


def write_result(
    figure: str,
    options: Options,
    before: dict[str, Any],
    started: float,
    data: dict[str, Any],
) -> Path:
    """Write a figure's result.

    Args:
        figure: its name.
        options: how it was measured.
        before: `environment` before the measurement.
        started: `time.perf_counter` before it.
        data: what was measured.
    """
    result = {
        "figure": figure,
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "smoke": options.smoke,
        "device": options.device,
        "config": options.config.name if options.config else "smollm2-cpu.yaml",
        "seconds": round(time.perf_counter() - started, 1),
        **before,
        "data": data,
    }
    options.output.mkdir(parents=True, exist_ok=True)
    path = result_path(options.output, figure)
    # Renamed when whole, so that an interrupted run leaves no half of a file.
    half = path.with_suffix(".part")
    half.write_text(json.dumps(result, indent=1))
    half.rename(path)
    return path


def result_path(folder: Path, figure: str) -> Path:
    """Return where a figure's result lies."""
    return folder / f"{figure}.json"


def read_result(folder: Path, figure: str) -> dict[str, Any] | None:
    """Return a figure's result; None if it was not measured."""
    path = result_path(folder, figure)
    return json.loads(path.read_text()) if path.is_file() else None


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
