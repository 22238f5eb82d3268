# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from specprefill.errors import ConfigurationError
from specprefill.memory_plan import (
    GIB,
    Load,
    ModelMemory,
    check_draft_alone,
    kept_tokens_at_most,
    linear_weights,
    model_memory,
    plan_gpu,
    shape_from_config,
)
from specprefill.selection import protected_mask, select
from specprefill.settings import SelectionSettings

MODELS = Path(__file__).parent / "data" / "models"

# Published parameter counts.
PARAMETERS = {
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
}


def shape_of(name: str):
    return shape_from_config(json.loads((MODELS / name / "config.json").read_text()))


@pytest.mark.parametrize(("name", "parameters"), PARAMETERS.items())
def test_weights_are_the_published_parameters(name, parameters):
    memory = model_memory(shape_of(name), step_tokens=1, batch_size=1, rotary_tables=0)
    assert memory.weights == 2 * parameters


@pytest.mark.parametrize(
    ("name", "kilobytes"),
    [("llama-3.2-1b", 32), ("llama-3.1-8b", 128), ("llama-3.1-70b", 320), ("llama-3.1-405b", 504)],
)
def test_kv_bytes_per_token(name, kilobytes):
    shape = shape_of(name)
    bfloat16 = model_memory(shape, step_tokens=1, batch_size=1)
    fp8 = model_memory(shape, step_tokens=1, batch_size=1, kv_cache="fp8")
    assert bfloat16.kv_per_token == kilobytes * 1024
    assert fp8.kv_per_token * 2 == bfloat16.kv_per_token


def test_fp8_halves_matrix_products_only():
    shape = shape_of("llama-3.1-8b")
    bfloat16 = model_memory(shape, step_tokens=1, batch_size=1)
    fp8 = model_memory(shape, step_tokens=1, batch_size=1, weights="fp8")
    assert bfloat16.weights - fp8.weights == shape.layers * linear_weights(shape, 1)


def test_tensor_parallel_ranks_share_products_and_heads_but_not_the_embedding():
    shape = shape_of("llama-3.1-70b")
    one = model_memory(shape, step_tokens=1, batch_size=1, weights="fp8", kv_cache="fp8")
    four = model_memory(
        shape, step_tokens=1, batch_size=1, weights="fp8", kv_cache="fp8", tp_size=4
    )
    embedding = shape.vocabulary_size * shape.hidden_size * 2
    assert four.weights > one.weights // 4
    assert four.weights < one.weights // 4 + embedding
    assert four.kv_per_token * 4 == one.kv_per_token
    # More ranks than key-value heads repeat heads instead of splitting them.
    sixteen = model_memory(
        shape, step_tokens=1, batch_size=1, kv_cache="fp8", weights="fp8", tp_size=16
    )
    assert sixteen.kv_per_token * 8 == one.kv_per_token


def test_pipeline_ranks_share_layers():
    shape = shape_of("llama-3.1-405b")
    one = model_memory(shape, step_tokens=1, batch_size=1)
    two = model_memory(shape, step_tokens=1, batch_size=1, pp_size=2)
    assert two.kv_per_token * 2 == one.kv_per_token


def test_engine_and_hugging_face_names_give_the_same_shape():
    config = json.loads((MODELS / "llama-3.1-8b" / "config.json").read_text())
    engine = {k: v for k, v in config.items() if k != "head_dim"}
    engine["head_size"] = 128
    assert shape_from_config(engine) == shape_from_config(config)
    del engine["head_size"]
    assert shape_from_config(engine).head_size == 128


@pytest.mark.parametrize("value", [None, 0, "32", True, 1.5])
def test_a_shape_without_a_number_is_refused(value):
    config = json.loads((MODELS / "llama-3.1-8b" / "config.json").read_text())
    config["num_hidden_layers"] = value
    with pytest.raises(ConfigurationError, match=r"num_hidden_layers: got .*integer from 1"):
        shape_from_config(config)


DRAFT = ModelMemory(weights=2 * GIB, activations=GIB, kv_per_token=32 * 1024)
TARGET = ModelMemory(weights=8 * GIB, activations=GIB, kv_per_token=64 * 1024)
LOAD = Load(prompt_tokens=16384, kept_tokens=4096, new_tokens=1024, look_ahead=0)


def plan(**changes):
    values = {"total": 24 * GIB, "reserve": GIB, "target": TARGET, "draft": DRAFT, "load": LOAD}
    return plan_gpu(**{**values, **changes})


def test_both_loading_orders_fit():
    result = plan()
    free = 24 * GIB - TARGET.weights - TARGET.activations
    draft = result.draft_weights + result.draft_activations + result.draft_kv
    fraction = result.kv_cache_free_gpu_memory_fraction
    target_first = fraction * (free - GIB)
    assert target_first + draft <= free - GIB
    draft_first = fraction * (free - GIB - draft)
    assert draft_first + draft <= free - GIB
    # The reported pool is the smaller one.
    assert result.pool >= draft_first
    assert result.pool < target_first


