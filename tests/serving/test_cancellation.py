# SPDX-License-Identifier: Apache-2.0
"""Abandoned requests free the target; nobody else notices."""

import http.client
import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from specprefill.client import stream

from tests.serving.conftest import generate, metric, post

LONG = {"text_input": "Once upon a time", "max_tokens": 3000, "min_tokens": 3000}


def wait_for_cancellation(server, before, seconds=5.0):
    deadline = time.monotonic() + seconds
    while metric(server, "specprefill_cancelled") == before:
        assert time.monotonic() < deadline, "the target ran on"
        time.sleep(0.05)


def test_closing_a_grpc_stream_stops_the_target(server):
    before = metric(server, "specprefill_cancelled")
    pieces = stream(server.grpc_url, **LONG)
    next(pieces)
    pieces.close()
    wait_for_cancellation(server, before)


def test_closing_an_http_stream_stops_the_target(server):
    before = metric(server, "specprefill_cancelled")
    connection = http.client.HTTPConnection(server.http_url)
    connection.request(
        "POST",
        "/v2/models/specprefill/generate_stream",
        json.dumps({**LONG, "stream": True}),
        {"Content-Type": "application/json"},
    )
    response = connection.getresponse()
    response.fp.read(10)
    response.close()
    connection.close()
    wait_for_cancellation(server, before)


@pytest.mark.parametrize("model", ["specprefill", "ensemble"])
def test_a_stop_request_with_the_same_id_stops_the_target(server, model):
    before = metric(server, "specprefill_cancelled")
    pieces = stream(server.grpc_url, model, request_id="job-7", **LONG)
    next(pieces)
    list(stream(server.grpc_url, model, request_id="job-7", stop=True))
    with pytest.raises(Exception, match="cancelled"):
        for _ in pieces:
            pass
    wait_for_cancellation(server, before)


def test_a_stop_request_stops_the_draft(server, messages):
    """The stop comes while the draft reads a long prompt, and ends the request at once."""
    long = json.loads(messages)
    long[0]["content"] = long[0]["content"] * 7
    pieces = stream(server.grpc_url, request_id="job-8", messages=json.dumps(long), max_tokens=5)
    import threading

    outcome = []

    def consume():
        try:
            outcome.append(list(pieces))
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=consume)
    thread.start()
    time.sleep(1.0)  # tokenised, and the draft at work
    list(stream(server.grpc_url, request_id="job-8", stop=True))
    thread.join(timeout=60)
    assert "cancelled" in str(outcome[0])


def test_others_are_served_meanwhile_and_afterwards(server):
    control = {"text_input": "The capital of France is", "max_tokens": 6}
    expected = generate(server, "specprefill", **control)["text_output"]
    abandoned = [stream(server.grpc_url, **LONG) for _ in range(3)]
    for pieces in abandoned:
        next(pieces)
    assert generate(server, "specprefill", **control)["text_output"] == expected
    for pieces in abandoned:
        pieces.close()
    assert generate(server, "specprefill", **control)["text_output"] == expected


def test_more_than_the_queue_holds_is_told_at_once(server):
    """4 run, 4 wait; the next one is refused with a clear sentence, and later ones work."""
    busy = [
        stream(server.grpc_url, **{**LONG, "max_tokens": 400, "min_tokens": 400}) for _ in range(8)
    ]
    import threading

    started = threading.Barrier(9, timeout=60)

    def run(pieces):
        started.wait()
        try:
            for _ in pieces:
                if stop.is_set():
                    break
        finally:
            pieces.close()

    stop = threading.Event()
    threads = [threading.Thread(target=run, args=(pieces,)) for pieces in busy]
    for thread in threads:
        thread.start()
    started.wait()
    time.sleep(2)
    status, body = post(
        server, "models/specprefill/generate", {"text_input": "Hi", "max_tokens": 2}
    )
    stop.set()
    for thread in threads:
        thread.join(timeout=60)
    assert status == 400, body  # this Triton's generate endpoint knows no other error status
    assert "server busy: 8 requests are in flight" in body
    assert generate(server, "specprefill", text_input="Hi", max_tokens=2)["text_output"]


def test_two_hundred_cancelled_requests_leave_nothing(server):
    import psutil

    def memory():
        parent = psutil.Process(server.pid)
        return sum(p.memory_info().rss for p in (parent, *parent.children(recursive=True)))

    def cancel(number):
        pieces = stream(server.grpc_url, **{**LONG, "text_input": f"Tale {number}."})
        next(pieces)
        pieces.close()

    with ThreadPoolExecutor(4) as pool:  # as many as the server runs at once
        list(pool.map(cancel, range(20)))  # what is allocated once
        before = memory()
        list(pool.map(cancel, range(200)))
    deadline = time.monotonic() + 10
    while metric(server, "specprefill_running") or metric(server, "specprefill_cache_tokens"):
        assert time.monotonic() < deadline, "a slot is still taken"
        time.sleep(0.2)
    assert memory() < before * 1.02 + 16 * 2**20
