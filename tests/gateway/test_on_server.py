# SPDX-License-Identifier: Apache-2.0
"""The official OpenAI client against the gateway in front of a real Triton with real weights."""

import asyncio
import http.client
import json
import time

import openai
import pytest
from specprefill.demo import FACT

from tests.serving.conftest import generate, metric

CAPITAL = [{"role": "user", "content": "What is the capital of France? One word."}]
LONG = {"min_tokens": 3000}


@pytest.fixture(scope="module")
def client(gateway):
    with openai.OpenAI(base_url=f"{gateway}/v1", api_key="any", max_retries=0) as client:
        yield client


def ask(client, **fields):
    fields = {"messages": CAPITAL, "temperature": 0, "max_tokens": 8, **fields}
    return client.chat.completions.create(model="specprefill", **fields)


def complete(client, **fields):
    fields = {"prompt": "The capital of France is", "temperature": 0, "max_tokens": 4, **fields}
    return client.completions.create(model="specprefill", **fields)


def test_a_chat_completion_says_what_the_server_says(client, server):
    answer = ask(client)
    direct = generate(server, "specprefill", messages=json.dumps(CAPITAL), max_tokens=8)
    assert answer.choices[0].message.content == direct["text_output"]
    assert answer.choices[0].finish_reason == direct["finish_reason"]
    assert answer.usage.prompt_tokens == direct["prompt_tokens"]
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_a_completion(client):
    answer = complete(client)
    assert answer.choices[0].text.startswith(" Paris")
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 4


