# SPDX-License-Identifier: Apache-2.0
"""Processes killed under load: clients learn of it, and service comes back by itself."""

from __future__ import annotations

import itertools
import os
import signal
import time

import psutil
import pytest

from tests.serving.conftest import post
from tests.serving.served import Answer, Served, wait_until

# Until everything is in service again, on a machine that is busy with other tests.
RECOVERY_SECONDS = 60
# For a client to learn that its answer will not come.
TOLD_SECONDS = 10
ENDLESS = {"text_input": "Once upon a time", "max_tokens": 7000, "min_tokens": 7000}

_numbers = itertools.count()


@pytest.fixture(scope="module")
def served(tiny_llama, tmp_path_factory):
    served = Served(tmp_path_factory.mktemp("served"), tiny_llama, "--no-openai")
    yield served
    served.close()


def long_prompt(words=1500):
    """A prompt that no request had before."""
    return f"Report {next(_numbers)}. " + " ".join(f"word{i}" for i in range(words))


def ask(served, model="specprefill", prompt="Hi", **fields):
    """The answer, or None if there is none now."""
    try:
        status, body = post(served, f"models/{model}/generate", {"text_input": prompt, **fields})
    except OSError:
        return None
    return body if status == 200 else None


def sparse(served):
    answer = ask(served, prompt=long_prompt(200), max_tokens=2, keep_rate=0.2)
    return answer is not None and '"active":true' in answer


def recovered(served, killed):
    """Wait until every entry answers, and sparsely."""
    left = RECOVERY_SECONDS - (time.monotonic() - killed)
    wait_until(lambda: sparse(served), left)
    wait_until(lambda: ask(served, "ensemble", max_tokens=2), 10)


def test_a_draft_that_dies_means_dense_and_comes_back(served):
    wait_until(lambda: sparse(served), RECOVERY_SECONDS)
    draft = psutil.Process(served.models()["draft"].pid)
    before = draft.cpu_times().user
    running = Answer(served.grpc_url, text_input=long_prompt(), max_tokens=3, keep_rate=0.2)
    wait_until(lambda: draft.cpu_times().user > before + 0.2, 30)  # at work on this prompt
    killed = served.kill_model("draft")
    meanwhile = Answer(served.grpc_url, text_input=long_prompt(300), max_tokens=3, keep_rate=0.2)
    for answer in (running, meanwhile):
        answer.join(RECOVERY_SECONDS)
        assert answer.error is None
        assert answer.outputs["finish_reason"]
        assert answer.outputs["reason"].startswith("dense: the draft step failed"), answer.outputs
        assert answer.outputs["kept_tokens"] == answer.outputs["prompt_tokens"]
    recovered(served, killed)
    assert "the process of draft died" in served.errors


def test_a_target_that_dies_ends_its_streams_with_an_error(served):
    answers = [Answer(served.grpc_url, **ENDLESS) for _ in range(3)]
    for answer in answers:
        answer.wait_first()
    triton = served.triton.pid
    killed = served.kill_model("target")
    for answer in answers:
        answer.join(TOLD_SECONDS)
        assert not answer.is_alive(), "a client waits for ever"
        assert "the process of 'target' died; try again" in str(answer.error)
    recovered(served, killed)
    assert served.triton.pid == triton


def test_an_ensemble_stream_ends_when_the_target_dies(served):
    """Triton forgets it, and nothing but the end of its connection can tell the client."""
    answer = Answer(served.grpc_url, "ensemble", **ENDLESS)
    answer.wait_first()
    killed = served.kill_model("target")
    answer.join(TOLD_SECONDS)
    assert answer.error is not None
    recovered(served, killed)


def test_preprocessing_comes_back(served):
    killed = served.kill_model("preprocessing")
    assert "error" in post(served, "models/specprefill/generate", {"text_input": "Hi"})[1]
    recovered(served, killed)


def test_an_idle_entry_comes_back_alone(served):
    triton = served.triton.pid
    killed = served.kill_model("specprefill")
    recovered(served, killed)
    assert served.triton.pid == triton


def test_streams_of_an_entry_that_dies_end(served):
    answer = Answer(served.grpc_url, **ENDLESS)
    answer.wait_first()
    killed = served.kill_model("specprefill")
    answer.join(TOLD_SECONDS)
    assert answer.error is not None
    recovered(served, killed)


def test_a_model_that_was_unloaded_on_purpose_stays_so(served):
    admin = served.admin.http_headers
    assert post(served, "repository/models/specprefill/unload", {}, admin)[0] == 200
    wait_until(lambda: "specprefill" not in served.models(), 10)
    time.sleep(1)  # several looks of the supervisor
    assert "specprefill" not in served.models()
    assert post(served, "repository/models/specprefill/load", {}, admin)[0] == 200
    wait_until(lambda: sparse(served), RECOVERY_SECONDS)


def test_a_server_that_dies_is_started_again(served):
    everything = served.everything()[1:]
    regions = served.regions()
    triton = served.triton.pid
    answer = Answer(served.grpc_url, **ENDLESS)
    answer.wait_first()
    os.kill(triton, signal.SIGKILL)
    killed = time.monotonic()
    answer.join(TOLD_SECONDS)
    assert answer.error is not None
    recovered(served, killed)  # on the same ports
    assert [process for process in everything if process.is_running()] == []
    assert [region for region in regions if region.exists()] == []
    assert "tritonserver ended by itself" in served.errors


def test_it_ends_with_the_server_where_restarts_are_not_wanted(tiny_llama, tmp_path):
    served = Served(tmp_path, tiny_llama, "--no-openai", on_crash="exit")
    try:
        everything = served.everything()
        os.kill(served.triton.pid, signal.SIGKILL)
        assert served.wait(30) == 1
        assert "tritonserver ended by itself" in served.errors
        assert "Started HTTPService" in served.errors  # the log's last lines
        assert [process for process in everything if process.is_running()] == []
        assert served.regions() == []
    finally:
        served.close()
