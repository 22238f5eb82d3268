# SPDX-License-Identifier: Apache-2.0
"""What only the TensorRT-LLM target has: its executor, its ranks, its cached blocks."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fake_tensorrt_llm
import numpy as np
import pytest
from conftest import write_engine_folder
from specprefill.errors import ConfigurationError, EngineError, InvalidRequestError
from specprefill.explicit_rotary import loader
from specprefill.settings import TargetSettings, TensorRTSettings
from specprefill.target import trtllm_target
from specprefill.target.trtllm_target import TrtllmTarget, cache_salt
from test_target_contract import (
    KEPT,
    PROMPT_LENGTH,
    dense,
    make_request,
    prompt,
    pruned,
    run,
    tokens_of,
)

MakeTrtllm = Callable[..., TrtllmTarget]
Double = fake_tensorrt_llm.Double


def test_executor_is_configured_for_explicit_positions(
    double: Double, make_trtllm_target: MakeTrtllm
) -> None:
    make_trtllm_target({"max_running": 3}, kv_cache_free_gpu_memory_fraction=0.5)
    config = double.executors[0].config
    assert config.scheduler_config.capacity_scheduler_policy.name == "GUARANTEED_NO_EVICT"
    assert config.enable_chunked_context is True
    assert config.kv_cache_config.enable_block_reuse is False
    assert config.kv_cache_config.free_gpu_memory_fraction == 0.5
    assert config.max_batch_size == 3
    assert config.parallel_config.communication_mode.name == "LEADER"
    assert config.enable_trt_overlap is False
    make_trtllm_target()
    assert double.executors[1].config.kv_cache_config.free_gpu_memory_fraction == 0.7


def test_lost_position_ids_change_the_answer(
    double: Double,
    make_trtllm_target: MakeTrtllm,
    greedy_reference: Callable[..., list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = make_trtllm_target()
    request = pruned()
    expected = greedy_reference(request.token_ids, KEPT, PROMPT_LENGTH, 8)
    assert run(target, request) == expected
    monkeypatch.setattr(double.executors[0], "_inputs", ["input_ids"])
    assert run(target, request) != expected


def test_position_ids_out_of_step_are_never_sent(
    double: Double, make_trtllm_target: MakeTrtllm
) -> None:
    target = make_trtllm_target()
    with pytest.raises(EngineError):
        target.submit(make_request(np.arange(5, dtype=np.int32), np.arange(4, dtype=np.int32), 4))
    assert double.executors[0].requests == []


def test_cancelling_and_closing_reach_the_executor(
    double: Double, make_trtllm_target: MakeTrtllm
) -> None:
    target = make_trtllm_target()
    first = target.submit(dense(request_id="first", max_tokens=300))
    next(first)
    target.cancel("first")
    assert double.executors[0].cancelled == [1]
    second = target.submit(dense(request_id="second", max_tokens=300))
    next(second)
    second.close()
    assert double.executors[0].cancelled == [1, 2]
    run(target, pruned())
    assert double.executors[0].cancelled == [1, 2]


def test_place_is_free_once_the_answer_is_complete(make_trtllm_target: MakeTrtllm) -> None:
    target = make_trtllm_target({"max_running": 1, "max_queue": 0})
    unread = target.submit(pruned(request_id="unread"))
    deadline = time.monotonic() + 10
    while target.load != (0, 0, 0) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(run(target, pruned(request_id="next"))) == 8
    assert not target.cancel("unread")
    assert len(tokens_of(list(unread))) == 8


def test_refused_request_is_that_request_s_error(
    double: Double, make_trtllm_target: MakeTrtllm
) -> None:
    target = make_trtllm_target()
    double.executors[0].error_of_next_request = "Prompt length exceeds maximum input length"
    with pytest.raises(EngineError, match="exceeds maximum input length"):
        run(target, pruned())
    assert len(run(target, pruned())) == 8


def test_failing_executor_ends_all_and_refuses_more(
    double: Double, make_trtllm_target: MakeTrtllm
) -> None:
    target = make_trtllm_target()
    streams = [target.submit(dense(request_id=name, max_tokens=300)) for name in ("a", "b")]
    for stream in streams:
        next(stream)
    double.executors[0].fail(RuntimeError("CUDA error: an illegal memory access"))
    for stream in streams:
        with pytest.raises(EngineError, match="illegal memory access"):
            list(stream)
    with pytest.raises(EngineError, match="illegal memory access"):
        target.submit(pruned())


def test_refused_enqueueing_is_an_engine_error(
    double: Double, make_trtllm_target: MakeTrtllm
) -> None:
    target = make_trtllm_target()
    double.executors[0].enqueue_request = lambda request: (_ for _ in ()).throw(RuntimeError("no"))
    with pytest.raises(EngineError, match="refused"):
        target.submit(pruned())
    assert target.load == (0, 0, 0)


def test_several_tokens_in_one_response_are_several_steps(
    double: Double, make_trtllm_target: MakeTrtllm, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = make_trtllm_target()
    expected = list(target.submit(pruned()))
    await_responses = double.executors[0].await_responses

    def merged(timeout: Any) -> list[Any]:
        """Hold back all but the last response, and give it the tokens of all."""
        held: list[Any] = []
        while not (held and held[-1].result.is_final):
            held += await_responses(timeout)
            if not held:
                return []
        last = held[-1].result
        last.output_token_ids = [
            [t for response in held for t in response.result.output_token_ids[0]]
        ]
        return held[-1:]

    monkeypatch.setattr(double.executors[0], "await_responses", merged)
    time.sleep(2 * trtllm_target._AWAIT.total_seconds())
    steps = list(target.submit(pruned()))
    assert [s.token_id for s in steps] == [s.token_id for s in expected]
    assert [s.log_prob for s in steps] == pytest.approx([s.log_prob for s in expected])
    assert [s.finish_reason for s in steps] == [s.finish_reason for s in expected]
    assert steps[0].prefill_ms > 0 == steps[1].prefill_ms


def test_unfinished_end_is_an_error(double: Double, make_trtllm_target: MakeTrtllm) -> None:
    target = make_trtllm_target()
    executor = double.executors[0]
    executor.hold.clear()
    steps = target.submit(pruned(max_tokens=1))
    reasons = double.bindings.FinishReason  # type: ignore[union-attr]
    result = double.bindings.Result(  # type: ignore[union-attr]
        is_final=True,
        output_token_ids=[[]],
        log_probs=[[]],
        finish_reasons=[reasons.TIMED_OUT],
        request_perf_metrics=None,
    )
    executor._respond(1, result=result)
    with pytest.raises(EngineError, match="TIMED_OUT"):
        list(steps)
    executor.hold.set()


# Block reuse: the executor compares tokens alone, and keys carry positions.


def same_tokens(positions: np.ndarray, prompt_length: int) -> Any:
    return make_request(prompt(PROMPT_LENGTH, 1)[KEPT], positions, prompt_length)


SHIFTED = np.append(KEPT[:-1], PROMPT_LENGTH - 1).astype(np.int32)
SHIFTED[1:5] += 1


def test_equal_tokens_at_other_positions_share_no_blocks(
    double: Double,
    make_trtllm_target: MakeTrtllm,
    greedy_reference: Callable[..., list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = make_trtllm_target(enable_block_reuse=True)
    assert double.executors[0].config.kv_cache_config.enable_block_reuse is True
    positions = np.arange(len(KEPT), dtype=np.int32)
    requests = [
        same_tokens(KEPT, PROMPT_LENGTH),
        same_tokens(SHIFTED, PROMPT_LENGTH),
        same_tokens(positions, len(KEPT)),
    ]
    answers = [greedy_reference(r.token_ids, r.position_ids, r.prompt_length, 8) for r in requests]
    assert len(set(map(tuple, answers))) == 3
    assert [run(target, request) for request in requests] == answers
    # Without the salt the double gives wrong answers, as the runtime would.
    monkeypatch.setattr(trtllm_target, "cache_salt", lambda positions: None)
    assert [run(target, request) for request in requests[:2]] != answers[:2]


def test_cache_salt() -> None:
    assert cache_salt(np.arange(7, dtype=np.int32)) is None
    salt = cache_salt(KEPT)
    assert salt is not None
    assert 0 <= salt < 2**64
    # The same in every process and on every machine: a literal.
    assert cache_salt(np.array([0, 5, 9], np.int32)) == 612574697384735748
    assert cache_salt(KEPT.astype(np.int64)) == salt
    assert cache_salt(SHIFTED) != salt


def test_no_reuse_where_the_bindings_have_no_salt(
    install_double: Callable[..., Double], model_folder: Path, engine_folder: Path
) -> None:
    double = install_double(without=frozenset({"cache_salt_id"}))
    settings = TensorRTSettings(engine_dir=str(engine_folder), enable_block_reuse=True)
    target = TrtllmTarget(model_folder, TargetSettings(), settings)
    assert double.executors[0].config.kv_cache_config.enable_block_reuse is False
    assert len(run(target, pruned())) == 8
    target.close()


# What the runtime cannot do as the contract says is refused, not done otherwise.


def test_min_tokens_with_several_stop_tokens(make_trtllm_target: MakeTrtllm) -> None:
    with pytest.raises(InvalidRequestError, match="min_tokens"):
        make_trtllm_target().submit(pruned(stop=(5, 6), min_tokens=2))


def test_top_k_that_the_runtime_would_clip(make_trtllm_target: MakeTrtllm) -> None:
    with pytest.raises(InvalidRequestError, match="top_k"):
        make_trtllm_target().submit(pruned(top_k=1025))


def test_penalties_that_would_count_the_prompt(
    install_double: Callable[..., Double], model_folder: Path, engine_folder: Path
) -> None:
    install_double(without=frozenset({"prompt_ignore_length"}))
    target = TrtllmTarget(
        model_folder, TargetSettings(), TensorRTSettings(engine_dir=str(engine_folder))
    )
    with pytest.raises(InvalidRequestError, match="frequency_penalty"):
        target.submit(pruned(frequency_penalty=0.5))
    assert len(run(target, pruned(repetition_penalty=1.2))) == 8
    target.close()


# Ranks.


def test_other_ranks_serve_the_first_and_take_no_requests(
    double: Double, make_trtllm_target: MakeTrtllm, model_folder: Path, tmp_path: Path
) -> None:
    folder = write_engine_folder(tmp_path, model_folder, target_world_size=2)
    leader = make_trtllm_target(folder=folder)
    double.rank = 1
    follower = make_trtllm_target(folder=folder)
    assert leader.takes_requests
    assert not follower.takes_requests
    with pytest.raises(EngineError, match="rank 0"):
        follower.submit(pruned())
    assert len(run(leader, pruned())) == 8
    assert follower._thread.is_alive()
    leader.close()
    follower._thread.join(10)
    assert not follower._thread.is_alive()


# Starting.


def test_missing_package(
    monkeypatch: pytest.MonkeyPatch, model_folder: Path, engine_folder: Path
) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt_llm", None)
    with pytest.raises(ConfigurationError, match="needs the package tensorrt_llm"):
        TrtllmTarget(
            model_folder, TargetSettings(), TensorRTSettings(engine_dir=str(engine_folder))
        )


def test_engines_of_another_version(
    install_double: Callable[..., Double], model_folder: Path, engine_folder: Path
) -> None:
    install_double(version="1.3.0")
    with pytest.raises(ConfigurationError, match=r"1\.2\.1 but 1\.3\.0"):
        TrtllmTarget(
            model_folder, TargetSettings(), TensorRTSettings(engine_dir=str(engine_folder))
        )


def test_executor_that_does_not_start(
    make_trtllm_target: MakeTrtllm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "load_plugin", lambda: None)
    with pytest.raises(ConfigurationError, match="no creator of plugin"):
        make_trtllm_target()


def test_more_sequences_than_the_engine_takes(make_trtllm_target: MakeTrtllm) -> None:
    with pytest.raises(ConfigurationError, match=r"target\.max_running: 9"):
        make_trtllm_target({"max_running": 9})


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda root: (root / "manifest.json").unlink(), "manifest.json"),
        (lambda root: (root / "manifest.json").write_text("{}"), "context_length"),
        (lambda root: (root / "manifest.json").write_text("[]"), "JSON object"),
        (lambda root: (root / "target" / "config.json").write_text("{"), "no JSON"),
        (lambda root: (root / "target" / "config.json").write_text("{}"), "pretrained_config"),
        (lambda root: (root / "target" / "rank0.engine").unlink(), r"rank0\.engine"),
    ],
)
def test_damaged_engine_folder(
    make_trtllm_target: MakeTrtllm,
    model_folder: Path,
    tmp_path: Path,
    damage: Callable[[Path], Any],
    message: str,
) -> None:
    folder = write_engine_folder(tmp_path, model_folder)
    damage(folder)
    with pytest.raises(ConfigurationError, match=message):
        make_trtllm_target(folder=folder)


@pytest.mark.parametrize("path", [None, "/nowhere/at/all"])
def test_no_engine_folder(double: Double, model_folder: Path, path: str | None) -> None:
    with pytest.raises(ConfigurationError, match="engine_dir"):
        TrtllmTarget(model_folder, TargetSettings(), TensorRTSettings(engine_dir=path))
