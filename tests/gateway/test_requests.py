# SPDX-License-Identifier: Apache-2.0
"""What reaches the server, and what its answers become."""

import json

import pytest
from openai_gateway.api_keys import ApiKeys, load_api_keys
from openai_gateway.app import create_app
from openai_gateway.options import Options
from specprefill.client import Piece
from specprefill.errors import ConfigurationError
from specprefill.settings import GatewaySettings, SelectionSettings
from starlette.testclient import TestClient

from tests.gateway.stand_in import STATISTICS
from tests.gateway.test_errors import CHAT, COMPLETION, TOOL, error_of


def sent(http, stand_in, path="chat/completions", **fields):
    body = {**(CHAT if "chat" in path else COMPLETION), **fields}
    response = http.post(f"/v1/{path}", json=body)
    assert response.status_code == 200, response.text
    return stand_in.asked[-1]


def events(response):
    lines = [line for line in response.text.split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line[6:]) for line in lines[:-1]]


def test_sampling_is_on_unless_the_temperature_is_zero(http, stand_in):
    fields = sent(http, stand_in)
    assert (fields["temperature"], fields["top_p"]) == (1.0, 1.0)
    fields = sent(http, stand_in, temperature=0.5, top_p=0.9, specprefill={"top_k": 5})
    assert (fields["temperature"], fields["top_p"], fields["top_k"]) == (0.5, 0.9, 5)
    for greedy in ({"temperature": 0}, {"top_p": 0}, {"temperature": 0, "top_p": 0.9}):
        fields = sent(http, stand_in, **greedy)
        assert fields["temperature"] == 0
        assert "top_p" not in fields


def test_fields_become_inputs(http, stand_in):
    fields = sent(
        http,
        stand_in,
        seed=-2,
        stop="END",
        max_completion_tokens=9,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        user="somebody",
        logprobs=True,
        specprefill={
            "keep_rate": 0.3,
            "role_keep_rates": {"tool": 0.1},
            "keep_spans": [[0, 2]],
            "timeout_ms": 500,
        },
    )
    assert fields["seed"] == 2**64 - 2
    assert fields["stop_words"] == ["END"]
    assert fields["max_tokens"] == 9
    assert (fields["presence_penalty"], fields["frequency_penalty"]) == (0.5, -0.5)
    assert fields["return_log_probs"] is True
    assert fields["keep_rate"] == 0.3
    assert json.loads(fields["role_keep_rates"]) == {"tool": 0.1}
    assert json.loads(fields["keep_spans"]) == [[0, 2]]
    assert fields["timeout_ms"] == 500
    assert json.loads(fields["messages"]) == CHAT["messages"]
    assert "user" not in fields


def test_null_means_unset(http, stand_in):
    nulls = ("stream", "stop", "seed", "max_tokens", "temperature", "tools", "n", "specprefill")
    assert sent(http, stand_in, **dict.fromkeys(nulls)) == sent(http, stand_in)


def test_every_selection_setting_can_be_sent():
    assert SelectionSettings.model_fields.keys() <= Options.model_fields.keys()


def test_messages_reach_the_server_as_it_knows_them(http, stand_in):
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "42", "tool_call_id": "c1"},
    ]
    fields = sent(http, stand_in, messages=messages, tools=[TOOL])
    wrapped = json.loads(fields["messages"])
    assert wrapped["tools"] == [TOOL]
    assert wrapped["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "a\nb"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "42", "tool_call_id": "c1"},
    ]
    fields = sent(http, stand_in, messages=messages, tools=[TOOL], tool_choice="none")
    assert isinstance(json.loads(fields["messages"]), list)


def test_a_chat_answer(http):
    answer = http.post("/v1/chat/completions", json={**CHAT, "logprobs": True}).json()
    choice = answer["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": "one two three"}
    assert choice["finish_reason"] == "length"
    assert [t["token"] for t in choice["logprobs"]["content"]] == ["one", " two", " three"]
    assert choice["logprobs"]["content"][0]["bytes"] == [111, 110, 101]
    assert answer["usage"] == {
        "prompt_tokens": 100,
        "completion_tokens": 3,
        "total_tokens": 103,
        "prompt_tokens_details": {"cached_tokens": 0, "kept_tokens": 20},
    }
    assert answer["specprefill"] == STATISTICS


@pytest.mark.parametrize("usage", [False, True])
def test_a_streamed_chat_answer(http, usage):
    body = {**CHAT, "stream": True, "stream_options": {"include_usage": usage}}
    response = http.post("/v1/chat/completions", json=body)
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    chunks = events(response)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
    assert deltas == [
        {"role": "assistant", "content": ""},
        {"content": "one"},
        {"content": " two"},
        {"content": " three"},
        {},
    ]
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks if chunk["choices"]]
    assert reasons == [None] * 4 + ["length"]
    assert [("usage" in chunk) for chunk in chunks] == [usage] * len(chunks)
    assert [bool(chunk.get("usage")) for chunk in chunks] == [False] * (len(chunks) - 1) + [usage]
    assert ["specprefill" in chunk for chunk in chunks] == [False] * (len(chunks) - 1) + [True]


