# SPDX-License-Identifier: Apache-2.0
import json
from pathlib import Path

import pytest
from specprefill.cost_model import (
    DraftWork,
    Rates,
    attended_pairs,
    draft_passes,
    draft_work,
    ideal_times,
    paper_work,
    prefill_pass,
)
from specprefill.gpus import GPUS
from specprefill.memory_plan import shape_from_config
from specprefill.model_sources.shapes import PUBLISHED_SHAPES, parameters
from specprefill.settings import DraftSettings, SelectionSettings

MODELS = Path(__file__).parent / "data" / "models"
SAME = Rates(linear=1.0, attention=1.0)


def paper_ratio(keep, prompt=8192):
    target, draft = PUBLISHED_SHAPES["llama-3.1-405b"], PUBLISHED_SHAPES["llama-3.1-8b"]
    eight = GPUS["h200"].rates.times(8)
    work = paper_work(draft, SelectionSettings())
    kept = round(keep * prompt)
    return ideal_times(target, draft, work, prompt, kept, eight.in_fp8(), eight).ratio


@pytest.mark.parametrize(("keep", "measured"), [(0.1, 6.69), (0.3, 2.75), (0.5, 1.82), (0.7, 1.33)])
def test_the_papers_figures_lie_just_below_the_ideal(keep, measured):
    """arXiv 2502.02789: Llama-3.1-405B in FP8 with an 8B draft in bfloat16, both on eight GPUs."""
    assert 0.9 * paper_ratio(keep) < measured < paper_ratio(keep)


@pytest.mark.parametrize("name", sorted(path.name for path in MODELS.iterdir()))
def test_published_shapes_are_those_of_the_published_files(name):
    config = json.loads((MODELS / name / "config.json").read_text())
    assert PUBLISHED_SHAPES[name] == shape_from_config(config)


def test_the_embedded_models_shape_is_its_files(smollm2):
    config = json.loads((smollm2 / "config.json").read_text())
    assert PUBLISHED_SHAPES["smollm2-135m"] == shape_from_config(config)


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("llama-3.2-1b", 1.236), ("llama-3.2-3b", 3.213), ("llama-3.1-8b", 8.03),
        ("llama-3.1-70b", 70.55), ("llama-3.1-405b", 405.9), ("smollm2-360m", 0.3618),
        ("smollm2-1.7b", 1.711),
    ],
)  # fmt: skip
def test_published_shapes_have_the_published_number_of_parameters(name, billions):
    assert parameters(PUBLISHED_SHAPES[name]) == pytest.approx(billions * 1e9, rel=1e-3)


def test_a_prefill_by_hand():
    model = PUBLISHED_SHAPES["llama-3.1-8b"]
    layer = 4096 * (32 + 2 * 8) * 128 + 4096 * 4096 + 3 * 4096 * 14336
    counted = prefill_pass(model, 1000)
    assert counted.linear == 32 * layer * 1000 + 128256 * 4096
    assert counted.attention == 2 * 32 * 32 * 128 * 1000 * 1001 / 2
    assert counted.weights == 32 * layer + 128256 * 4096


def test_pairs_of_windowed_attention_are_those_of_the_mask():
    for tokens, window, sinks in ((50, 16, 4), (20, 16, 4), (7, 16, 4), (300, 16, 0)):
        seen = sum(
            1
            for query in range(tokens)
            for key in range(query + 1)
            if key < sinks or key > query - window
        )
        assert attended_pairs(tokens, window, sinks) == seen
    assert attended_pairs(50) == 50 * 51 / 2


def test_the_draft_of_the_cpu_deployment_stops_at_its_last_scored_layer():
    shape = PUBLISHED_SHAPES["smollm2-135m"]
    settings = DraftSettings(layers=20, score_layers=(12, 19), attention_window=512, sink_tokens=64)
    work = draft_work(shape, settings, 16, 1)
    assert work == DraftWork(
        layers=19, partial_layer=True, scored_layers=8, queries=16, window=512, sinks=64
    )
    (prompt,) = draft_passes(shape, work, 4000)
    layer = 576 * 15 * 64 + 576 * 576 + 3 * 576 * 1536
    assert prompt.linear == (19 * layer + 576 * 15 * 64) * 4000
    assert prompt.attention == 2 * 19 * 576 * attended_pairs(4000, 512, 64) + 8 * 576 * 16 * 4000


def test_look_ahead_runs_the_whole_draft_and_reads_its_weights_every_step():
    shape = PUBLISHED_SHAPES["smollm2-135m"]
    passes = draft_passes(shape, paper_work(shape, SelectionSettings(look_ahead=8)), 4000)
    assert len(passes) == 8
    slow_memory = Rates(linear=1e15, attention=1e15, bandwidth=1e9, weight_bytes=4, cache_bytes=4)
    layer = 576 * 15 * 64 + 576 * 576 + 3 * 576 * 1536
    read = 4 * (30 * layer + 49152 * 576) + 4 * 2 * 30 * 3 * 64 * 4000
    assert passes[1].seconds(slow_memory) == pytest.approx(read / 1e9)


def test_a_draft_as_big_as_the_target_cannot_win():
    model = PUBLISHED_SHAPES["llama-3.1-8b"]
    work = DraftWork(layers=model.layers)
    assert ideal_times(model, model, work, 8192, 1638, SAME, SAME).ratio < 1


def test_a_draft_on_fewer_gpus_costs_more():
    models = PUBLISHED_SHAPES["llama-3.1-70b"], PUBLISHED_SHAPES["llama-3.2-1b"]
    work = paper_work(models[1], SelectionSettings())
    gpu = GPUS["h100"].rates
    one, four = (
        ideal_times(*models, work, 32768, 3277, gpu.times(4).in_fp8(), gpu.times(n)).ratio
        for n in (1, 4)
    )
    assert one < four < 10


def test_reading_weights_bounds_a_short_prefill():
    model = PUBLISHED_SHAPES["llama-3.1-8b"]
    gpu = GPUS["h100"].rates
    assert prefill_pass(model, 1).seconds(gpu) == pytest.approx(
        2 * (parameters(model) - 128256 * 4096) / 3.35e12
    )
