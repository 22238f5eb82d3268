# SPDX-License-Identifier: Apache-2.0
"""Measures figures and writes the page; `make bench` and `specprefill bench` run it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from enum import Enum
from pathlib import Path
from typing import Annotated

# Servers and pipelines share few cores with this process; spinning threads would starve them.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("KINETO_LOG_LEVEL", "5")  # the profiler announces itself otherwise

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from specprefill.errors import SpecPrefillError

from benchmarks.figures import FIGURES, load_figure
from benchmarks.options import ROOT, Options
from benchmarks.report import write_page
from benchmarks.results import environment, result_path, write_result

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False, rich_markup_mode="rich")
_console = Console(soft_wrap=True)

# Minutes of each figure; one round of every grid is measured even if it takes longer.
_MINUTES = {
    "ttft": 3.5, "targets": 3.5, "largest": 1.0, "breakdown": 1.5, "operators": 0.5,
    "scoring": 1.5, "qps": 5.5, "decode": 1.5, "startup": 0.7, "memory": 1.2, "peers": 2.0,
}  # fmt: skip


class Device(str, Enum):
    """Where both models run."""

    CPU = "cpu"
    CUDA = "cuda"


@app.command(
    epilog="Examples:  [bold]specprefill bench ttft[/]  |  "
    "[bold]specprefill bench --peer-python build/peers/bin/python[/]"
)
def bench(
    figures: Annotated[
        list[str] | None,
        typer.Argument(help=f"Of: {', '.join(FIGURES)}; none: all, then the page."),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="Deployment to measure; default: smollm2-cpu.yaml.")
    ] = None,
    device: Annotated[Device, typer.Option(help="Where both models run.")] = Device.CPU,
    minutes: Annotated[
        float | None, typer.Option(min=0, help="Time for the repeats of each figure.")
    ] = None,
    peer_python: Annotated[
        Path | None, typer.Option(help="Interpreter that has other engines installed.")
    ] = None,
    smoke: Annotated[
        bool, typer.Option("--smoke", help="Test the scripts: tiny model, smallest grid.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Measure figures again that are recent.")
    ] = False,
    max_age_hours: Annotated[
        float, typer.Option(help="Of all figures: those measured since are not measured again.")
    ] = 12,
    output: Annotated[
        Path | None, typer.Option(help="Folder of the results; default: build/bench.")
    ] = None,
    report: Annotated[
        bool, typer.Option("--report", help="Only write docs/benchmarks.md from the results.")
    ] = False,
) -> None:
    """Measure figures on this machine; without names, all of them, and write docs/benchmarks.md."""
    output = (output or ROOT / "build" / ("bench-smoke" if smoke else "bench")).absolute()
    unknown = [name for name in figures or () if name not in FIGURES]
    if unknown:
        raise typer.BadParameter(f"{unknown[0]!r}: no figure; allowed: {', '.join(FIGURES)}")
    names = [] if report else figures or list(FIGURES)
    if not figures and device is Device.CUDA:
        names = [name for name in names if name != "peers"]  # other engines run on the CPU
    failed = []
    for name in names:
        options = Options(
            config=config,
            device=device.value,
            minutes=_MINUTES[name] if minutes is None else minutes,
            smoke=smoke,
            output=output,
            peer_python=peer_python,
        )
        if figures:
            measure_figure(name, options)
        elif not force and _is_recent(output, name, max_age_hours):
            _console.print(f"{name}: measured less than {max_age_hours:g} hours ago, kept")
        else:
            _console.rule(f"{name}: {FIGURES[name]}")
            if subprocess.run(_command(name, options), cwd=ROOT, check=False).returncode:
                failed.append(name)
    if not figures:
        page, images = (output, output) if smoke else (ROOT / "docs", ROOT / "docs" / "images")
        written = write_page(output, page / "benchmarks.md", images)
        _console.print(f"written to {written}")
    if failed:
        _console.print(f"[red]failed: {', '.join(failed)}[/]")
        raise typer.Exit(1)


def measure_figure(name: str, options: Options) -> Path:
    """Measure one figure in this process and write its result."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    before = environment(options.device)
    started = time.perf_counter()
    with Progress(*columns, console=_console) as progress:
        data = load_figure(name).measure(options, progress)
    path = write_result(name, options, before, started, data)
    _console.print(f"{name}: {time.perf_counter() - started:.0f} s, written to {path}")
    return path


def _command(name: str, options: Options) -> list[str]:
    """Return the command for one figure: each in a process of its own.

    One that fails leaves the others alone, and none measures with another's memory still held.
    """
    command = [sys.executable, "-m", "benchmarks", name, "--device", options.device]
    command += ["--minutes", str(options.minutes), "--output", str(options.output)]
    if options.config is not None:
        command += ["--config", str(options.config.resolve())]
    if options.peer_python is not None:
        # Not resolved: a virtual environment is found by the link's own place.
        command += ["--peer-python", str(options.peer_python.absolute())]
    return command + (["--smoke"] if options.smoke else [])


def _is_recent(folder: Path, name: str, hours: float) -> bool:
    path = result_path(folder, name)
    return path.is_file() and time.time() - path.stat().st_mtime < 3600 * hours


def main() -> None:
    """Run the command line; an error of ours is one line, not a traceback."""
    try:
        app(prog_name="python -m benchmarks")
    except SpecPrefillError as error:
        _console.print(f"[red]error:[/] {escape(str(error))}")
        sys.exit(1)


if __name__ == "__main__":
    main()
