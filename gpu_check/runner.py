# SPDX-License-Identifier: Apache-2.0
"""Runs checks, each group in a process of its own, and says how the whole run ended."""

from __future__ import annotations

import multiprocessing
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from multiprocessing.connection import Connection
from typing import Any

from gpu_check.bench import Bench, CheckFailedError, CheckSkippedError, Options
from gpu_check.needs import missing
from gpu_check.registry import Check, Outcome, Result

EXIT_PASS = 0
EXIT_FAIL = 1
EXIT_NOTHING_RAN = 2

_STOP_SECONDS = 10

Progress = Callable[[Check], None]
GroupRunner = Callable[[Sequence[Check], Options, Progress], Iterator[Result]]


def run_checks(
    checks: Sequence[Check], options: Options, progress: Progress, run_group: GroupRunner
) -> list[Result]:
    """Run checks group by group; those whose needs are missing are skipped.

    Args:
        checks: what to run.
        options: what the user asked for.
        progress: told which check begins.
        run_group: runs the checks of one group.
    """
    results: list[Result] = []
    for _, group in groupby(checks, key=lambda check: check.group):
        able = []
        for check in group:
            reason = missing(check.needs, options)
            if reason is None:
                able.append(check)
            else:
                results.append(Result(check, Outcome.SKIPPED, reason))
        if able:
            results.extend(run_group(able, options, progress))
    order = {check.name: index for index, check in enumerate(checks)}
    return sorted(results, key=lambda result: order[result.check.name])


def exit_code(results: Sequence[Result]) -> int:
    """Return 0 if something passed and nothing failed, 1 if something failed, 2 if nothing ran."""
    outcomes = {result.outcome for result in results}
    if Outcome.FAIL in outcomes:
        return EXIT_FAIL
    return EXIT_PASS if Outcome.PASS in outcomes else EXIT_NOTHING_RAN


def run_here(checks: Sequence[Check], options: Options, progress: Progress) -> Iterator[Result]:
    """Run the checks of one group in this process."""
    bench = Bench(options)
    try:
        for check in checks:
            progress(check)
            yield run_one(check, bench)
    finally:
        bench.close()


def run_one(check: Check, bench: Bench) -> Result:
    """Run one check; whatever it raises becomes its result."""
    bench.figures = {}
    started = time.perf_counter()
    outcome, reason = Outcome.PASS, ""
    try:
        check.body(bench)
    except CheckSkippedError as error:
        outcome, reason = Outcome.SKIPPED, str(error)
    except CheckFailedError as error:
        outcome, reason = Outcome.FAIL, str(error)
    except Exception as error:  # one broken check must not hide the others
        place = traceback.extract_tb(error.__traceback__)[-1]
        outcome = Outcome.FAIL
        reason = f"{type(error).__name__}: {error} ({place.name}, line {place.lineno})"
    seconds = time.perf_counter() - started
    return Result(check, outcome, reason, dict(bench.figures), seconds)


def run_in_own_process(
    checks: Sequence[Check], options: Options, progress: Progress
) -> Iterator[Result]:
    """Run the checks of one group in a process of its own.

    A crash of native code or a check that hangs fails that check; the rest of the group goes on
    in a fresh process.
    """
    context = multiprocessing.get_context("spawn")
    left = list(checks)
    while left:
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_work, args=(left, options, sender), daemon=False)
        process.start()
        # Without this the pipe would stay open when the process dies.
        sender.close()
        try:
            yield from _collect(left, receiver, process, options.timeout_seconds, progress)
        finally:
            _end(process)
            receiver.close()


def _work(checks: Sequence[Check], options: Options, sender: Connection) -> None:
    for result in run_here(checks, options, lambda _: None):
        sender.send((result.outcome, result.reason, result.figures, result.seconds))


def _collect(
    left: list[Check],
    receiver: Connection,
    process: Any,
    timeout_seconds: float,
    progress: Progress,
) -> Iterator[Result]:
    """Yield the results of one process, taking their checks out of `left`."""
    while left:
        check = left[0]
        progress(check)
        started = time.perf_counter()
        answered = receiver.poll(timeout_seconds)
        try:
            answer = receiver.recv() if answered else None
        except EOFError:
            process.join(_STOP_SECONDS)
            answer = None
        left.pop(0)
        if answer is not None:
            yield Result(check, *answer)
            continue
        if answered:
            reason = f"its process died with exit code {process.exitcode}"
        else:
            reason = f"no result after {timeout_seconds:g} s"
            process.kill()
        seconds = time.perf_counter() - started
        yield Result(check, Outcome.FAIL, reason, seconds=seconds)
        return


def _end(process: Any) -> None:
    """Wait for a process that has sent everything; one that does not end is killed."""
    process.join(_STOP_SECONDS)
    if process.is_alive():
        process.kill()
        process.join()
