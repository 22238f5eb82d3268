# SPDX-License-Identifier: Apache-2.0
"""Results as a table to read and as JSON to attach to a bug."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from specprefill.errors import ConfigurationError

from gpu_check.bench import Figure, Options
from gpu_check.needs import missing
from gpu_check.registry import Check, Outcome, Result

REPORT_FORMAT = 1

_COLOURS = {Outcome.PASS: "green", Outcome.FAIL: "red", Outcome.SKIPPED: "yellow"}
_PACKAGES = ("specprefill-triton", "torch", "transformers", "tensorrt", "tensorrt_llm", "numpy")
_GPU_FIELDS = "name,driver_version,memory.total,compute_cap,mig.mode.current"


def print_checks(console: Console, suite: str, checks: Sequence[Check], options: Options) -> None:
    """List a suite's checks, what they claim, and what keeps them from running here."""
    table = Table("check", "group", "claim", "here", title=f"suite {suite}: {len(checks)} checks")
    for check in checks:
        reason = missing(check.needs, options)
        here = "[green]runs[/]" if reason is None else f"[yellow]skipped[/]: {escape(reason)}"
        table.add_row(check.name, check.group, escape(check.claim), here)
    console.print(table)


def print_results(console: Console, results: Sequence[Result]) -> None:
    """Show every check with its figures, and how many ended how."""
    table = Table("check", "result", "figures and reason", "s", title="GPU checks")
    for result in results:
        colour = _COLOURS[result.outcome]
        lines = [f"{name} {format_figure(value)}" for name, value in result.figures.items()]
        if result.reason:
            lines.append(result.reason)
        table.add_row(
            result.check.name,
            f"[{colour}]{result.outcome.value}[/]",
            escape("; ".join(lines)),
            f"{result.seconds:.1f}",
        )
    console.print(table)
    counts = {outcome: sum(r.outcome is outcome for r in results) for outcome in Outcome}
    console.print(", ".join(f"{count} {outcome.value}" for outcome, count in counts.items()))


def format_figure(value: Figure) -> str:
    """Write a figure with four significant digits; whole numbers and words as they are."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


def write_report(file: Path, suite: str, results: Sequence[Result]) -> None:
    """Write the JSON report.

    Raises:
        ConfigurationError: the file cannot be written.
    """
    report = {
        "format": REPORT_FORMAT,
        "suite": suite,
        "environment": environment(),
        "results": [
            {
                "check": result.check.name,
                "group": result.check.group,
                "claim": result.check.claim,
                "outcome": result.outcome.value,
                "reason": result.reason,
                "figures": result.figures,
                "seconds": round(result.seconds, 3),
            }
            for result in results
        ],
    }
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(report, indent=2) + "\n")
    except OSError as error:
        raise ConfigurationError(f"--report {file}: {error.strerror}") from error


def environment() -> dict[str, Any]:
    """Describe versions and GPUs, and nothing that names the machine or its user."""
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "versions": versions,
        "gpus": _gpus(),
    }


def _gpus() -> list[str]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    command = [program, f"--query-gpu={_GPU_FIELDS}", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return answer.stdout.strip().splitlines() if answer.returncode == 0 else []
