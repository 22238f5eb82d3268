# SPDX-License-Identifier: Apache-2.0
"""Sends a workload at a rate and measures every request."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing

from specprefill.errors import SpecPrefillError

from load_generator.arrivals import arrival_times
from load_generator.endpoint import AnswerError, BusyError, Endpoint
from load_generator.load_plan import LoadPlan
from load_generator.query import Query
from load_generator.report import Report
from load_generator.request_result import RequestResult, Status


def run(
    endpoint: Endpoint,
    queries: Sequence[Query],
    plan: LoadPlan,
    on_result: Callable[[RequestResult], None] = lambda _: None,
) -> Report:
    """Send the queries as the plan says; blocks until each is answered, refused or given up.

    Args:
        endpoint: the server.
        queries: at least one.
        plan: rate, count, timeout.
        on_result: told each request's result when it is known.

    Raises:
        SpecPrefillError: there is no query, or one that cannot be sent, or a warm-up request
            failed.
    """
    if not queries:
        raise SpecPrefillError("the workload has no query")
    for query in queries:
        endpoint.check(query)
        if plan.mark_prompts and "keep_spans" in query.settings:
            raise SpecPrefillError(
                f"{query.name}: keep_spans counts the characters of the prompt as it is; turn "
                "mark_prompts off (--same-prompts)"
            )
    return asyncio.run(_run(endpoint, queries, plan, on_result))


async def _run(
    endpoint: Endpoint,
    queries: Sequence[Query],
    plan: LoadPlan,
    on_result: Callable[[RequestResult], None],
) -> Report:
    count = len(queries) if plan.requests is None else plan.requests
    due = arrival_times(plan.arrivals, plan.rate, count, plan.seed)
    due = [seconds for seconds in due if seconds <= plan.max_seconds]
    mark = f"Request {secrets.token_hex(3)}" if plan.mark_prompts else None
    async with endpoint:
        for number in range(plan.warmup):
            query = _marked(queries[number % len(queries)], mark, f"w{number}")
            clock = _Clock(time.perf_counter(), 0.0)
            result = await _ask(endpoint, query, number, clock, plan.timeout_seconds)
            if result.status == "error":
                raise SpecPrefillError(f"{query.name}, sent to warm up: {result.message}")
        started = time.perf_counter()

        async def arrive(index: int, query: Query, clock: _Clock) -> RequestResult:
            result = await _ask(endpoint, query, index, clock, plan.timeout_seconds)
            on_result(result)
            return result

        tasks = []
        for index, (seconds, query) in enumerate(zip(due, itertools.cycle(queries), strict=False)):
            clock = _Clock(started, seconds)
            await asyncio.sleep(-clock.seconds())
            query = _marked(query, mark, str(index))
            tasks.append(asyncio.create_task(arrive(index, query, clock)))
        results = await asyncio.gather(*tasks)
        duration = time.perf_counter() - started
    return Report(endpoint.describe(), plan, tuple(results), duration)


class _Clock:
    """Counts from the planned arrival: a client that is late must not flatter the server."""

    def __init__(self, started: float, arrival: float) -> None:
        self.arrival = arrival
        self._origin = started + arrival

    def seconds(self) -> float:
        return time.perf_counter() - self._origin


def _marked(query: Query, mark: str | None, number: str) -> Query:
    return query if mark is None else query.with_mark(f"{mark}-{number}.")


async def _ask(
    endpoint: Endpoint, query: Query, index: int, clock: _Clock, timeout_seconds: float
) -> RequestResult:
    lag = clock.seconds()
    pieces: list[str] = []
    tokens = 0
    first: float | None = None
    statistics: dict[str, object] = {}

    async def read() -> None:
        nonlocal tokens, first
        async with aclosing(endpoint.ask(query)) as chunks:
            async for chunk in chunks:
                if first is None and (chunk.text or chunk.tokens):
                    first = clock.seconds()
                pieces.append(chunk.text)
                tokens += chunk.tokens
                statistics.update(chunk.statistics)

    status: Status = "ok"
    message = ""
    reading = asyncio.create_task(read())
    done, _ = await asyncio.wait({reading}, timeout=timeout_seconds)
    latency = clock.seconds()
    if not done:
        status = "timeout"
        reading.cancel()
        # Telling the server may take a moment, which is not the request's.
        await asyncio.gather(reading, return_exceptions=True)
    else:
        try:
            reading.result()
        except BusyError as error:
            status, message = "busy", str(error)
        except AnswerError as error:
            status, message = "error", str(error)
    return RequestResult(
        index=index,
        query=query.name,
        status=status,
        arrival_seconds=clock.arrival,
        client_lag_seconds=lag,
        ttft_seconds=first,
        latency_seconds=latency,
        tokens=tokens,
        text="".join(pieces),
        message=message,
        statistics=statistics,
    )
