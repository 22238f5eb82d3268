# SPDX-License-Identifier: Apache-2.0
"""Both entries over gRPC streaming, /generate and /generate_stream give the same answers."""

import json

import numpy as np
import pytest
import tritonclient.grpc as grpc
import tritonclient.http as http
from specprefill.client import make_input, stream
from specprefill.demo import FACT

from tests.serving.conftest import generate, generate_stream, metric

ENTRIES = ("specprefill", "ensemble")


def grpc_text(server, model, **fields):
    return "".join(piece.text for piece in stream(server.grpc_url, model, **fields))


@pytest.fixture(scope="module")
def answers(server, messages):
    """Every way to ask, dense and sparse, greedy."""
    out = {}
    for keep_rate in (1.0, 0.2):
        fields = {"messages": messages, "max_tokens": 16, "keep_rate": keep_rate}
        for model in ENTRIES:
            out[keep_rate, model, "grpc stream"] = list(stream(server.grpc_url, model, **fields))
            out[keep_rate, model, "generate"] = generate(server, model, **fields)
            out[keep_rate, model, "generate_stream"] = generate_stream(server, model, **fields)
    return out


def text_of(answer):
    if isinstance(answer, dict):
        return answer["text_output"]
    return "".join(p["text_output"] if isinstance(p, dict) else p.text for p in answer)


def statistics_of(answer):
    if isinstance(answer, dict):
        return answer
    return answer[-1] if isinstance(answer[-1], dict) else answer[-1].outputs


@pytest.mark.parametrize("keep_rate", [1.0, 0.2])
def test_every_way_gives_the_same_text_with_the_fact(answers, keep_rate):
    texts = {text_of(answer) for key, answer in answers.items() if key[0] == keep_rate}
    assert len(texts) == 1
    assert FACT in texts.pop()


@pytest.mark.parametrize("way", ["grpc stream", "generate", "generate_stream"])
@pytest.mark.parametrize("model", ENTRIES)
def test_statistics_tell_what_was_kept(answers, model, way):
    dense = statistics_of(answers[1.0, model, way])
    sparse = statistics_of(answers[0.2, model, way])
    assert dense["active"] is False
    assert dense["reason"] == "dense: keep_rate is 1"
    assert dense["kept_tokens"] == dense["prompt_tokens"] == sparse["prompt_tokens"]
    assert dense["draft_ms"] == 0
    assert sparse["active"] is True
    assert sparse["reason"].startswith("pruned: kept")
    assert 0.1 < sparse["kept_tokens"] / sparse["prompt_tokens"] < 0.45
    assert (sparse["draft_ms"] > 0) != sparse["reason"].endswith("; selection remembered")
    assert sparse["target_prefill_ms"] > 0
    assert sparse["finish_reason"] in ("stop", "length")


@pytest.mark.parametrize("model", ENTRIES)
def test_streams_come_in_pieces_with_statistics_first_and_last(answers, model):
    pieces = answers[0.2, model, "grpc stream"]
    assert len(pieces) > 5
    for piece in (pieces[0], pieces[-1]):
        assert piece.outputs["prompt_tokens"] > 256
    assert "finish_reason" not in pieces[0].outputs
    assert all("prompt_tokens" not in piece.outputs for piece in pieces[1:-1])


def test_the_answer_equals_the_pipeline_in_process(server, messages, answers):
    from specprefill.pipeline import Pipeline

    pipeline = Pipeline(server.settings)
    try:
        sampling = {"max_tokens": 16}
        text = pipeline.generate(messages=messages, sampling=sampling)
    finally:
        pipeline.close()
    assert text == text_of(answers[0.2, "specprefill", "generate"])


@pytest.mark.parametrize("model", ENTRIES)
def test_text_output_has_one_dimension(server, model):
    """As TensorRT-LLM's clients read it: as_numpy("text_output")[0].decode()."""
    with http.InferenceServerClient(server.http_url, network_timeout=60) as client:
        assert client.is_model_ready(model)
    responses = []
    with grpc.InferenceServerClient(server.grpc_url) as client:
        client.start_stream(lambda result, error: responses.append((result, error)))
        inputs = [make_input("text_input", "Hello"), make_input("max_tokens", 3)]
        client.async_stream_infer(model, inputs, enable_empty_final_response=True)
        client.stop_stream()
    (result, error), *_ = responses
    assert error is None
    array = result.as_numpy("text_output")
    assert array.shape == (1,)
    assert isinstance(array[0].decode(), str)


@pytest.mark.parametrize("model", ENTRIES)
def test_only_the_last_response_is_final(server, model):
    flags = []
    with grpc.InferenceServerClient(server.grpc_url) as client:
        client.start_stream(
            lambda result, error: flags.append(
                result.get_response().parameters["triton_final_response"].bool_param
            )
        )
        inputs = [
            make_input(n, v)
            for n, v in {"text_input": "Once upon a time", "max_tokens": 6, "stream": True}.items()
        ]
        client.async_stream_infer(model, inputs, enable_empty_final_response=True)
        client.stop_stream()
    assert flags[-1] is True
    assert not any(flags[:-1])


