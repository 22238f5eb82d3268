# SPDX-License-Identifier: Apache-2.0
"""`python -m build_engines`: build the draft's and the target's engines of one deployment."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from specprefill.errors import ConfigurationError, SpecPrefillError
from specprefill.settings import Settings, load_settings

from build_engines.engines import check_block_reuse, load_tensorrt_llm
from build_engines.plan import make_plan
from build_engines.report import print_plan, print_results
from build_engines.runner import build_all, check_inputs

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def build(
    config: Annotated[Path, typer.Option(help="YAML file of the deployment.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the plan; needs no GPU and no TensorRT.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option(help="Engine folder; default: tensorrt_llm.engine_dir.")
    ] = None,
) -> None:
    """Build two TensorRT-LLM engines from Hugging Face folders.

    Any setting can be given in the environment, for example SPECPREFILL__TARGET__MODEL=/models/x.
    """
    console = Console()
    try:
        settings = load_settings(config)
        plan = make_plan(settings, engine_folder(settings, output))
        print_plan(console, plan)
        if dry_run:
            console.print("Not looked at in a dry run: weights, tokenizers, calibration texts.")
            return
        check_inputs(plan, settings)
        versions = load_tensorrt_llm()
        check_block_reuse(settings)
        print_results(console, build_all(plan, settings, versions, console))
    except SpecPrefillError as error:
        Console(stderr=True).print(f"[red]error:[/red] {error}", soft_wrap=True, highlight=False)
        raise typer.Exit(1) from error


def engine_folder(settings: Settings, output: Path | None) -> Path:
    """Choose the engine folder: the command line's, else the settings'.

    Raises:
        ConfigurationError: neither names one.
    """
    folder = output or settings.tensorrt_llm.engine_dir
    if folder is None:
        raise ConfigurationError(
            "tensorrt_llm.engine_dir: unset; allowed: a folder, there or as --output"
        )
    return Path(folder)


if __name__ == "__main__":
    app()
