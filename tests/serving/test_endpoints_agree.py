# SPDX-License-Identifier: Apache-2.0
"""A selection setting does the same on every endpoint, and a bad value is worded the same."""

from __future__ import annotations

import json
import urllib.error
import urllib.request

import pytest
import tritonclient.grpc as grpc
from specprefill.client import make_input, read_piece

from tests.serving.conftest import post
from tests.serving.served import Served

ENTRIES = ("specprefill", "ensemble")
TEXT = " ".join(f"On day {day} the keeper of the gate saw {7 * day} birds." for day in range(36))
CHAT = [
    {"role": "user", "content": "How many birds were there on day 20?"},
    {"role": "assistant", "content": "I shall look into the report."},
    {"role": "tool", "tool_call_id": "1", "content": TEXT},
    {"role": "user", "content": "Well?"},
]
PROMPTS = {"text": {"text_input": TEXT}, "chat": {"messages": json.dumps(CHAT)}}
SETTINGS = {
    "default": {},
    "keep_rate": {"keep_rate": 0.35},
    "scorer": {"scorer": "none", "keep_rate": 0.3},
    "min_prompt_tokens": {"min_prompt_tokens": 4000},
    "protect_last": {"protect_last": 150, "protect_last_user_tokens": 0},
    "chunk_size": {"chunk_size": 100},
    "coverage": {"coverage": 0.5, "keep_rate": 0.25},
    "role_keep_rates": {"role_keep_rates": {"tool": 0.6}},
}
BAD = {
    "keep_rate": 1.5,
    "scorer": "best",
    "min_prompt_tokens": -1,
    "protect_last": -2,
    "chunk_size": 0,
    "coverage": 1.25,
    "role_keep_rates": {"tool": 7.0},
    "pool_kernel": 4,
}


class RefusedError(Exception):
    """An endpoint's sentence about a bad value."""


def as_inputs(settings):
    """Structured settings travel as JSON on Triton's endpoints."""
    return {k: json.dumps(v) if isinstance(v, dict) else v for k, v in settings.items()}


def over_grpc(served, model, fields, stream_answer):
    inputs = [make_input(k, v) for k, v in {**fields, "stream": stream_answer}.items()]
    responses = []
    with grpc.InferenceServerClient(served.grpc_url) as client:
        client.start_stream(lambda result, error: responses.append((result, error)))
        client.async_stream_infer(model, inputs)
        client.stop_stream()
    errors = [error for _, error in responses if error is not None]
    if errors:
        raise RefusedError(errors[0].message())
    return {k: v for result, _ in responses for k, v in read_piece(result).outputs.items()}


def over_http(served, model, fields, stream_answer):
    way = "generate_stream" if stream_answer else "generate"
    status, body = post(served, f"models/{model}/{way}", {**fields, "stream": stream_answer})
    events = [json.loads(line.removeprefix("data: ")) for line in body.splitlines() if line]
    merged = {k: v for event in events for k, v in event.items()}
    if status != 200:
        raise RefusedError(merged["error"])
    return merged


def over_openai(served, kind, settings, stream_answer):
    path, prompt = {
        "text": ("completions", {"prompt": TEXT}),
        "chat": ("chat/completions", {"messages": CHAT}),
    }[kind]
    body = {"model": "specprefill", **prompt, "max_tokens": 1, "stream": stream_answer}
    request = urllib.request.Request(
        f"{served.openai_url}/{path}",
        json.dumps({**body, "specprefill": settings}).encode(),
        {"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            text = response.read().decode()
    except urllib.error.HTTPError as error:
        raise RefusedError(json.load(error)["error"]["message"]) from error
    if stream_answer:
        lines = [line.removeprefix("data: ") for line in text.splitlines() if line]
        text = lines[-2]  # before [DONE]
    return json.loads(text)["specprefill"]


@pytest.fixture(scope="module")
def served(tiny_llama, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        # Whether pruning pays must not decide what a test sees.
        patch.setenv("SPECPREFILL__GATE__ENABLED", "false")
        served = Served(tmp_path_factory.mktemp("served"), tiny_llama)
    yield served
    served.close()


@pytest.fixture
def endpoints(served):
    """Ways to send a prompt with settings, by name; each returns the statistics."""

    def triton(send, model, stream_answer):
        return lambda kind, settings: send(
            served, model, {**PROMPTS[kind], **as_inputs(settings), "max_tokens": 1}, stream_answer
        )

    ways = {
        f"{send.__name__} {model} stream={stream_answer}": triton(send, model, stream_answer)
        for send in (over_grpc, over_http)
        for model in ENTRIES
        for stream_answer in (False, True)
    }
    for stream_answer in (False, True):
        ways[f"over_openai stream={stream_answer}"] = (
            lambda kind, settings, stream_answer=stream_answer: over_openai(
                served, kind, settings, stream_answer
            )
        )
    return ways


def outcome(statistics):
    reason = statistics["reason"].removesuffix("; selection remembered")
    return statistics["kept_tokens"], statistics["active"], reason


@pytest.mark.parametrize("kind", list(PROMPTS))
@pytest.mark.parametrize("case", list(SETTINGS))
def test_a_setting_does_the_same_on_every_endpoint(endpoints, case, kind):
    outcomes = {name: outcome(ask(kind, SETTINGS[case])) for name, ask in endpoints.items()}
    assert len(set(outcomes.values())) == 1, outcomes
    default = outcome(next(iter(endpoints.values()))(kind, {}))
    # Without messages there are no roles.
    has_effect = case != "default" and (case, kind) != ("role_keep_rates", "text")
    assert (next(iter(outcomes.values())) != default) == has_effect


@pytest.mark.parametrize("kind", list(PROMPTS))
@pytest.mark.parametrize("field", list(BAD))
def test_a_bad_value_gets_the_same_sentence_on_every_endpoint(endpoints, field, kind):
    sentences = {}
    for name, ask in endpoints.items():
        with pytest.raises(RefusedError) as caught:
            ask(kind, {field: BAD[field]})
        sentence = str(caught.value).removeprefix("in ensemble 'ensemble', ")
        sentences[name] = sentence.removeprefix("specprefill.")  # where the gateway has the field
    assert len(set(sentences.values())) == 1, sentences
    sentence = sentences.popitem()[1]
    value = BAD[field]["tool"] if isinstance(BAD[field], dict) else BAD[field]
    assert sentence.startswith(f"{field}: got {value!r}; allowed: ")
