# SPDX-License-Identifier: Apache-2.0
"""Every failure becomes an OpenAI error object with the right status."""

import json

import pytest

from tests.gateway.conftest import BODY_LIMIT
from tests.gateway.stand_in import refusal

CHAT = {"model": "specprefill", "messages": [{"role": "user", "content": "Hi"}]}
COMPLETION = {"model": "specprefill", "prompt": "Hi"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
KEEP_RATE = "keep_rate: got 7.0; allowed: finite number greater than 0 up to 1"


def post(http, body, path="chat/completions", **headers):
    data = body if isinstance(body, (bytes, str)) else json.dumps(body)
    headers = {"Content-Type": "application/json", **headers}
    return http.post(f"/v1/{path}", content=data, headers=headers)


def error_of(response, status=400):
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    return error


def user(content):
    return {"messages": [{"role": "user", "content": content}]}


# fields added to a chat request, the parameter that the error names
REFUSED = [
    ({"n": 2}, "n"),
    ({"n": True}, "n"),
    ({"parallel_tool_calls": 1}, "parallel_tool_calls"),
    ({"top_logprobs": False}, "top_logprobs"),
    ({"response_format": {"type": "json_object"}}, "response_format.type"),
    ({"logit_bias": {"50256": -100}}, "logit_bias"),
    (
        {"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "required"},
        "tool_choice",
    ),
    ({"tool_choice": "auto"}, "tool_choice"),
    ({"functions": []}, "functions"),
    ({"audio": {}}, "audio"),
    ({"modalities": ["audio"]}, "modalities[0]"),
    ({"top_logprobs": 3, "logprobs": True}, "top_logprobs"),
    ({"best_of": 1}, "best_of"),
    ({"made_up": None}, "made_up"),
    ({"temperature": 2.5}, "temperature"),
    ({"temperature": "1"}, "temperature"),
    ({"top_p": -0.1}, "top_p"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"max_tokens": True}, "max_tokens"),
    ({"max_tokens": 2**31}, "max_tokens"),
    ({"max_tokens": 3, "max_completion_tokens": 3}, "max_completion_tokens"),
    ({"seed": 2**63}, "seed"),
    ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
    ({"stop": ["a", ""]}, "stop[1]"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "robot", "content": "Hi"}]}, "messages[0].role"),
    ({"messages": [{"role": "tool", "content": "42"}]}, "messages[0].tool_call_id"),
    (user([{"type": "image_url", "image_url": {"url": "x"}}]), "messages[0].content[0].type"),
    (user([{"type": "text", "text": 5}]), "messages[0].content[0].text"),
    (user(5), "messages[0].content"),
    (user(None), "messages[0].content"),
    ({"specprefill": {"keep_rate": 0}}, "specprefill.keep_rate"),
    ({"specprefill": {"scorer": "best"}}, "specprefill.scorer"),
    ({"specprefill": {"protect_last": 2**40}}, "specprefill.protect_last"),
    ({"specprefill": {"made_up": 1}}, "specprefill.made_up"),
    ({"specprefill": {"timeout_ms": 0}}, "specprefill.timeout_ms"),
]
REFUSED_COMPLETIONS = [
    ({"prompt": ["a", "b"]}, "prompt"),
    ({"prompt": [1, 2]}, "prompt"),
    ({"prompt": [1]}, "prompt[0]"),
    ({"prompt": ""}, "prompt"),
    ({"best_of": 2}, "best_of"),
    ({"echo": True}, "echo"),
    ({"echo": 0}, "echo"),
    ({"suffix": "end"}, "suffix"),
    ({"logprobs": 2}, "logprobs"),
    ({"logprobs": 1}, "logprobs"),
    ({"messages": []}, "messages"),
]


@pytest.mark.parametrize(("fields", "param"), REFUSED, ids=lambda value: str(value)[:60])
def test_unsupported_and_bad_fields_of_a_chat(http, stand_in, fields, param):
    error = error_of(post(http, {**CHAT, **fields}))
    assert error["param"] == param
    assert error["message"].startswith(param)
    assert error["type"] == "invalid_request_error"
    assert stand_in.asked == []


@pytest.mark.parametrize(("fields", "param"), REFUSED_COMPLETIONS, ids=str)
def test_unsupported_and_bad_fields_of_a_completion(http, stand_in, fields, param):
    error = error_of(post(http, {**COMPLETION, **fields}, "completions"))
    assert error["param"] == param
    assert stand_in.asked == []


def test_a_missing_field(http):
    assert error_of(post(http, {"model": "specprefill"}))["param"] == "messages"
    assert error_of(post(http, b""))["message"] == "body: missing"


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"\xff\xfe",
        b"[" * 100_00,
        b'{"model": NaN}',
        b'{"model": "specprefill", "prompt": "\\ud800"}',
        b'{"temperature": Infinity}',
        b'"text"',
        b"null",
    ],
    ids=lambda body: str(body[:30]),
)
def test_bodies_that_are_no_json_or_no_object(http, body):
    limit_free = body[: BODY_LIMIT - 1]
    error = error_of(post(http, limit_free, "completions"))
    assert error["type"] == "invalid_request_error"


