# SPDX-License-Identifier: Apache-2.0
"""The command line: serve, demo, generate, build, version."""

from __future__ import annotations

import importlib
import importlib.util
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.panel import Panel
from rich.table import Table

import specprefill
from specprefill.errors import SpecPrefillError
from specprefill.settings import Settings, load_settings

app = typer.Typer(
    help="Speculative Prefill for Triton: a small draft model picks the prompt tokens that the "
    "target prefills. Faster first token, lossy.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
_console = Console()
_errors = Console(stderr=True)

ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", help="YAML file of the deployment; default: the embedded model."),
]


def default_config() -> Path:
    """Return the configuration of the embedded model that comes with the source tree."""
    return Path(__file__).resolve().parents[2] / "configs" / "smollm2-cpu.yaml"


@app.command(
    epilog="Examples:  [bold]specprefill serve[/]  |  "
    "[bold]specprefill serve --config my.yaml --host 0.0.0.0 --http-port 9000[/]"
)
def serve(
    config: ConfigOption = None,
    host: Annotated[str | None, typer.Option(help="Address to bind; default 127.0.0.1.")] = None,
    http_port: Annotated[int | None, typer.Option(help="Default 8000; 0 takes a free one.")] = None,
    grpc_port: Annotated[int | None, typer.Option(help="Default 8001; 0 takes a free one.")] = None,
    metrics_port: Annotated[
        int | None, typer.Option(help="Default 8002; 0 takes a free one.")
    ] = None,
) -> None:
    """Serve both entry models until Ctrl-C."""
    from specprefill.server import TritonServer

    given = {
        "host": host,
        "http_port": http_port,
        "grpc_port": grpc_port,
        "metrics_port": metrics_port,
    }
    overrides = {"server": {key: value for key, value in given.items() if value is not None}}
    server = TritonServer(_load(config, overrides))
    stop = threading.Event()
    with _status("starting") as status:
        server.start(status)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    try:
        _show_banner(server.settings)
        while not stop.wait(0.5):
            if not server.is_alive():
                _errors.print("[red]tritonserver ended by itself; its last lines:[/]")
                _errors.print(server.log_tail(), markup=False)
                raise typer.Exit(1)
        _console.print("stopping")
    finally:
        server.stop()


@app.command(
    epilog="Examples:  [bold]specprefill demo[/]  |  [bold]specprefill demo --keep-rate 0.1[/]"
)
def demo(
    config: ConfigOption = None,
    keep_rate: Annotated[
        float | None, typer.Option(help="Share of chunks to keep; default: the configuration's.")
    ] = None,
    sentences: Annotated[int, typer.Option(help="Length of the document.")] = 225,
) -> None:
    """Ask about one long document, densely and sparsely, on a server started for it."""
    from specprefill.demo import FACT, QUESTION, ask, demo_messages
    from specprefill.server import TritonServer

    free_ports = {"server": {"http_port": 0, "grpc_port": 0, "metrics_port": 0}}
    server = TritonServer(_load(config, free_ports))
    messages = demo_messages(sentences)
    answers = {}
    with _status("starting") as status:
        server.start(status)
    try:
        _console.print(f"Question after a long document: [bold]{QUESTION}[/]  (it says {FACT})")
        rate = server.settings.selection.keep_rate if keep_rate is None else keep_rate
        for name, value in (("dense", 1.0), ("sparse", rate)):
            _console.print(f"[bold]{name:>7}[/]: ", end="")
            answers[name] = ask(server.grpc_url, messages, value, _show)
            _console.print()
    finally:
        with _status("stopping the server"):
            server.stop()
    _console.print(_comparison(answers["dense"], answers["sparse"]))
    if not all(answer.holds_fact for answer in answers.values()):
        _errors.print("[red]an answer lacks the fact[/]")
        raise typer.Exit(1)


