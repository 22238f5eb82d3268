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
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.panel import Panel
from rich.table import Table

import specprefill
from specprefill.errors import SpecPrefillError
from specprefill.settings import Settings, load_settings

if TYPE_CHECKING:
    from specprefill.supervisor import Supervisor

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
    "[bold]specprefill serve --config my.yaml --host 0.0.0.0 --http-port 8100[/]"
)
def serve(
    config: ConfigOption = None,
    host: Annotated[str | None, typer.Option(help="Address to bind; default 127.0.0.1.")] = None,
    http_port: Annotated[int | None, typer.Option(help="Default 8000; 0 takes a free one.")] = None,
    grpc_port: Annotated[int | None, typer.Option(help="Default 8001; 0 takes a free one.")] = None,
    metrics_port: Annotated[
        int | None, typer.Option(help="Default 8002; 0 takes a free one.")
    ] = None,
    openai_port: Annotated[
        int | None, typer.Option(help="OpenAI API; default 9000; 0 takes a free one.")
    ] = None,
    no_openai: Annotated[
        bool, typer.Option("--no-openai", help="Do not start the OpenAI gateway.")
    ] = False,
) -> None:
    """Serve both entry models and the OpenAI API until Ctrl-C; a second Ctrl-C ends at once."""
    from specprefill.supervisor import Outcome

    server = {
        "host": host,
        "http_port": http_port,
        "grpc_port": grpc_port,
        "metrics_port": metrics_port,
    }
    gateway = {"port": openai_port, "enabled": False if no_openai else None}
    overrides = {
        section: {key: value for key, value in given.items() if value is not None}
        for section, given in (("server", server), ("gateway", gateway))
    }
    supervisor = _make_supervisor(_load(config, overrides))
    stop = threading.Event()

    def on_signal(*_: object) -> None:
        if stop.is_set() or supervisor.starting:
            raise KeyboardInterrupt
        stop.set()
        _console.print("stopping: running answers may end; again to stop at once")

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)
    try:
        with _status("starting") as status:
            supervisor.start(status)
        _show_banner(supervisor)
        outcome = supervisor.run(stop)
    except KeyboardInterrupt:
        outcome = Outcome.CUT_OFF
    finally:
        supervisor.close()
    if outcome is Outcome.CUT_OFF:
        _errors.print("[red]ended before all answers were complete[/]")
    if outcome is not Outcome.DRAINED:
        raise typer.Exit(1)


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
    _run_from_checkout("build_engines", "specprefill build", context.args)


@app.command(
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    epilog="Examples:  [bold]specprefill bench ttft[/]  |  [bold]specprefill bench --help[/]",
)
def bench(context: typer.Context) -> None:
    """Measure one figure of docs/benchmarks.md, or all; takes what python -m benchmarks takes."""
    _run_from_checkout("benchmarks", "specprefill bench", context.args)


@app.command(
    epilog="Example:  [bold]specprefill plan --target llama-3.1-70b --draft llama-3.1-8b "
    "--prompt 32768 --keep 0.1 --gpus 8 --draft-gpus 8 --fp8[/]"
)
def plan(
    target: Annotated[str, typer.Option(help="Published name, or a folder with config.json.")],
    draft: Annotated[str, typer.Option(help="The same, of the draft.")],
    prompt: Annotated[int, typer.Option(help="Prompt tokens.")] = 32768,
    keep: Annotated[float, typer.Option(help="Share of the prompt that is kept.")] = 0.2,
    gpu: Annotated[str, typer.Option(help="a100-80gb, h100, h200 or l40s.")] = "h100",
    gpus: Annotated[int, typer.Option(help="GPUs that share the target.")] = 1,
    draft_gpus: Annotated[int, typer.Option(help="GPUs that share the draft.")] = 1,
    fp8: Annotated[bool, typer.Option("--fp8", help="Target weights and keys in FP8.")] = False,
    look_ahead: Annotated[int, typer.Option(help="Steps of the paper's rule; 1: none.")] = 8,
) -> None:
    """Print what speculative prefill can gain at best, and what it takes of each GPU."""
    from specprefill.plan import PlanRequest, render

    request = PlanRequest(target, draft, prompt, keep, gpu, gpus, draft_gpus, fp8, look_ahead)
    for part in render(request):
        _console.print(part)


