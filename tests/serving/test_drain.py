# SPDX-License-Identifier: Apache-2.0
"""SIGTERM and Ctrl-C: running answers end, new requests are refused, nothing is left."""

from __future__ import annotations

import json
import signal
import time
import urllib.error
import urllib.request

import psutil
import pytest

from tests.serving.conftest import post
from tests.serving.served import Answer, Served, wait_until

TOKENS = 600
RUNNING = {"text_input": "Once upon a time", "max_tokens": TOKENS, "min_tokens": TOKENS}
ENDLESS = {"text_input": "Once upon a time", "max_tokens": 7000, "min_tokens": 7000}


@pytest.fixture
def serve(tiny_llama, tmp_path):
    running = []

    def start(*options, **server):
        running.append(Served(tmp_path, tiny_llama, *options, **server))
        return running[-1]

    yield start
    for served in running:
        served.close()


def assert_nothing_left(served, everything):
    assert [process for process in everything if process.is_running()] == []
    assert served.regions() == []


def test_running_answers_end_and_new_ones_are_refused(serve):
    served = serve()
    everything = served.everything()
    answers = [Answer(served.grpc_url, model, **RUNNING) for model in ("specprefill", "ensemble")]
    pieces = []
    request = urllib.request.Request(
        f"{served.openai_url}/completions",
        json.dumps(
            {"model": "specprefill", "prompt": "Hi", "max_tokens": 200, "stream": True}
        ).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as openai:
        pieces.append(openai.readline())
        for answer in answers:
            answer.wait_first()
        served.process.send_signal(signal.SIGTERM)
        wait_until(lambda: "shutting down" in refusal(served, "specprefill"), 5)
        wait_until(lambda: "'ensemble'" in refusal(served, "ensemble"), 5)
        wait_until(lambda: gateway_refuses(served), 5)
        pieces += openai.readlines()
    assert pieces[-2:] == [b"data: [DONE]\n", b"\n"]
    for answer in answers:
        answer.join(60)
        assert answer.error is None
        assert answer.outputs["finish_reason"] == "length"
    assert served.wait(20) == 0
    assert_nothing_left(served, everything)


def refusal(served, model):
    """The error of a new request, empty while they are still accepted."""
    status, body = post(served, f"models/{model}/generate", {"text_input": "Hi", "max_tokens": 1})
    return body if status != 200 else ""


def gateway_refuses(served):
    try:
        urllib.request.urlopen(f"{served.openai_url}/models", timeout=5).close()
    except urllib.error.HTTPError:
        return False
    except OSError:
        return True
    return False


def test_answers_that_take_longer_than_the_bound_are_cut_off(serve):
    served = serve("--no-openai", drain_seconds=1)
    everything = served.everything()
    answer = Answer(served.grpc_url, **ENDLESS)
    answer.wait_first()
    told = time.monotonic()
    served.process.send_signal(signal.SIGTERM)
    assert served.wait(10) == 1
    assert 0.9 < time.monotonic() - told < 8
    answer.join(5)
    assert answer.error is not None
    assert "ended before all answers were complete" in served.errors
    assert_nothing_left(served, everything)


def test_a_second_ctrl_c_ends_at_once(serve):
    served = serve("--no-openai")
    everything = served.everything()
    answer = Answer(served.grpc_url, **ENDLESS)
    answer.wait_first()
    served.process.send_signal(signal.SIGINT)
    wait_until(lambda: refusal(served, "specprefill"), 5)
    assert psutil.pid_exists(served.process.pid)
    told = time.monotonic()
    served.process.send_signal(signal.SIGINT)
    assert served.wait(10) == 1
    assert time.monotonic() - told < 6
    assert_nothing_left(served, everything)


def test_a_gateway_that_dies_comes_back(serve):
    served = serve()
    (gateway,) = [p for p in served.everything() if "openai_gateway" in p.cmdline()]
    gateway.kill()
    wait_until(lambda: gateway_refuses(served), 5)
    wait_until(lambda: not gateway_refuses(served), 20)
    assert "the OpenAI gateway ended by itself" in served.errors