def test_the_draft_counts_whole_prompts_and_the_target_kept_tokens():
    result = plan()
    assert result.draft_kv == 16384 * DRAFT.kv_per_token
    per_block = 32 * TARGET.kv_per_token
    assert result.pool_blocks == result.pool // per_block
    assert result.pool_tokens == result.pool_blocks * 32
    assert result.pruned_sequences == result.pool_blocks // ((4096 + 1024) // 32)
    assert result.dense_sequences == result.pool_blocks // ((16384 + 1024) // 32)
    assert result.pruned_sequences > 3 * result.dense_sequences


def test_a_draft_elsewhere_leaves_its_memory_to_the_pool():
    alone = plan(draft=None)
    assert alone.draft_weights == alone.draft_kv == 0
    assert alone.pool > plan().pool
    assert alone.kv_cache_free_gpu_memory_fraction == 0.95


def test_a_draft_alone_is_checked_against_its_own_gpu():
    check_draft_alone(5 * GIB, GIB, DRAFT, LOAD)
    with pytest.raises(ConfigurationError, match=r"too small for the draft alone: reserve 1\.0"):
        check_draft_alone(4 * GIB, GIB, DRAFT, LOAD)


def test_more_draft_prompts_cost_their_keys():
    three = plan(load=replace(LOAD, draft_prompts=3))
    assert three.draft_kv == 3 * plan().draft_kv


@pytest.mark.parametrize("total", [1, 10, 13])
def test_too_small_a_gpu_is_refused_with_the_numbers(total):
    with pytest.raises(ConfigurationError) as caught:
        plan(total=total * GIB)
    message = str(caught.value)
    for number in (f"{total:.1f} GiB", "target weights 8.0 GiB", "draft 3.5 GiB", "16384 tokens"):
        assert number in message
    assert "allowed:" in message


def test_one_prompt_and_its_answer_must_fit():
    least = next(t for t in range(13 * 1024, 24 * 1024, 16) if _fits(t * 1024**2))
    assert plan(total=least * 1024**2).dense_sequences == 1


def _fits(total: int) -> bool:
    try:
        plan(total=total)
    except ConfigurationError:
        return False
    return True


@settings(max_examples=60, deadline=None)
@given(total=st.integers(14, 96), draft_gib=st.integers(1, 8), prompt=st.integers(64, 65536))
def test_a_plan_never_exceeds_the_gpu(total, draft_gib, prompt):
    draft = replace(DRAFT, weights=draft_gib * GIB)
    load = replace(LOAD, prompt_tokens=prompt, kept_tokens=prompt // 4 + 1)
    try:
        result = plan(total=total * GIB, draft=draft, load=load)
    except ConfigurationError:
        return
    parts = result.target_weights + result.target_activations + result.draft_weights
    parts += result.draft_activations + result.draft_kv + result.pool + result.reserve
    assert parts <= result.total
    assert 0 < result.kv_cache_free_gpu_memory_fraction < 1
    assert 1 <= result.dense_sequences <= result.pruned_sequences


@settings(max_examples=200, deadline=None)
@given(
    length=st.integers(1, 3000),
    protect=st.integers(0, 100),
    seed=st.integers(0, 2**32 - 1),
    options=st.fixed_dictionaries(
        {
            "keep_rate": st.floats(0.01, 1),
            "chunk_size": st.integers(1, 64),
            "chunk_borders": st.sampled_from(["fixed", "line"]),
            "budget": st.sampled_from(["rate", "tokens", "mass", "threshold"]),
            "keep_tokens": st.integers(1, 2000),
            "keep_rate_by_length": st.sampled_from([None, {100: 0.7, 900: 0.2}]),
            "role_keep_rates": st.sampled_from([None, {"tool": 0.1, "user": 0.6}]),
            "flat_guard": st.sampled_from(["off", "raise", "dense"]),
            "neighbours": st.integers(0, 2),
            "coverage": st.floats(0, 1),
        }
    ),
)
def test_no_selection_keeps_more_than_the_bound(length, protect, seed, options):
    draw = np.random.default_rng(seed)
    chosen = SelectionSettings(
        protect_first=protect, protect_last=protect, min_prompt_tokens=0, **options
    )
    selection = select(
        draw.random(length).astype(np.float32),
        chosen,
        protected_mask(length, protect, protect, ()),
        borders=(draw.random(length) < 0.05).astype(np.uint8) * 2,
        role_spans=((0, length // 2, 3), (length // 2, length, 1)),
    )
    assert len(selection.kept) <= kept_tokens_at_most(length, chosen)


def test_a_short_or_dense_prompt_is_kept_whole():
    assert kept_tokens_at_most(511, SelectionSettings()) == 511
    assert kept_tokens_at_most(9000, SelectionSettings(keep_rate=1)) == 9000
