# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's perf_analyzer on both entries, with the input file that our command writes."""

import json

import pytest
from specprefill.errors import ConfigurationError
from specprefill.perf_input import perf_input

from benchmarks.perf_analyzer import find, load_export, read_export, run

PROMPTS = [
    {"prompt": "The capital of France is"},
    {"prompt": "Ich heiße Jürgen und wohne in"},
    {"prompt": "one two three four " * 20},
]


@pytest.fixture(scope="session")
def tool():
    try:
        return find()
    except ConfigurationError as error:
        pytest.skip(f"perf_analyzer cannot be had: {error}")


@pytest.mark.parametrize("model", ["specprefill", "ensemble"])
@pytest.mark.parametrize(
    "load",
    [("--concurrency-range", "2"), ("--request-rate-range", "6")],
    ids=["concurrency", "rate"],
)
def test_it_streams_without_errors(server, tool, tmp_path, model, load):
    data, export = tmp_path / "in.json", tmp_path / "out.json"
    data.write_text(json.dumps(perf_input(PROMPTS, 3, {"keep_rate": 0.5})))
    load = (*load, "--request-count", "6")
    # It ends with an error if any request failed.
    summary = run(server.grpc_url, model, data, export, load, tool, timeout_seconds=120)
    assert summary.requests >= 6
    assert summary.responses == 3 * summary.requests
    assert all(0 < seconds < 60 for seconds in summary.ttft)
    assert len(summary.gaps) == 2 * summary.requests


def test_chat_messages(server, tool, tmp_path):
    data, export = tmp_path / "in.json", tmp_path / "out.json"
    chat = [{"messages": [{"role": "user", "content": f"Count to {n}."}]} for n in (3, 4)]
    data.write_text(json.dumps(perf_input(chat, 3, {})))
    load = ("--concurrency-range", "1", "--request-count", "2")
    summary = run(server.grpc_url, "specprefill", data, export, load, tool, timeout_seconds=120)
    assert summary.responses == 3 * summary.requests >= 6


def test_a_failed_request_is_an_error(server, tool, tmp_path):
    data, export = tmp_path / "in.json", tmp_path / "out.json"
    data.write_text(json.dumps(perf_input(PROMPTS, 3, {"keep_rate": 1.5})))
    load = ("--concurrency-range", "1", "--request-count", "2")
    with pytest.raises(ConfigurationError, match=r"keep_rate: got 1.5"):
        run(server.grpc_url, "specprefill", data, export, load, tool, timeout_seconds=120)


def test_a_wrong_option_is_told(tool, tmp_path):
    data = tmp_path / "in.json"
    data.write_text(json.dumps(perf_input(PROMPTS, 3, {})))
    load = ("--request-rate-range", "9", "--request-count", "6")
    with pytest.raises(ConfigurationError, match=r"99: Error: request-count can not be less"):
        run("127.0.0.1:1", "ensemble", data, tmp_path / "out.json", load, tool, timeout_seconds=60)


def test_what_an_export_says():
    request = {
        "timestamp": 10**9,
        "response_timestamps": [1.25e9, 1.5e9, 2.0e9],
        "response_outputs": [{"text_output": "a"}, {"text_output": "b"}, {"text_output": ""}],
    }
    summary = read_export({"experiments": [{"requests": [request]}]})
    assert (summary.requests, summary.responses) == (1, 2)
    assert summary.ttft == (0.25,)
    assert summary.gaps == (0.25,)


def test_an_empty_export_is_told(tmp_path):
    path = tmp_path / "p.json"
    path.touch()
    with pytest.raises(ConfigurationError, match=r"p\.json is no export of perf_analyzer"):
        load_export(path)
