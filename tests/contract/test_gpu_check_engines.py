# SPDX-License-Identifier: Apache-2.0
"""The checks of whole engines against the double: right engines pass, wrong ones do not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import fake_tensorrt_llm
import numpy as np
import pytest
import torch
from conftest import MAX_PROMPT, SCORE_LAYERS, VOCABULARY
from specprefill.settings import Settings
from specprefill.target.trtllm_target import TrtllmTarget

from gpu_check import checks_engines
from gpu_check.bench import Bench, CheckFailedError, Options
from gpu_check.deployments import Deployment

PROMPT = 300


@pytest.fixture
def deployment(model_folder: Path, engine_folder: Path) -> Deployment:
    settings = Settings.model_validate(
        {
            "engine": "tensorrt_llm",
            "target": {"model": str(model_folder)},
            "draft": {"model": str(model_folder), "score_layers": SCORE_LAYERS},
            "selection": {"keep_rate": 0.3, "chunk_size": 8},
            "tensorrt_llm": {"engine_dir": str(engine_folder)},
            # As if a step held fewer tokens than a prompt.
            "build": {"max_prompt_tokens": MAX_PROMPT - 40, "max_num_tokens": 128},
        }
    )
    return Deployment("double", settings, VOCABULARY, 0.02, "cpu", torch.float32)


@pytest.fixture
def bench(double: fake_tensorrt_llm.Double, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(checks_engines, "_PROMPT", PROMPT)
    monkeypatch.setattr(checks_engines, "_TOKENS", 12)
    monkeypatch.setattr(checks_engines, "_MANY_REQUESTS", 3)
    monkeypatch.setattr(checks_engines, "used_memory_mib", lambda: 0.0)
    bench = Bench(Options())
    yield bench
    bench.close()


@pytest.mark.parametrize(
    "check",
    [
        checks_engines.dense_against_hugging_face,
        checks_engines.pruned_against_hugging_face,
        checks_engines.positions_are_honoured,
        checks_engines.decoding_starts_at_m,
        checks_engines.chunked_context,
        checks_engines.cache_salt_keeps_positions_apart,
        checks_engines.memory_over_many_requests,
        partial(checks_engines.draft_selection, scorer="zscore"),
        partial(checks_engines.draft_selection, scorer="lookahead"),
        checks_engines.draft_memory,
        partial(checks_engines.time_to_first_token, must_gain=False),
    ],
    ids=lambda check: getattr(check, "__name__", str(getattr(check, "keywords", check))),
)
def test_engines_that_are_right_pass(check: Any, bench: Bench, deployment: Deployment) -> None:
    check(bench, make=lambda _: deployment)
    assert bench.figures


def lose_the_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the target give the runtime positions without gaps."""
    native_request = TrtllmTarget._native_request

    def changed(self: TrtllmTarget, request: Any) -> Any:
        positions = np.arange(len(request.token_ids), dtype=np.int32)
        return native_request(self, replace(request, position_ids=positions))

    monkeypatch.setattr(TrtllmTarget, "_native_request", changed)


@pytest.mark.parametrize(
    "check",
    [
        checks_engines.pruned_against_hugging_face,
        checks_engines.positions_are_honoured,
        checks_engines.decoding_starts_at_m,
        checks_engines.cache_salt_keeps_positions_apart,
    ],
)
def test_an_engine_that_loses_the_positions_fails(
    check: Any, bench: Bench, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_the_positions(monkeypatch)
    with pytest.raises(CheckFailedError):
        check(bench, make=lambda _: deployment)


def test_cached_blocks_without_a_salt_fail(
    bench: Bench, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specprefill.target.trtllm_target.cache_salt", lambda _: None)
    with pytest.raises(CheckFailedError):
        checks_engines.cache_salt_keeps_positions_apart(bench, make=lambda _: deployment)