def test_another_content_type_is_told(http):
    response = post(http, CHAT, **{"Content-Type": "application/x-www-form-urlencoded"})
    assert "Content-Type: application/json" in error_of(response)["message"]


def test_a_body_beyond_the_limit(http, stand_in):
    body = {**COMPLETION, "prompt": "x" * BODY_LIMIT}
    assert error_of(post(http, body, "completions"), 413)["code"] == "request_too_large"

    def chunks():  # sent without a Content-Length
        for _ in range(100):
            yield b"x" * 100

    headers = {"Content-Type": "application/json"}
    response = http.post("/v1/completions", content=chunks(), headers=headers)
    assert error_of(response, 413)["code"] == "request_too_large"
    assert stand_in.asked == []
    largest = json.dumps(COMPLETION).ljust(BODY_LIMIT)
    assert post(http, largest, "completions").status_code == 200
    assert post(http, largest + " ", "completions").status_code == 413


def test_other_urls_and_methods(http):
    assert error_of(http.get("/v1/nothing"), 404)["code"] == "unknown_url"
    response = http.get("/v1/completions")
    assert error_of(response, 405)
    assert response.headers["allow"] == "POST"
    assert error_of(http.get("/v1/models/gpt-4"), 404)["code"] == "model_not_found"
    error = error_of(post(http, {**CHAT, "model": "gpt-4"}), 404)
    assert (error["param"], error["code"]) == ("model", "model_not_found")


# the server's sentence and gRPC status -> status, param, code
SERVER_ERRORS = [
    (KEEP_RATE, "INVALID_ARGUMENT", 400, "specprefill.keep_rate", "invalid_value"),
    (KEEP_RATE, None, 400, "specprefill.keep_rate", "invalid_value"),
    ("text_input: the prompt is empty; allowed: text", None, 400, "prompt", "invalid_value"),
    ("stop_words: got 'x'; allowed: others", None, 400, "stop", "invalid_value"),
    ("messages[0].role: got 'x'; allowed: user", None, 400, "messages[0].role", "invalid_value"),
    ("max_tokens: 9\nlines; allowed: 1", None, 400, "max_completion_tokens", "invalid_value"),
    (
        "timeout_ms: the answer was not complete after 5 ms; allowed: a longer timeout_ms, or none",
        "CANCELLED", 504, "specprefill.timeout_ms", "timeout",
    ),
    ("server busy: 8 requests are in flight", "UNAVAILABLE", 503, None, "server_busy"),
    ("server busy: 8 requests are in flight", None, 503, None, "server_busy"),
    ("the request was cancelled", "StatusCode.CANCELLED", 499, None, "request_cancelled"),
    ("failed to connect to all addresses", "UNAVAILABLE", 503, None, "server_unavailable"),
    ("the process of 'target' died", "UNAVAILABLE", 503, None, "server_unavailable"),
    ("Stub process 'specprefill_0_0' is not healthy.", "INVALID_ARGUMENT", 503, None,
     "server_unavailable"),
    ("unexpected shape", "INVALID_ARGUMENT", 400, None, "invalid_value"),
    ("internal error: KeyError: 5", "INTERNAL", 500, None, "server_failed"),
    ("", None, 500, None, "server_failed"),
]  # fmt: skip


@pytest.mark.parametrize(("sentence", "grpc", "status", "param", "code"), SERVER_ERRORS)
@pytest.mark.parametrize("stream", [False, True])
def test_errors_of_the_server(http, stand_in, stream, sentence, grpc, status, param, code):
    stand_in.failure = refusal(sentence, grpc)
    body = {**CHAT, "max_completion_tokens": 9, "stream": stream}
    response = post(http, body)
    error = error_of(response, status)
    assert (error["param"], error["code"]) == (param, code)
    assert error["type"] == ("server_error" if status >= 499 else "invalid_request_error")
    assert ("retry-after" in response.headers) == (status == 503)
    assert param is None or error["message"].startswith(param)
    assert stand_in.closed == 1


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
def test_an_error_in_mid_stream_is_the_last_event(http, stand_in, path):
    stand_in.failure, stand_in.fails_at = refusal("the engine failed", "INTERNAL"), 1
    body = {**(CHAT if "chat" in path else COMPLETION), "stream": True}
    response = post(http, body, path)
    assert response.status_code == 200
    events = [line[6:] for line in response.text.splitlines() if line]
    assert json.loads(events[-1])["error"]["message"] == "the engine failed"
    assert "[DONE]" not in response.text
    assert stand_in.closed == 1
    page = http.get("/metrics").text
    counted = f'requests_total{{endpoint="/v1/{path}",status="500"}} 1.0'
    assert counted in page


def test_an_answer_that_just_ends_is_an_error(http, stand_in):
    async def stream(fields):
        async for piece in whole(fields):
            if "finish_reason" not in piece.outputs:
                yield piece

    whole = stand_in.stream
    stand_in.stream = stream
    assert error_of(post(http, CHAT), 500)["code"] == "server_failed"


def test_a_fault_of_the_gateway_is_no_traceback(http, stand_in):
    stand_in.failure = RuntimeError("secret detail")
    error = error_of(post(http, CHAT), 500)
    assert error["code"] == "gateway_failed"
    assert "secret" not in json.dumps(error)