def test_a_streamed_completion(http):
    body = {**COMPLETION, "stream": True, "logprobs": 0, "stream_options": {"include_usage": True}}
    chunks = events(http.post("/v1/completions", json=body))
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["total_tokens"] == 103
    choices = [chunk["choices"][0] for chunk in chunks[:-1]]
    assert "".join(choice["text"] for choice in choices) == "one two three"
    assert [c["logprobs"]["text_offset"] for c in choices] == [[0], [3], [7], []]
    assert choices[-1]["finish_reason"] == "length"


def test_no_character_of_an_answer_ends_a_line_of_the_stream(http, stand_in):
    odd = "a\x85b\u2028c\u2029d\ne\r\x0cf\U0001f600"

    async def stream(fields):
        async for piece in whole(fields):
            yield Piece(odd, piece.outputs)

    whole, stand_in.stream = stand_in.stream, stream
    response = http.post("/v1/completions", json={**COMPLETION, "stream": True})
    assert all(line.startswith("data: ") for line in response.text.splitlines() if line)
    assert events(response)[0]["choices"][0]["text"] == odd


def test_minus_infinity_is_a_number(http, stand_in):
    async def stream(fields):
        async for piece in whole(fields):
            yield Piece(piece.text, {**piece.outputs, "output_log_probs": float("-inf")})

    whole, stand_in.stream = stand_in.stream, stream
    answer = http.post("/v1/completions", json={**COMPLETION, "logprobs": 0}).json()
    assert answer["choices"][0]["logprobs"]["token_logprobs"] == [-9999.0] * 3


def test_health_and_metrics(http, stand_in):
    assert http.get("/health").json() == {"status": "ok"}
    stand_in.ready = False
    assert error_of(http.get("/health"), 503)["code"] == "server_unavailable"
    sent(http, stand_in)
    http.post("/v1/chat/completions", json={})
    http.get("/v1/made/up/by/a/client")
    page = http.get("/metrics").text
    name = "specprefill_gateway"
    chat = 'endpoint="/v1/chat/completions"'
    assert f'{name}_requests_total{{{chat},status="200"}} 1.0' in page
    assert f'{name}_requests_total{{{chat},status="400"}} 1.0' in page
    assert f'{name}_requests_total{{endpoint="other",status="404"}} 1.0' in page
    assert f"{name}_first_token_seconds_count{{{chat}}} 1.0" in page
    assert f"{name}_request_seconds_count{{{chat}}} 2.0" in page
    assert f"{name}_in_flight 0.0" in page
    assert "made" not in page


def test_api_keys(stand_in):
    app = create_app(GatewaySettings(), stand_in, ApiKeys(["first", "secönd"]))
    client = TestClient(app)

    def status(authorization, path="/v1/models"):
        headers = {} if authorization is None else {"Authorization": authorization}
        return client.get(path, headers=headers).status_code

    for good in ("Bearer first", "bearer first", "Bearer secönd".encode()):
        assert status(good) == 200
    for bad in (
        None,
        "",
        "Bearer",
        "Bearer ",
        "Bearer fir",
        "Bearer first2",
        "Basic first",
        "first",
    ):
        assert status(bad) == 401
        assert status(bad, "/metrics") == 401
        assert status(bad, "/v1/made/up") == 401
        assert status(bad, "/health") == 200
    error = error_of(client.post("/v1/completions", json=COMPLETION), 401)
    assert error["type"] == "authentication_error"
    assert stand_in.asked == []


def test_where_keys_come_from(tmp_path):
    assert not load_api_keys(None, {})
    assert not load_api_keys(None, {"SPECPREFILL_API_KEYS": ""})
    assert load_api_keys(None, {"SPECPREFILL_API_KEYS": "a, b"}).accept(b"Bearer b")
    with pytest.raises(ConfigurationError, match="SPECPREFILL_API_KEYS holds no key"):
        load_api_keys(None, {"SPECPREFILL_API_KEYS": " , "})
    file = tmp_path / "keys"
    with pytest.raises(ConfigurationError, match="cannot be read"):
        load_api_keys(str(file), {})
    file.write_text("\n")
    with pytest.raises(ConfigurationError, match="holds no key"):
        load_api_keys(str(file), {"SPECPREFILL_API_KEYS": "a"})
    file.write_text("one\n\n two \n")
    keys = load_api_keys(str(file), {"SPECPREFILL_API_KEYS": "a"})
    assert keys.accept(b"Bearer two")
    assert not keys.accept(b"Bearer a")
    assert "two" not in repr(keys)
