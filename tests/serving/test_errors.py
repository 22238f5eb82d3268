# SPDX-License-Identifier: Apache-2.0
"""Each bad request gets one clear sentence over gRPC and HTTP; the next request works."""

import json

import numpy as np
import pytest
import tritonclient.grpc as grpc
from specprefill.client import ServerError, stream

from tests.serving.conftest import generate, post

CHAT = json.dumps([{"role": "user", "content": "Hi"}])
LONG_TEXT = "word " * 9000

# fields, words that the sentence must hold
BAD = {
    "empty": ({"text_input": ""}, ["text_input", "empty"]),
    "whitespace": ({"text_input": " \n "}, ["text_input", "empty"]),
    "nothing": ({"max_tokens": 3}, ["text_input", "neither"]),
    "both": ({"text_input": "Hi", "messages": CHAT}, ["messages", "text_input is set as well"]),
    "too long": ({"text_input": LONG_TEXT}, ["text_input", "9001 tokens", "8192"]),
    "max_tokens 0": ({"text_input": "Hi", "max_tokens": 0}, ["max_tokens", "got 0", "from 1"]),
    "max_tokens -1": ({"text_input": "Hi", "max_tokens": -1}, ["max_tokens", "got -1"]),
    "beyond context": ({"text_input": "Hi", "max_tokens": 8192}, ["max_tokens", "8192", "up to"]),
    "keep_rate 0": (
        {"text_input": "Hi", "keep_rate": 0.0},
        ["keep_rate", "greater than 0 up to 1"],
    ),
    "keep_rate 1.5": ({"text_input": "Hi", "keep_rate": 1.5}, ["keep_rate", "got 1.5"]),
    "scorer": ({"text_input": "Hi", "scorer": "best"}, ["scorer", "lookahead, zscore"]),
    "pool_kernel": ({"text_input": "Hi", "pool_kernel": 4}, ["pool_kernel", "even"]),
    "no json": ({"messages": "[{"}, ["messages", "no valid JSON"]),
    "role": ({"messages": '[{"role": "x", "content": "y"}]'}, ["messages[0].role", "'x'"]),
    "temperature": ({"text_input": "Hi", "temperature": -1.0}, ["temperature", "from 0"]),
    "top_p": ({"text_input": "Hi", "top_p": 1.5}, ["top_p", "up to 1"]),
    "beams": (
        {"text_input": "Hi", "beam_width": 4},
        ["beam_width", "4 is not supported", "only 1"],
    ),
    "end_id": ({"text_input": "Hi", "end_id": 99999}, ["end_id", "got 99999", "up to 49151"]),
    "timeout_ms": ({"text_input": "Hi", "timeout_ms": 0}, ["timeout_ms", "got 0", "from 1"]),
    "lora": ({"text_input": "Hi", "lora_task_id": 7}, ["lora_task_id", "not supported"]),
    "guide": ({"text_input": "Hi", "guided_decoding_guide": "x"}, ["guided_decoding_guide"]),
    "bias": ({"text_input": "Hi", "embedding_bias_words": ["a"]}, ["embedding_bias_words"]),
    "logits": ({"text_input": "Hi", "return_context_logits": True}, ["return_context_logits"]),
}
ENTRIES = ("specprefill", "ensemble")


@pytest.fixture(autouse=True)
def next_request_works(server):
    yield
    answer = generate(server, "specprefill", text_input="The capital of France is", max_tokens=2)
    assert answer["text_output"].startswith(" Paris")


@pytest.mark.parametrize("model", ENTRIES)
@pytest.mark.parametrize("case", list(BAD))
def test_over_grpc(server, model, case):
    fields, words = BAD[case]
    with pytest.raises(ServerError) as caught:
        list(stream(server.grpc_url, model, **{"max_tokens": 3, **fields}))
    for word in words:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("model", ENTRIES)
@pytest.mark.parametrize("case", list(BAD))
def test_over_http(server, model, case):
    fields, words = BAD[case]
    status, body = post(server, f"models/{model}/generate", {"max_tokens": 3, **fields})
    assert status == 400, body
    for word in words:
        assert json.dumps(word)[1:-1] in body or word in json.loads(body)["error"]


@pytest.mark.parametrize("model", ENTRIES)
def test_nan_over_grpc(server, model):
    with pytest.raises(ServerError, match="keep_rate: got nan"):
        list(stream(server.grpc_url, model, text_input="Hi", keep_rate=float("nan")))


@pytest.mark.parametrize("model", ENTRIES)
def test_invalid_utf8(server, model):
    with pytest.raises(ServerError, match=r"text_input: no valid UTF-8 \(byte 2\)"):
        list(stream(server.grpc_url, model, text_input=b"ab\xff\xfe", max_tokens=3))


@pytest.mark.parametrize("model", ENTRIES)
def test_two_prompts_in_one_request(server, model):
    prompts = grpc.InferInput("text_input", [2, 1], "BYTES")
    prompts.set_data_from_numpy(np.array([[b"a"], [b"b"]], dtype=np.object_))
    responses = []
    with grpc.InferenceServerClient(server.grpc_url) as client:
        client.start_stream(lambda result, error: responses.append((result, error)))
        client.async_stream_infer(model, [prompts])
        client.stop_stream()
    assert "text_input: a batch of 2; allowed: one prompt per request" in str(responses[0][1])


@pytest.mark.parametrize("model", ENTRIES)
def test_streams_over_http_carry_the_sentence(server, model):
    body = {"text_input": "Hi", "keep_rate": 7.0, "stream": True}
    status, answer = post(server, f"models/{model}/generate_stream", body)
    assert status == 400
    assert "keep_rate: got 7" in answer


def test_a_stop_request_without_id(server):
    with pytest.raises(ServerError, match="stop: the request has no id"):
        list(stream(server.grpc_url, "ensemble", stop=True))