@app.command(
    name="perf-input",
    epilog="Example:  [bold]specprefill perf-input prompts.jsonl --output in.json --max-tokens 16 "
    "--set keep_rate=0.2[/]",
)
def perf_input(
    prompts: Annotated[
        Path, typer.Argument(help=".jsonl with one prompt per line; any other file is one prompt.")
    ],
    output: Annotated[Path, typer.Option(help="File to write.")],
    max_tokens: Annotated[int, typer.Option(min=1, help="Length of every answer at most.")] = 64,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="name=value, an input of every request.")
    ] = None,
) -> None:
    """Write perf_analyzer's --input-data from a prompt file."""
    import json

    from specprefill.perf_input import parse_settings, read_prompts
    from specprefill.perf_input import perf_input as build_input

    data = build_input(read_prompts(prompts), max_tokens, parse_settings(settings or ()))
    try:
        output.write_text(json.dumps(data))
    except OSError as error:
        raise SpecPrefillError(f"{output} cannot be written: {error}") from error
    _console.print(f"{len(data['data'])} requests written to {output}")


@app.command(
    epilog="Examples:  [bold]specprefill openai[/]  |  "
    "[bold]specprefill openai --url gpu-host:8001 --host 0.0.0.0 --api-key-file keys.txt[/]"
)
def openai(
    config: ConfigOption = None,
    url: Annotated[
        str | None, typer.Option(help="gRPC address of a running Triton; default: as configured.")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to bind; default 127.0.0.1.")] = None,
    port: Annotated[int | None, typer.Option(help="Default 9000; 0 takes a free one.")] = None,
    api_key_file: Annotated[
        Path | None, typer.Option(help="One key per line; default: SPECPREFILL_API_KEYS, or none.")
    ] = None,
    model_name: Annotated[str | None, typer.Option(help="Default specprefill.")] = None,
) -> None:
    """Serve the OpenAI API in front of a running Triton until Ctrl-C."""
    try:
        from openai_gateway.serve import serve as serve_gateway
    except ModuleNotFoundError as error:
        raise SpecPrefillError(
            f"{error.name} is not installed; pip install 'specprefill-triton[gateway]'"
        ) from error
    given = {"host": host, "port": port, "api_key_file": api_key_file, "model_name": model_name}
    gateway = {
        key: str(value) if isinstance(value, Path) else value
        for key, value in given.items()
        if value is not None
    }
    serve_gateway(
        _load(config, {"gateway": gateway}),
        url,
        lambda endpoint: _console.print(f"OpenAI API at {endpoint}, Ctrl-C stops"),
    )


@app.command(
    epilog="Examples:  [bold]specprefill explain prompt.txt --set keep_rate=0.1[/]  |  "
    "[bold]specprefill explain --messages chat.json --answers --png chat.png[/]  |  "
    "[bold]specprefill explain --record record.json --replay[/]"
)
def explain(
    prompt: Annotated[Path | None, typer.Argument(help="File with the raw prompt.")] = None,
    messages: Annotated[
        Path | None, typer.Option(help="File with chat messages as JSON, in place of the prompt.")
    ] = None,
    record: Annotated[
        Path | None, typer.Option(help="Show this saved selection; no draft runs.")
    ] = None,
    config: ConfigOption = None,
    output: Annotated[
        Path | None, typer.Option(help="HTML page; explain.html if no file is named.")
    ] = None,
    png: Annotated[Path | None, typer.Option(help="Picture for a report.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="JSON for tools.")] = None,
    answers: Annotated[
        bool, typer.Option("--answers", help="Let the target answer, dense and sparse.")
    ] = False,
    replay: Annotated[
        bool, typer.Option("--replay", help="Let the target answer from --record's selection.")
    ] = False,
    max_tokens: Annotated[int | None, typer.Option(help="Length of the answers at most.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="name=value, a selection setting.")
    ] = None,
) -> None:
    """Show which parts of a prompt are dropped, and why."""
    from specprefill.explain.command import ExplainRequest, write_files
    from specprefill.explain.command import explain as explain_prompt
    from specprefill.perf_input import parse_settings

    selection = parse_settings(settings or ())
    request = ExplainRequest(prompt, messages, record, selection, answers, replay, max_tokens)
    request.check()
    with _status("starting") as status:
        explanation = explain_prompt(_load(config, {}), request, status)
        files = write_files(explanation, output, png, json_file)
    for answer in explanation.answers:
        _console.print(f"[bold]{answer.name:>7}[/]: ", end="")
        _show(f"{answer.text}\n")
    _show(f"{explanation.record.reason}\n")
    for file in files:
        _show(f"written: {file}\n")


@app.command(epilog="Example:  [bold]specprefill diff a.json b.json[/]")
def diff(
    a: Annotated[Path, typer.Argument(help="Record, or what explain --json wrote.")],
    b: Annotated[Path, typer.Argument(help="Another one, of the same prompt.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare what two selections of one prompt keep: exit code 0 same, 1 different, 2 trouble."""
    import json

    from specprefill.explain.difference import compare, read_side
    from specprefill.explain.difference_table import difference_table

    try:
        difference = compare(read_side(a), read_side(b))
    except SpecPrefillError as error:
        _show_error(error)
        raise typer.Exit(2) from error
    if as_json:
        _show(f"{json.dumps(difference.to_json())}\n")
    else:
        _console.print(difference_table(difference))
    raise typer.Exit(0 if difference.same else 1)


@app.command(
    name="eval",
    epilog="Examples:  [bold]specprefill eval --samples 2 --classes niah_single[/]  |  "
    "[bold]specprefill eval --variants scorer=window,keep_rate=0.1[/]  |  "
    "[bold]specprefill eval --suite longbench --data LongBench/data[/]",
)
def evaluate(
    config: ConfigOption = None,
    suite: Annotated[str, typer.Option(help="ruler (generated) or longbench (--data).")] = "ruler",
    data: Annotated[Path | None, typer.Option(help="Folder of LongBench's JSONL files.")] = None,
    variants: Annotated[
        list[str] | None,
        typer.Option(
            help="scorers, choices, budgets, segments, a .yaml file, or name=value,name=value."
        ),
    ] = None,
    samples: Annotated[
        int | None, typer.Option(min=1, help="Prompts per class and length, or per data set.")
    ] = None,
    lengths: Annotated[str, typer.Option(help="Prompt tokens, comma-separated.")] = "1024,2048",
    classes: Annotated[str, typer.Option(help="Comma-separated; default: all.")] = "",
    seed: Annotated[int, typer.Option(help="Another seed generates other prompts.")] = 0,
    max_prompt_tokens: Annotated[
        int | None, typer.Option(min=2, help="Longer LongBench prompts lose their middle.")
    ] = None,
    base_url: Annotated[
        str | None, typer.Option(help="Ask a running OpenAI gateway, as http://127.0.0.1:9000/v1.")
    ] = None,
    output: Annotated[Path, typer.Option(help="Results, and what later runs go on from.")] = Path(
        "build/quality"
    ),
    page: Annotated[Path | None, typer.Option(help="Markdown page to write tables to.")] = None,
) -> None:
    """Measure answers of pruned prompts against dense ones, class by class."""
    from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn

    from specprefill.quality import report
    from specprefill.quality.evaluation import Options, result_path
    from specprefill.quality.evaluation import evaluate as run_evaluation

    options = Options(
        suite=suite,
        variants=tuple(variants or ("scorers",)),
        samples=samples,
        lengths=_integers("lengths", lengths),
        classes=tuple(name.strip() for name in classes.split(",") if name.strip()),
        seed=seed,
        data=data,
        max_prompt_tokens=max_prompt_tokens,
        base_url=base_url,
        output=output,
    )
    if page is not None:
        report.find_place(page, result_path(options).stem)  # now, not after an hour
    columns = (*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=_console) as progress:
        task = progress.add_task("loading", total=None)
        evaluation = run_evaluation(
            _load(config, {}),
            options,
            lambda done, total, name: progress.update(
                task, completed=done, total=total, description=name
            ),
        )
    for title, (header, rows) in report.tables(evaluation).items():
        _console.print(_table(title, header, rows))
    _console.print(f"results: {evaluation.path}")
    if page is not None:
        report.write_page(page, [evaluation])


@app.command(
    epilog="Examples:  [bold]specprefill calibrate --config my.yaml[/]  |  "
    "[bold]specprefill calibrate --config my.yaml --heads 24 --write[/]"
)
def calibrate(
    config: ConfigOption = None,
    heads: Annotated[int, typer.Option(min=1, help="How many heads to choose.")] = 16,
    samples: Annotated[int, typer.Option(min=1, help="Prompts per class and length.")] = 4,
    lengths: Annotated[str, typer.Option(help="Prompt tokens, comma-separated.")] = "1024,2048",
    all_layers: Annotated[
        bool, typer.Option("--all-layers", help="Look beyond draft.score_layers.")
    ] = False,
    write: Annotated[
        bool, typer.Option("--write", help="Set draft.score_heads in the configuration file.")
    ] = False,
    plot: Annotated[Path, typer.Option(help="PNG of every layer and head.")] = Path(
        "build/quality/heads.png"
    ),
) -> None:
    """Find the draft's retrieval heads; held-out prompts must not get worse by them."""
    from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn

    from specprefill import calibrate as calibration

    if write and config is None:
        raise SpecPrefillError("--write needs the --config that it is to change")
    columns = (*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=_console) as progress:
        task = progress.add_task("loading", total=None)
        found = calibration.calibrate(
            _load(config, {}),
            lambda done, total, name: progress.update(
                task, completed=done, total=total, description=name
            ),
            heads,
            samples,
            _integers("lengths", lengths),
            all_layers,
        )
    calibration.plot_heads(found, plot)
    for title, (header, rows) in calibration.tables(found).items():
        _console.print(_table(title, header, rows))
    _console.print(f"plot: {plot}")
    if write and config is not None:
        if not found.holds:
            raise SpecPrefillError(
                "not written: the held-out classes keep less of their answers than before"
            )
        calibration.write_heads(config, found)
        _console.print(f"score_heads written to {config}")


@app.command()
def version() -> None:
    """Print the version."""
    _console.print(specprefill.__version__)


def main() -> None:
    """Run the command line; an error of ours is one line, not a traceback."""
    try:
        app()
    except SpecPrefillError as error:
        _show_error(error)
        sys.exit(1)


def _show_error(error: SpecPrefillError) -> None:
    _errors.print("[red]error:[/]", end=" ")
    _errors.print(str(error), markup=False, highlight=False)


def _run_from_checkout(package: str, program: str, arguments: list[str]) -> None:
    """Run the command line of a package of the repository; the wheel does not hold it."""
    # An editable installation belongs to a repository.
    checkout = Path(__file__).resolve().parents[2]
    if importlib.util.find_spec(package) is None and (checkout / package).is_dir():
        sys.path.insert(0, str(checkout))
    try:
        module = importlib.import_module(f"{package}.__main__")
    except ModuleNotFoundError as error:
        if error.name not in (package, f"{package}.__main__"):
            raise
        raise SpecPrefillError(
            f"{package} is not importable; run this from the repository's folder, or put that "
            "folder on PYTHONPATH"
        ) from error
    module.app(args=arguments, prog_name=program)


def _load(config: Path | None, overrides: dict[str, Any]) -> Settings:
    import os

    from specprefill.settings import CONFIG_VARIABLE

    if config is None and not os.environ.get(CONFIG_VARIABLE):
        config = default_config()
    return load_settings(config, overrides)


def _integers(name: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise SpecPrefillError(
            f"{name}: got {text!r}; allowed: integers, comma-separated"
        ) from error


def _table(title: str, header: list[str], rows: list[list[str]]) -> Table:
    table = Table(title=title)
    for number, column in enumerate(header):
        # A narrow terminal breaks figures into lines, but leaves the names whole.
        justify: Any = "right" if number else "left"
        table.add_column(column, justify=justify, overflow="fold", no_wrap=not number)
    for row in rows:
        table.add_row(*row)
    return table


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


def _make_supervisor(settings: Settings) -> Supervisor:
    from specprefill.gateway_process import GatewayProcess, missing_module
    from specprefill.server import TritonServer, with_free_ports
    from specprefill.supervisor import Supervisor

    with_gateway = settings.gateway.enabled
    missing = missing_module() if with_gateway else None
    if missing is not None:
        _errors.print(f"[yellow]{missing} is not installed: serving without the OpenAI API[/]")
        with_gateway = False
    settings = with_free_ports(settings, with_gateway)
    gateway = GatewayProcess(settings, _report) if with_gateway else None
    return Supervisor(TritonServer(settings), gateway, _report)


def _report(text: str) -> None:
    _errors.print(f"[dim]{datetime.now():%Y-%m-%d %H:%M:%S}[/]", end=" ")
    _errors.print(text, markup=False, highlight=False, soft_wrap=True)


def _show_banner(supervisor: Supervisor) -> None:
    settings = supervisor.server.settings
    server = settings.server
    http = f"http://{server.host}:{server.http_port}"
    selection = settings.selection
    _console.print(
        Panel.fit(
            f"HTTP     {http}\n"
            f"gRPC     {server.host}:{server.grpc_port}\n"
            f"OpenAI   {supervisor.gateway.url if supervisor.gateway else 'off'}\n"
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