@pytest.mark.parametrize("model", ENTRIES)
@pytest.mark.parametrize(
    "prompt",
    [
        "Repeat exactly: 😀 🤖 🧪 😀 🤖 🧪 😀 🤖 🧪",
        "重复 日本語 中文 日本語 中文 日本語 中文",
        "  two  spaces  two  spaces",
    ],
)
def test_streamed_text_is_lossless(server, model, prompt):
    fields = {"text_input": prompt, "max_tokens": 20}
    streamed = [piece.text for piece in stream(server.grpc_url, model, **fields)]
    assert "".join(streamed) == generate(server, model, **fields)["text_output"]
    assert not any("\ufffd" in piece for piece in streamed)


@pytest.mark.parametrize("model", ENTRIES)
def test_stop_words_cut_the_text_before_them(server, model):
    fields = {"text_input": "The days of the week are Monday,", "max_tokens": 20}
    whole = generate(server, model, **fields)["text_output"]
    stop = whole[7:10]
    cut = grpc_text(server, model, **fields, stop_words=[stop, "never said"])
    assert cut == whole[: whole.find(stop)]


@pytest.mark.parametrize("model", ENTRIES)
def test_bad_words_are_not_said(server, model):
    fields = {"text_input": "The capital of France is", "max_tokens": 8}
    assert "Paris" in grpc_text(server, model, **fields)
    assert "Paris" not in grpc_text(server, model, **fields, bad_words=["Paris"])


@pytest.mark.parametrize("model", ENTRIES)
def test_seeds_make_samples_repeatable(server, model):
    fields = {"text_input": "My favourite animal is", "max_tokens": 12, "temperature": 1.5}
    first, second, other = (
        grpc_text(server, model, **fields, top_k=100, seed=seed) for seed in (3, 3, 4)
    )
    assert first == second != other
    assert first == grpc_text(server, model, **fields, top_k=100, random_seed=3)
    greedy = grpc_text(server, model, text_input="My favourite animal is", max_tokens=12)
    assert greedy == grpc_text(server, model, **fields)  # as in TensorRT-LLM: no top_k, no top_p


@pytest.mark.parametrize("model", ENTRIES)
def test_prompt_is_left_out_unless_asked_for(server, model):
    fields = {"text_input": "The capital of France is", "max_tokens": 4}
    bare = generate(server, model, **fields)["text_output"]
    with_prompt = generate(server, model, **fields, exclude_input_in_output=False)["text_output"]
    assert with_prompt == "The capital of France is" + bare
    assert grpc_text(server, model, **fields, exclude_input_in_output=False) == bare


@pytest.mark.parametrize("model", ENTRIES)
def test_counts_and_log_probabilities_on_request(server, model):
    fields = {"text_input": "The capital of France is", "max_tokens": 5}
    answer = generate(
        server,
        model,
        **fields,
        return_num_input_tokens=True,
        return_num_output_tokens=True,
        return_log_probs=True,
    )
    assert "".join(answer["output_tokens"]) == answer["text_output"]
    assert answer["num_input_tokens"] == 5
    assert answer["num_output_tokens"] == 5
    assert len(answer["output_log_probs"]) == 5
    assert answer["cum_log_probs"] == pytest.approx(sum(answer["output_log_probs"]), abs=1e-4)
    assert max(answer["output_log_probs"]) < 0
    assert "num_input_tokens" not in generate(server, model, **fields)


def test_min_tokens_and_its_old_name(server):
    fields = {"text_input": "Say: end", "max_tokens": 30, "end_id": 2}
    for name in ("min_tokens", "min_length"):
        answer = generate(
            server, "specprefill", **fields, **{name: 30}, return_num_output_tokens=True
        )
        assert answer["num_output_tokens"] == 30


def test_requests_in_flight_do_not_mix(server):
    from concurrent.futures import ThreadPoolExecutor

    prompts = [f"Count: {i}, {i + 1}, {i + 2}," for i in range(8)]
    ask = lambda p: grpc_text(server, "specprefill", text_input=p, max_tokens=10)  # noqa: E731
    alone = [ask(prompt) for prompt in prompts]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, prompts)) == alone


def test_metrics_count_prompts_and_tokens(server, messages):
    names = ("specprefill_requests", "specprefill_prompt_tokens", "specprefill_kept_tokens")
    before = [metric(server, name) for name in names]
    answer = generate(server, "specprefill", messages=messages, max_tokens=1)
    after = [metric(server, name) for name in names]
    grown = np.subtract(after, before).tolist()
    assert grown == [1, answer["prompt_tokens"], answer["kept_tokens"]]


def test_the_load_is_on_the_metrics_page(server):
    import time

    pieces = stream(
        server.grpc_url, text_input="Once upon a time", max_tokens=2000, min_tokens=2000
    )
    next(pieces)
    time.sleep(1.5)
    assert metric(server, "specprefill_running") == 1
    assert metric(server, "specprefill_cache_tokens") == 2004
    pieces.close()
    time.sleep(2.5)
    assert metric(server, "specprefill_running") == 0


def test_messages_and_text_of_the_same_prompt_agree(server, tokenizer):
    chat = [{"role": "user", "content": "What is 2 + 2?"}]
    rendered = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    by_messages = generate(server, "ensemble", messages=json.dumps(chat), max_tokens=8)
    by_text = generate(server, "ensemble", text_input=rendered, max_tokens=8)
    assert by_messages["text_output"] == by_text["text_output"]