@app.command(
    epilog="Examples:  [bold]specprefill generate 'The capital of France is'[/]  |  "
    "[bold]specprefill generate --file report.txt --keep-rate 0.1[/]  |  "
    "[bold]cat report.txt | specprefill generate - --chat[/]"
)
def generate(
    prompt: Annotated[str | None, typer.Argument(help="The prompt; - reads stdin.")] = None,
    file: Annotated[Path | None, typer.Option(help="Read the prompt from this file.")] = None,
    url: Annotated[str, typer.Option(help="gRPC address of a running server.")] = "127.0.0.1:8001",
    model: Annotated[str, typer.Option(help="specprefill or ensemble.")] = "specprefill",
    chat: Annotated[bool, typer.Option(help="Send the prompt as a chat message.")] = False,
    max_tokens: Annotated[int | None, typer.Option(help="Most tokens to generate.")] = None,
    keep_rate: Annotated[float | None, typer.Option(help="Share of chunks to keep.")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Turns sampling on.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Turns sampling on.")] = None,
    seed: Annotated[int | None, typer.Option(help="Makes sampling repeatable.")] = None,
) -> None:
    """Stream the answer to one prompt from a running server."""
    import json

    from specprefill.client import stream

    text = _read_prompt(prompt, file)
    fields: dict[str, Any] = {
        "max_tokens": max_tokens,
        "keep_rate": keep_rate,
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "seed": seed,
    }
    fields = {name: value for name, value in fields.items() if value is not None}
    if chat:
        fields["messages"] = json.dumps([{"role": "user", "content": text}])
    else:
        fields["text_input"] = text
    statistics: dict[str, Any] = {}
    for piece in stream(url, model, **fields):
        _show(piece.text)
        statistics = piece.outputs or statistics
    _console.print()
    _errors.print(
        f"[dim]{statistics.get('reason', '')} (draft {statistics.get('draft_ms', 0):.0f} ms, "
        f"target prefill {statistics.get('target_prefill_ms', 0):.0f} ms)[/]"
    )


@app.command(
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    epilog="Example:  [bold]specprefill build --config my.yaml --dry-run[/]",
)
def build(context: typer.Context) -> None:
    """Build the TensorRT-LLM engines; takes the arguments of python -m build_engines."""
    # The wheel holds no builder: it lies in the repository, which an editable install belongs to.
    checkout = Path(__file__).resolve().parents[2]
    if importlib.util.find_spec("build_engines") is None and (checkout / "build_engines").is_dir():
        sys.path.insert(0, str(checkout))
    try:
        builder = importlib.import_module("build_engines.__main__")
    except ModuleNotFoundError as error:
        if error.name not in ("build_engines", "build_engines.__main__"):
            raise
        raise SpecPrefillError(
            "build_engines is not importable; run this from the repository's folder, or put that "
            "folder on PYTHONPATH"
        ) from error
    builder.app(args=context.args, prog_name="specprefill build")


@app.command()
def version() -> None:
    """Print the version."""
    _console.print(specprefill.__version__)


def main() -> None:
    """Run the command line; an error of ours is one line, not a traceback."""
    try:
        app()
    except SpecPrefillError as error:
        _errors.print("[red]error:[/]", end=" ")
        _errors.print(str(error), markup=False, highlight=False)
        sys.exit(1)


def _load(config: Path | None, overrides: dict[str, Any]) -> Settings:
    import os

    from specprefill.settings import CONFIG_VARIABLE

    if config is None and not os.environ.get(CONFIG_VARIABLE):
        config = default_config()
    return load_settings(config, overrides)


def _read_prompt(prompt: str | None, file: Path | None) -> str:
    if (prompt is None) == (file is None):
        raise SpecPrefillError("give the prompt either as an argument (- for stdin) or with --file")
    try:
        if file is not None:
            return file.read_text()
        return sys.stdin.read() if prompt == "-" else str(prompt)
    except (OSError, UnicodeDecodeError) as error:
        raise SpecPrefillError(f"the prompt cannot be read: {error}") from error


def _show(text: str) -> None:
    _console.print(text, end="", markup=False, highlight=False, soft_wrap=True)


@contextmanager
def _status(message: str) -> Iterator[Any]:
    """Show what is being waited for: a spinner on a terminal, one line per step elsewhere."""
    if not _console.is_terminal:
        yield lambda text: _console.print(f"{text} ...")
        return
    with _console.status(message) as status:
        yield lambda text: status.update(text)


def _show_banner(settings: Settings) -> None:
    server = settings.server
    http = f"http://{server.host}:{server.http_port}"
    selection = settings.selection
    _console.print(
        Panel.fit(
            f"HTTP     {http}\n"
            f"gRPC     {server.host}:{server.grpc_port}\n"
            f"metrics  http://{server.host}:{server.metrics_port}/metrics\n"
            f"models   specprefill, ensemble\n"
            f"keeps    {selection.keep_rate:.0%} of prompts from {selection.min_prompt_tokens} "
            "tokens on: lossy; keep_rate 1 is dense",
            title=f"SpecPrefill-Triton {specprefill.__version__}, Ctrl-C stops",
        )
    )
    # Outside the frame and on one line, so that it can be copied.
    _console.print(
        f"curl -s {http}/v2/models/specprefill/generate -H 'Content-Type: application/json' "
        '-d \'{"text_input": "The capital of France is", "max_tokens": 8}\'',
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


def _comparison(dense: Any, sparse: Any) -> Table:
    table = Table(title="One document, one question")
    for column in ("", "dense", "sparse"):
        table.add_column(column, justify="left" if not column else "right")
    rows = (
        ("prompt tokens", "prompt_tokens", "{}"),
        ("kept tokens", "kept_tokens", "{}"),
        ("draft", "draft_ms", "{:.0f} ms"),
        ("target prefill", "target_prefill_ms", "{:.0f} ms"),
    )
    for label, name, form in rows:
        values = (form.format(answer.statistics[name]) for answer in (dense, sparse))
        table.add_row(label, *values)
    table.add_row("TTFT", f"{dense.ttft_seconds:.2f} s", f"{sparse.ttft_seconds:.2f} s")
    table.add_row("TTFT ratio", "1.00", f"{dense.ttft_seconds / sparse.ttft_seconds:.2f}")
    table.add_row("answer", dense.text.strip(), sparse.text.strip())
    return table
