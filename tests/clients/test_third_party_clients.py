# SPDX-License-Identifier: Apache-2.0
"""Clients that were written for TensorRT-LLM's ensemble, unchanged, and curl."""

import json
import shutil
import subprocess

import pytest

PROMPT = "The capital of France is"


@pytest.fixture(scope="module")
def llama_index(server):
    from llama_index.llms.nvidia_triton import NvidiaTriton

    return NvidiaTriton(server_url=server.grpc_url, model_name="ensemble", tokens=8, timeout=60)


def test_llama_index_completes(llama_index):
    assert llama_index.complete(PROMPT).text.startswith(" Paris")


def test_llama_index_streams(llama_index):
    pieces = list(llama_index.stream_complete(PROMPT))
    assert len(pieces) > 2
    assert "".join(piece.delta for piece in pieces).startswith(" Paris")


def curl(server, way, model, **fields):
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    url = f"http://{server.http_url}/v2/models/{model}/{way}"
    body = json.dumps({"text_input": PROMPT, "max_tokens": 4, **fields})
    command = ["curl", "-sS", "--fail-with-body", "--max-time", "60", url, "-d", body]
    command += ["-H", "Content-Type: application/json"]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stdout + told.stderr
    return told.stdout


@pytest.mark.parametrize("model", ["specprefill", "ensemble"])
class TestCurl:
    def test_generate(self, server, model):
        assert json.loads(curl(server, "generate", model))["text_output"].startswith(" Paris")

    def test_generate_stream(self, server, model):
        told = curl(server, "generate_stream", model, stream=True)
        events = [json.loads(line[6:]) for line in told.splitlines() if line.startswith("data: ")]
        assert len(events) > 1
        assert "".join(event["text_output"] for event in events).startswith(" Paris")
