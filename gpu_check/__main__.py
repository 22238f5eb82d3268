# SPDX-License-Identifier: Apache-2.0
"""`python -m gpu_check`: run the checks that need a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from specprefill.errors import SpecPrefillError

from gpu_check.bench import Options
from gpu_check.registry import SUITES, all_checks, choose
from gpu_check.report import print_checks, print_results, write_report
from gpu_check.runner import exit_code, run_checks, run_in_own_process

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def check(
    suite: Annotated[str, typer.Option(help="tensorrt, or torch (needs no TensorRT).")] = SUITES[0],
    config: Annotated[
        Path | None, typer.Option(help="YAML file of the deployment whose engines are checked.")
    ] = None,
    bfloat16_engines: Annotated[
        Path | None, typer.Option(help="The same deployment's engines with bfloat16 weights.")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Only checks whose name or group contains this.")
    ] = None,
    list_checks: Annotated[bool, typer.Option("--list", help="List the checks and stop.")] = False,
    report: Annotated[Path, typer.Option(help="Where to write the JSON report.")] = Path(
        "build/gpu-check.json"
    ),
    target_layers: Annotated[
        int, typer.Option(min=1, max=32, help="torch: layers of the 8B-shaped random target.")
    ] = 16,
    timeout: Annotated[float, typer.Option(help="Seconds that one check may take.")] = 1800,
) -> None:
    """Run the checks that need a GPU.

    Exit code 0: something ran and nothing failed; 1: a check failed; 2: nothing ran.
    """
    console, errors = Console(), Console(stderr=True)
    options = Options(config, bfloat16_engines, target_layers, timeout)
    try:
        if suite not in SUITES:
            raise SpecPrefillError(f"--suite: got {suite}; allowed: {', '.join(SUITES)}")
        checks = choose(all_checks(), suite, only or [])
        if not checks:
            raise SpecPrefillError(f"--only: no check of the suite {suite} has that in its name")
        if list_checks:
            for name in SUITES:
                print_checks(console, name, choose(all_checks(), name, only or []), options)
            return
        if config is not None:
            options.settings()

        def progress(started: Any) -> None:
            console.print(f"[dim]{started.group}: {started.name} ...[/]")

        results = run_checks(checks, options, progress, run_in_own_process)
        print_results(console, results)
        write_report(report, suite, results)
        console.print(f"report: {report}", soft_wrap=True, highlight=False)
    except SpecPrefillError as error:
        errors.print("[red]error:[/]", end=" ")
        errors.print(str(error), markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(1) from error
    raise typer.Exit(exit_code(results))


if __name__ == "__main__":
    app()
