# SPDX-License-Identifier: Apache-2.0
r"""Open-loop load at a request rate, and the highest rate that keeps an objective.

Examples:
  python clients/qps.py --documents 20 --sentences 40,200 --rate 0.5 --set keep_rate=0.2
  python clients/qps.py --prompts prompts.jsonl --sweep 0.2,0.4,0.8 --slo-ttft-p90 5
  python clients/qps.py --longbench data --category "multi-doc QA" --set keep_rate=0.1 \
      --sweep 0.2:6.4 --timeout 10 --tolerated-timeouts 4 --output qps.json
  python clients/qps.py --openai http://127.0.0.1:9000/v1 --documents 20 --rate 0.5
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from load_generator import (
    Endpoint,
    LoadPlan,
    Objective,
    OpenAIEndpoint,
    Query,
    Report,
    Sweep,
    TritonEndpoint,
    bisect,
    documents,
    longbench,
    read_queries,
    run,
    sweep,
)
from load_generator.report import PERCENTILES
from load_generator.request_result import METRICS
from load_generator.workloads import CATEGORIES
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from specprefill.errors import InvalidRequestError, SpecPrefillError
from specprefill.perf_input import parse_settings


def main(options: Sequence[str] | None = None) -> int:
    """Run the load; return 0 if the objective held (of a sweep: at one rate at least)."""
    arguments = _parser().parse_args(options)
    console, errors = Console(), Console(stderr=True)
    try:
        queries = _queries(arguments)
        endpoint = _endpoint(arguments)
        plan = _plan(arguments)
        objective = Objective(
            {
                (metric, percent): value
                for metric in METRICS
                for percent in PERCENTILES
                if (value := getattr(arguments, f"slo_{metric}_p{percent}")) is not None
            },
            arguments.tolerated_timeouts,
        )
        with Progress(console=console) as progress:

            def run_at(rate: float) -> Report:
                at_rate = replace(plan, rate=rate)
                task = progress.add_task(f"{rate:g}/s", total=plan.requests or len(queries))
                report = run(endpoint, queries, at_rate, lambda _: progress.advance(task))
                progress.remove_task(task)
                progress.console.print(_table(report, objective.broken_by(report)))
                return report

            found = _search(arguments, run_at, objective)
    except SpecPrefillError as error:
        errors.print("[red]error:[/]", end=" ")
        errors.print(str(error), markup=False, highlight=False)
        return 1
    highest = found.highest_rate
    if arguments.sweep:
        told = "none" if highest is None else f"{highest:g} requests per second"
        console.print(f"highest rate that held: [bold]{told}[/]")
    if arguments.output:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.write_text(json.dumps(found.as_json(), indent=1))
        console.print(f"written to {arguments.output}")
    return 0 if highest is not None else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    server = parser.add_argument_group("server")
    server.add_argument("--url", default="127.0.0.1:8001", help="host:port of Triton's gRPC")
    server.add_argument("--model", default="specprefill", help="specprefill, ensemble, ...")
    server.add_argument(
        "--openai", metavar="BASE_URL", help="an OpenAI server instead; key in OPENAI_API_KEY"
    )
    load = parser.add_argument_group("workload")
    source = load.add_mutually_exclusive_group(required=True)
    source.add_argument("--documents", type=int, metavar="N", help="N generated documents")
    source.add_argument(
        "--prompts", type=Path, metavar="FILE", help=".jsonl with a request per line, or one prompt"
    )
    source.add_argument("--longbench", type=Path, metavar="FOLDER", help="LongBench's .jsonl files")
    load.add_argument("--sentences", default="200", help="lengths of the documents, e.g. 40,200")
    load.add_argument(
        "--category", action="append", default=[], choices=CATEGORIES, help="of LongBench"
    )
    load.add_argument("--per-set", type=int, default=20, help="records per LongBench data set")
    load.add_argument("--tokenizer", help="folder, for --max-prompt-tokens")
    load.add_argument(
        "--max-prompt-tokens", type=int, help="longer LongBench prompts lose their middle"
    )
    load.add_argument("--max-tokens", type=int, help="length of every answer at most")
    load.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="input of every request"
    )
    load.add_argument(
        "--same-prompts",
        action="store_true",
        help="put no number before the prompts: what a server remembers then counts",
    )
    rate = parser.add_argument_group("rate")
    either = rate.add_mutually_exclusive_group(required=True)
    either.add_argument("--rate", type=float, help="requests per second")
    either.add_argument(
        "--sweep",
        metavar="RATES",
        help="0.2,0.4,0.8 tries each until one breaks; 0.2:6.4 doubles, then halves the gap",
    )
    rate.add_argument("--arrivals", choices=("poisson", "constant"), default="poisson")
    rate.add_argument("--seed", type=int, default=0, help="of arrivals and workload")
    rate.add_argument("--requests", type=int, help="per rate; default: each query once")
    rate.add_argument("--max-seconds", type=float, default=600, help="no request is sent after it")
    rate.add_argument("--timeout", type=float, default=60, help="the client's, seconds")
    rate.add_argument("--warmup", type=int, default=1, help="requests before the clock starts")
    goal = parser.add_argument_group("objective; seconds")
    goal.add_argument("--tolerated-timeouts", type=int, default=0, help="the paper: 4")
    for metric in METRICS:
        for percent in PERCENTILES:
            name = f"--slo-{metric}-p{percent}".replace("_", "-")
            goal.add_argument(name, type=float, metavar="S")
    parser.add_argument("--output", type=Path, help="JSON with every request")
    return parser


def _queries(arguments: argparse.Namespace) -> list[Query]:
    if arguments.prompts:
        queries = read_queries(arguments.prompts)
    elif arguments.longbench:
        queries = longbench(
            arguments.longbench,
            arguments.category,
            arguments.per_set,
            arguments.tokenizer,
            arguments.max_prompt_tokens,
            arguments.seed,
        )
    else:
        sentences = [int(number) for number in _numbers("--sentences", arguments.sentences, ",")]
        queries = documents(arguments.documents, sentences, seed=arguments.seed)
    settings = parse_settings(arguments.set)
    queries = [query.with_settings(settings) for query in queries]
    if arguments.max_tokens is not None:
        queries = [replace(query, max_tokens=arguments.max_tokens) for query in queries]
    return queries


def _endpoint(arguments: argparse.Namespace) -> Endpoint:
    if arguments.openai:
        key = os.environ.get("OPENAI_API_KEY") or "none"
        return OpenAIEndpoint(arguments.openai, arguments.model, key)
    return TritonEndpoint(arguments.url, arguments.model)


def _plan(arguments: argparse.Namespace) -> LoadPlan:
    return LoadPlan(
        rate=1.0 if arguments.rate is None else arguments.rate,
        requests=arguments.requests,
        arrivals=arguments.arrivals,
        seed=arguments.seed,
        timeout_seconds=arguments.timeout,
        max_seconds=arguments.max_seconds,
        warmup=arguments.warmup,
        mark_prompts=not arguments.same_prompts,
    )


def _search(
    arguments: argparse.Namespace, run_at: Callable[[float], Report], objective: Objective
) -> Sweep:
    if arguments.rate is not None:
        return sweep(run_at, [arguments.rate], objective)
    if ":" in arguments.sweep:
        ends = _numbers("--sweep", arguments.sweep, ":")
        if len(ends) != 2:
            raise InvalidRequestError("--sweep", f"got {arguments.sweep}", "lowest:highest")
        return bisect(run_at, ends[0], ends[1], objective)
    return sweep(run_at, sorted(_numbers("--sweep", arguments.sweep, ",")), objective)


def _numbers(option: str, text: str, separator: str) -> list[float]:
    try:
        numbers = [float(number) for number in text.split(separator)]
    except ValueError as error:
        problem = f"got {text!r}"
        raise InvalidRequestError(option, problem, f"numbers, {separator} between") from error
    if min(numbers) <= 0:
        raise InvalidRequestError(option, f"got {text!r}", "numbers greater than 0")
    return numbers


def _table(report: Report, broken: str | None) -> Table:
    counts = ", ".join(f"{number} {status}" for status, number in report.counts().items() if number)
    table = Table(
        title=f"{report.plan.rate:g} requests per second ({report.plan.arrivals}; "
        f"really sent: {report.sent_rate:.3g}): {counts}",
        caption=f"{report.tokens_per_second:.1f} tokens/s; client late by "
        f"{1e3 * report.client_lag_seconds:.0f} ms at most; "
        + ("held" if broken is None else f"broken: {broken}"),
        min_width=72,
    )
    table.add_column("seconds")
    for percent in PERCENTILES:
        table.add_column(f"p{percent}", justify="right")
    for metric in METRICS:
        values = (report.percentile(metric, percent) for percent in PERCENTILES)
        table.add_row(metric.replace("_", "-"), *(_seconds(value) for value in values))
    return table


def _seconds(value: float) -> str:
    if math.isnan(value):
        return "-"
    return "never" if math.isinf(value) else f"{value:.3f}"


if __name__ == "__main__":
    sys.exit(main())