def test_streamed_pieces_joined_are_the_answer(client):
    whole = ask(client)
    chunks = list(ask(client, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == (
        whole.choices[0].finish_reason
    )
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert len({chunk.id for chunk in chunks}) == 1


def test_a_stream_without_usage_has_none(client):
    chunks = list(complete(client, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == complete(client).choices[0].text
    assert all(chunk.usage is None for chunk in chunks)
    assert chunks[-1].specprefill["reason"]


def test_eight_at_once_with_the_async_client(gateway, client):
    async def run():
        async with openai.AsyncOpenAI(base_url=f"{gateway}/v1", api_key="any") as many:

            async def one(number):
                stream = await many.chat.completions.create(
                    model="specprefill", messages=CAPITAL, temperature=0, max_tokens=8, stream=True
                )
                return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

            return await asyncio.gather(*map(one, range(8)))

    assert set(asyncio.run(run())) == {ask(client).choices[0].message.content}


def test_keep_rate_is_honoured(client, messages):
    document = json.loads(messages)
    sparse, dense = (
        ask(
            client,
            messages=document,
            max_tokens=16,
            extra_body={"specprefill": {"keep_rate": rate}},
        )
        for rate in (0.1, 1)
    )
    assert FACT in dense.choices[0].message.content
    assert sparse.specprefill["active"] is True
    assert dense.specprefill["active"] is False
    details = sparse.usage.prompt_tokens_details
    assert details.kept_tokens == sparse.specprefill["kept_tokens"] < 400
    assert sparse.usage.prompt_tokens == dense.usage.prompt_tokens_details.kept_tokens > 700


def test_sampling_is_the_default_and_a_seed_repeats_it(client):
    def sample(**fields):
        fields = {
            "prompt": "Once upon a time",
            "max_tokens": 12,
            "temperature": openai.NOT_GIVEN,
            **fields,
        }
        return complete(client, **fields).choices[0].text

    assert sample(seed=7) == sample(seed=7)
    assert len({sample(seed=seed) for seed in range(4)}) > 1
    assert sample(seed=-1) == sample(seed=-1)
    assert (
        sample(temperature=0) == sample(top_p=0) == sample(extra_body={"specprefill": {"top_k": 1}})
    )


def test_stop_strings_end_the_answer(client):
    whole = complete(client, max_tokens=12).choices[0].text
    word = whole.split()[2]
    for stop in (word, ["never said", word]):
        answer = complete(client, max_tokens=12, stop=stop).choices[0]
        assert answer.finish_reason == "stop"
        assert answer.text == whole[: whole.index(word)]


def test_chat_log_probs(client):
    answer = ask(client, logprobs=True)
    tokens = answer.choices[0].logprobs.content
    assert len(tokens) == answer.usage.completion_tokens
    assert all(token.logprob <= 0 for token in tokens)
    assert "".join(t.token for t in tokens).startswith(answer.choices[0].message.content)
    streamed = [
        token
        for chunk in ask(client, logprobs=True, stream=True)
        if chunk.choices[0].logprobs
        for token in chunk.choices[0].logprobs.content
    ]
    assert [token.token for token in streamed] == [token.token for token in tokens]
    assert [t.logprob for t in streamed] == pytest.approx([t.logprob for t in tokens], abs=1e-3)


def test_completion_log_probs(client):
    log_probs = complete(client, logprobs=1).choices[0].logprobs
    assert "".join(log_probs.tokens) == complete(client).choices[0].text
    assert log_probs.text_offset[1] == len(log_probs.tokens[0])
    assert log_probs.top_logprobs[0] == {log_probs.tokens[0]: log_probs.token_logprobs[0]}


def test_penalties_change_the_answer(client):
    plain = complete(client, prompt="one two one two one two", max_tokens=12)
    penalised = complete(
        client, prompt="one two one two one two", max_tokens=12, frequency_penalty=2
    )
    assert plain.choices[0].text != penalised.choices[0].text


def test_content_parts_are_joined(client):
    parts = [
        {"type": "text", "text": "What is the capital"},
        {"type": "text", "text": "of France?"},
    ]
    joined = [{"role": "user", "content": "What is the capital\nof France?"}]
    ours = ask(client, messages=[{"role": "user", "content": parts}])
    assert (
        ours.choices[0].message.content == ask(client, messages=joined).choices[0].message.content
    )


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": 9000}, "max_tokens"),
        ({"max_completion_tokens": 9000, "max_tokens": openai.NOT_GIVEN}, "max_completion_tokens"),
        ({"messages": [{"role": "user", "content": "word " * 9000}]}, "messages"),
        ({"messages": [{"role": "user", "content": " "}]}, "messages"),
        ({"extra_body": {"specprefill": {"pool_kernel": 4}}}, "specprefill.pool_kernel"),
        (
            {"extra_body": {"specprefill": {"repetition_penalty": 1e300}}},
            "specprefill.repetition_penalty",
        ),
    ],
)
def test_what_the_server_refuses_is_a_bad_request(client, fields, param):
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as caught:
            ask(client, stream=stream, **fields)
        assert caught.value.param == param
        assert caught.value.body["message"].startswith(param)
        assert "allowed: " in caught.value.body["message"]


def test_tools_that_the_model_cannot_see_are_refused(client):
    """SmolLM2's chat template has no place for tools."""
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, tools=[tool])
    assert caught.value.param == "tools"
    assert ask(client, tools=[tool], tool_choice="none").choices


def test_an_empty_prompt_is_called_prompt(client):
    with pytest.raises(openai.BadRequestError) as caught:
        complete(client, prompt="  ")
    assert caught.value.param == "prompt"


def test_a_timeout_is_told(client):
    with pytest.raises(openai.APIStatusError) as caught:
        ask(client, max_tokens=3000, extra_body={"specprefill": {"timeout_ms": 300, **LONG}})
    assert caught.value.status_code == 504
    assert caught.value.body["param"] == "specprefill.timeout_ms"


def test_a_timeout_in_mid_stream_raises_in_the_client(client):
    stream = ask(
        client,
        max_tokens=3000,
        stream=True,
        extra_body={"specprefill": {"timeout_ms": 1500, **LONG}},
    )
    with pytest.raises(openai.APIError, match="not complete after 1500 ms"):
        for _ in stream:
            pass


def wait_for_cancellation(server, before, seconds=10.0):
    deadline = time.monotonic() + seconds
    while metric(server, "specprefill_cancelled") == before:
        assert time.monotonic() < deadline, "the target ran on"
        time.sleep(0.05)


def wait_for(server, gauge, value, seconds=20.0):
    """Wait for a gauge of the target's load, which lags behind by a second."""
    deadline = time.monotonic() + seconds
    while metric(server, gauge) != value:
        assert time.monotonic() < deadline, f"{gauge} should be {value}"
        time.sleep(0.1)


def test_closing_a_stream_frees_the_server(client, server):
    before = metric(server, "specprefill_cancelled")
    stream = ask(client, max_tokens=3000, stream=True, extra_body={"specprefill": LONG})
    next(iter(stream))
    stream.close()
    wait_for_cancellation(server, before)


def test_leaving_before_the_answer_is_there_frees_the_server(gateway, server):
    wait_for(server, "specprefill_running", 0)
    before = metric(server, "specprefill_cancelled")
    connection = http.client.HTTPConnection(gateway.removeprefix("http://"))
    body = {"model": "specprefill", "prompt": "Once", "max_tokens": 3000, "specprefill": LONG}
    connection.request(
        "POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"}
    )
    wait_for(server, "specprefill_running", 1)
    connection.close()
    wait_for_cancellation(server, before)


def test_more_than_the_queue_holds_is_told_to_come_back(client, server):
    """4 run and 4 wait; the ninth is refused."""
    wait_for(server, "specprefill_waiting", 0)

    async def run():
        async with openai.AsyncOpenAI(
            base_url=client.base_url, api_key="any", max_retries=0
        ) as many:
            busy = [
                asyncio.create_task(
                    many.completions.create(
                        model="specprefill",
                        prompt="Once",
                        max_tokens=400,
                        extra_body={"specprefill": {"min_tokens": 400}},
                    )
                )
                for _ in range(8)
            ]
            await asyncio.to_thread(wait_for, server, "specprefill_waiting", 4)
            try:
                await many.completions.create(model="specprefill", prompt="Hi", max_tokens=2)
            finally:
                for task in busy:
                    task.cancel()
                await asyncio.gather(*busy, return_exceptions=True)

    with pytest.raises(openai.InternalServerError) as caught:
        asyncio.run(run())
    assert caught.value.status_code == 503
    assert caught.value.code == "server_busy"
    assert caught.value.response.headers["retry-after"] == "1"


def test_models_and_health(client, gateway):
    assert [model.id for model in client.models.list()] == ["specprefill"]
    assert client.models.retrieve("specprefill").id == "specprefill"
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("gpt-4")
    assert caught.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="gpt-4", messages=CAPITAL)
