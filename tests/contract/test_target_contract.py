# SPDX-License-Identifier: Apache-2.0
"""What every target engine promises, checked on torch and on TensorRT-LLM's double."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from conftest import CONTEXT, MAX_PROMPT, STOP_IDS, VOCABULARY
from specprefill.errors import (
    EngineError,
    InvalidRequestError,
    RequestCancelledError,
    ServerBusyError,
)
from specprefill.settings import SamplingSettings, TargetSettings
from specprefill.target.base import FinishReason, GenerationRequest, GenerationStep, TargetEngine
from specprefill.target.torch_target import TorchTarget
from transformers import AutoModelForCausalLM

Reference = Callable[..., list[int]]

# Kept positions of a prompt of 60 tokens: gaps, and the last token.
PROMPT_LENGTH = 60
KEPT = np.array([0, 1, 2, 17, 18, 30, 31, 32, 33, 58, 59], dtype=np.int32)


def prompt(length: int, text: int) -> np.ndarray:
    generator = np.random.default_rng(text)
    return generator.integers(1, VOCABULARY - 10, length).astype(np.int32)


def dense(length: int = 40, text: int = 1, **options: Any) -> GenerationRequest:
    return make_request(prompt(length, text), np.arange(length, dtype=np.int32), length, **options)


def pruned(text: int = 1, **options: Any) -> GenerationRequest:
    return make_request(prompt(PROMPT_LENGTH, text)[KEPT], KEPT, PROMPT_LENGTH, **options)


def make_request(
    token_ids: np.ndarray,
    position_ids: np.ndarray,
    prompt_length: int,
    request_id: str = "request",
    stop: tuple[int, ...] = (),
    bad: tuple[tuple[int, ...], ...] = (),
    **sampling: Any,
) -> GenerationRequest:
    settings = SamplingSettings(**{"max_tokens": 8, **sampling})
    return GenerationRequest(
        request_id, token_ids, position_ids, prompt_length, settings, frozenset(stop), bad
    )


def tokens_of(steps: list[GenerationStep]) -> list[int]:
    return [step.token_id for step in steps if step.token_id is not None]


def run(target: TargetEngine, request: GenerationRequest) -> list[int]:
    return tokens_of(list(target.submit(request)))


def test_dense_prompt_gives_hugging_face_tokens(
    target: TargetEngine, greedy_reference: Reference
) -> None:
    request = dense()
    expected = greedy_reference(request.token_ids, request.position_ids, 40, 8)
    assert run(target, request) == expected


@pytest.mark.parametrize("text", [1, 2, 3])
def test_pruned_prompt_keeps_positions_and_decodes_from_prompt_length(
    target: TargetEngine, greedy_reference: Reference, text: int
) -> None:
    request = pruned(text)
    expected = greedy_reference(request.token_ids, KEPT, PROMPT_LENGTH, 8)
    # The two mistakes that this test is for do change the answer.
    assert expected != greedy_reference(request.token_ids, np.arange(len(KEPT)), len(KEPT), 8)
    assert expected != greedy_reference(request.token_ids, KEPT, len(KEPT), 8)
    assert run(target, request) == expected


def test_steps_tell_why_and_how_long(target: TargetEngine) -> None:
    steps = list(target.submit(pruned(max_tokens=3)))
    assert [step.finish_reason for step in steps] == [None, None, FinishReason.LENGTH]
    assert steps[0].prefill_ms > 0
    assert steps[0].queue_ms >= 0
    assert all(step.queue_ms == step.prefill_ms == 0 for step in steps[1:])
    assert all(step.log_prob < 0 for step in steps)


def test_log_probabilities_are_those_of_the_logits(
    target: TargetEngine, model_folder: Any, greedy_reference: Reference
) -> None:
    request = dense(max_tokens=4)
    steps = list(target.submit(request))
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    ids = torch.tensor([*request.token_ids.tolist(), *tokens_of(steps)])
    with torch.inference_mode():
        scores = model(ids[None]).logits[0].log_softmax(-1)
    expected = [float(scores[39 + i, step.token_id]) for i, step in enumerate(steps)]
    assert [step.log_prob for step in steps] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("token_ids", "position_ids", "prompt_length"),
    [
        ([], [], 1),
        ([1, 2, 3], [0, 1], 2),
        ([1, 2], [0, 1, 2], 3),
        ([1, 2, 3], [0, 2, 1], 2),
        ([1, 2, 3], [0, 1, 1], 2),
        ([1, 2, 3], [-1, 0, 1], 2),
        ([1, 2, 3], [0, 1, 2], 4),
        ([1, 2, 3], [0, 1, 5], 4),
    ],
)
def test_wrong_lengths_and_positions_are_refused(
    target: TargetEngine, token_ids: list[int], position_ids: list[int], prompt_length: int
) -> None:
    request = make_request(
        np.array(token_ids, np.int32), np.array(position_ids, np.int32), prompt_length
    )
    with pytest.raises(EngineError):
        target.submit(request)


def test_room_in_context_and_cache_is_checked(target: TargetEngine) -> None:
    assert target.context_length == CONTEXT
    assert target.capacity == MAX_PROMPT + 20
    beyond_context = make_request(np.array([5], np.int32), np.array([CONTEXT - 4], np.int32), 509)
    with pytest.raises(InvalidRequestError, match="max_tokens"):
        target.submit(beyond_context)
    with pytest.raises(InvalidRequestError, match="max_tokens"):
        target.submit(dense(MAX_PROMPT, max_tokens=21))


def test_stop_tokens_of_the_model_are_known(target: TargetEngine) -> None:
    assert target.stop_token_ids == frozenset(STOP_IDS)


def test_stop_token_ends_the_answer_and_is_no_part_of_it(target: TargetEngine) -> None:
    free = run(target, pruned())
    index = next(i for i in range(2, 8) if free[i] not in free[:i])
    # One of several, so that on TensorRT-LLM both the end id and a stop word have their turn.
    for stop in ((free[index],), (0, free[index]), (free[index], VOCABULARY - 1)):
        steps = list(target.submit(pruned(stop=stop)))
        assert tokens_of(steps) == free[:index]
        assert steps[-1].token_id is None
        assert steps[-1].finish_reason is FinishReason.STOP


def test_stop_token_at_once_gives_an_empty_answer(target: TargetEngine) -> None:
    first = run(target, pruned(max_tokens=1))[0]
    (step,) = target.submit(pruned(stop=(first,)))
    assert (step.token_id, step.finish_reason) == (None, FinishReason.STOP)
    assert step.prefill_ms > 0


def test_min_tokens_hold_the_stop_token_back(target: TargetEngine) -> None:
    first = run(target, pruned(max_tokens=1))[0]
    tokens = run(target, pruned(stop=(first,), min_tokens=3))
    assert len(tokens) >= 3
    assert first not in tokens


def test_bad_words_are_never_generated(target: TargetEngine) -> None:
    free = run(target, pruned())
    tokens = run(target, pruned(bad=((free[0],), (free[1], free[2]))))
    assert free[0] not in tokens
    assert (free[1], free[2]) not in itertools.pairwise(tokens)


SAMPLINGS: list[dict[str, Any]] = [
    {"top_k": 40, "temperature": 1.5, "seed": 7},
    {"top_p": 0.9, "temperature": 1.2, "seed": 2**64 - 1},
    {"top_k": 60, "top_p": 0.95, "temperature": 0.9, "seed": 3},
    {"repetition_penalty": 1.4},
    {"presence_penalty": 1.5},
    {"top_k": 50, "temperature": 1.7, "seed": 11, "presence_penalty": 1.0},
    {"top_k": 50, "temperature": 0.6, "seed": 12, "frequency_penalty": 0.8},
]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=lambda s: ",".join(s))
def test_sampling_settings_mean_the_same_on_every_engine(
    request: pytest.FixtureRequest, model_folder: Any, sampling: dict[str, Any]
) -> None:
    torch_target = TorchTarget(model_folder, TargetSettings(dtype="float32"))
    try:
        expected = run(torch_target, pruned(max_tokens=48, **sampling))
    finally:
        torch_target.close()
    trtllm_target = request.getfixturevalue("make_trtllm_target")()
    assert run(trtllm_target, pruned(max_tokens=48, **sampling)) == expected
    assert expected != run(trtllm_target, pruned(max_tokens=48))


def test_seed_decides_and_no_seed_is_fresh(target: TargetEngine) -> None:
    sampling = {"max_tokens": 20, "top_k": 200, "temperature": 2.0}
    assert run(target, pruned(seed=5, **sampling)) == run(target, pruned(seed=5, **sampling))
    assert run(target, pruned(**sampling)) != run(target, pruned(**sampling))


def test_several_in_flight_answer_as_if_alone(target: TargetEngine) -> None:
    requests = [
        make(text=text, request_id=f"{make.__name__}{text}", max_tokens=4 + text)
        for text in range(3)
        for make in (dense, pruned)
    ]
    alone = [run(target, request) for request in requests]
    streams = [target.submit(request) for request in requests]
    assert [tokens_of(list(stream)) for stream in streams] == alone


def test_cancel_ends_the_answer(target: TargetEngine) -> None:
    steps = target.submit(dense(max_tokens=300))
    next(steps)
    assert target.cancel("request")
    with pytest.raises(RequestCancelledError):
        list(steps)
    assert not target.cancel("request")
    assert len(run(target, pruned())) == 8


def test_unknown_or_finished_requests_cannot_be_cancelled(target: TargetEngine) -> None:
    run(target, pruned())
    assert not target.cancel("request")
    assert not target.cancel("nobody")


def test_closing_the_iterator_frees_the_place(make_target: Callable[..., TargetEngine]) -> None:
    target = make_target(max_running=1, max_queue=1)
    for _ in range(4):
        steps = target.submit(dense(max_tokens=300))
        next(steps)
        steps.close()
    assert len(run(target, pruned())) == 8


def test_full_queue_is_busy(make_target: Callable[..., TargetEngine]) -> None:
    target = make_target(max_running=1, max_queue=1)
    first = target.submit(dense(request_id="first", max_tokens=300))
    next(first)
    second = target.submit(pruned(request_id="second"))
    with pytest.raises(ServerBusyError, match="try again"):
        target.submit(pruned(request_id="third"))
    assert target.load[0] + target.load[1] == 2
    target.cancel("first")
    assert len(tokens_of(list(second))) == 8
    deadline = time.monotonic() + 10
    while target.load != (0, 0, 0) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert target.load == (0, 0, 0)


def test_close_ends_what_is_in_flight(make_target: Callable[..., TargetEngine]) -> None:
    target = make_target()
    steps = target.submit(dense(max_tokens=300))
    next(steps)
    closing = threading.Thread(target=target.close)
    closing.start()
    with pytest.raises(RequestCancelledError):
        list(steps)
    closing.join(10)
    assert not closing.is_alive()
    with pytest.raises(EngineError):
        target.submit(pruned())
