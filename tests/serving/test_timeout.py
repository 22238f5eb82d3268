# SPDX-License-Identifier: Apache-2.0
"""A request's own deadline ends it on both entries, wherever it is, and frees its place."""

import json
import time

import pytest
from specprefill.client import ServerError, stream

from tests.serving.conftest import generate, metric

ENTRIES = ("specprefill", "ensemble")


def wait_until_idle(server, seconds=10.0):
    deadline = time.monotonic() + seconds
    while metric(server, "specprefill_running") or metric(server, "specprefill_draft_requests"):
        assert time.monotonic() < deadline, "the request still runs"
        time.sleep(0.1)


@pytest.mark.parametrize("model", ENTRIES)
def test_during_decode(server, model):
    before = metric(server, "specprefill_cancelled")
    fields = {"text_input": "Once upon a time", "max_tokens": 3000, "min_tokens": 3000}
    started = time.monotonic()
    with pytest.raises(ServerError, match=r"timeout_ms: the answer was not complete after 1500 ms"):
        list(stream(server.grpc_url, model, **fields, timeout_ms=1500))
    assert 1.4 < time.monotonic() - started < 15
    assert metric(server, "specprefill_cancelled") == before + 1
    wait_until_idle(server)


@pytest.mark.parametrize("model", ENTRIES)
def test_during_the_draft(server, messages, model):
    long = json.loads(messages)
    long[0]["content"] = f"{model} " + long[0]["content"] * 7
    before = metric(server, "specprefill_kept_tokens")
    fields = {"messages": json.dumps(long), "max_tokens": 3}
    with pytest.raises(ServerError, match=r"after 300 ms; allowed: a longer timeout_ms, or none"):
        list(stream(server.grpc_url, model, **fields, timeout_ms=300))
    wait_until_idle(server)
    assert metric(server, "specprefill_kept_tokens") == before  # never went to the target


@pytest.mark.parametrize("model", ENTRIES)
def test_in_time(server, model):
    fields = {"text_input": "The capital of France is", "max_tokens": 2, "timeout_ms": 60000}
    assert generate(server, model, **fields)["text_output"].startswith(" Paris")
