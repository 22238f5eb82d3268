# SPDX-License-Identifier: Apache-2.0
import json
from pathlib import Path

import pytest
from specprefill.cost_model import Device, ideal_ratio, prefill_operations
from specprefill.memory_plan import shape_from_config

MODELS = Path(__file__).parent / "data" / "models"


def shape(name):
    return shape_from_config(json.loads((MODELS / name / "config.json").read_text()))


@pytest.mark.parametrize(("keep", "measured"), [(0.1, 6.69), (0.3, 2.75), (0.5, 1.82), (0.7, 1.33)])
def test_the_papers_figures_lie_just_below_the_ideal(keep, measured):
    """arXiv 2502.02789: Llama-3.1-405B in FP8 with an 8B draft in bfloat16, both on eight GPUs."""
    eight = Device(gpus=8)
    ratio = ideal_ratio(
        shape("llama-3.1-405b"), shape("llama-3.1-8b"), 8192, keep, Device(8, 2.0), eight
    )
    assert 0.9 * ratio < measured < ratio


def test_operations_by_hand():
    model = shape("llama-3.1-8b")
    layer = 4096 * (32 + 2 * 8) * 128 + 4096 * 4096 + 3 * 4096 * 14336
    expected = 32 * layer * 1000 + 32 * 32 * 128 * 1000**2 + 128256 * 4096
    assert prefill_operations(model, 1000) == expected


def test_a_draft_as_big_as_the_target_cannot_win():
    model = shape("llama-3.1-8b")
    assert ideal_ratio(model, model, 8192, 0.2, Device(), Device()) < 1


def test_a_draft_on_fewer_gpus_costs_more():
    models = shape("llama-3.1-70b"), shape("llama-3.2-1b")
    one = ideal_ratio(*models, 32768, 0.1, Device(4, 2.0), Device(1))
    four = ideal_ratio(*models, 32768, 0.1, Device(4, 2.0), Device(4))
    assert one < four < 10
