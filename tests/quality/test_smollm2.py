# SPDX-License-Identifier: Apache-2.0
"""One short calibration and one short evaluation with the embedded model."""

import pytest
from specprefill.calibrate import CALIBRATION_TASKS, HELD_OUT_TASKS, calibrate
from specprefill.cli import default_config
from specprefill.quality.evaluation import Options, evaluate
from specprefill.settings import load_settings


@pytest.fixture(scope="module")
def settings():
    return load_settings(default_config(), environment={})


def test_needles_survive_pruning(settings, tmp_path):
    options = Options(
        variants=("keep_rate=0.3", "scorer=none,keep_rate=0.3"),
        samples=2,
        lengths=(768,),
        classes=("niah_single",),
        output=tmp_path,
    )
    outcomes = evaluate(settings, options, lambda *_: None).outcomes
    by_variant = {
        variant: [o for o in outcomes if o.variant == variant]
        for variant in ("dense", *options.variants)
    }
    scored, spaced = (by_variant[name] for name in options.variants)
    assert all(o.score == 1.0 for o in by_variant["dense"])
    assert all(o.score == 1.0 and o.evidence_kept == 1.0 for o in scored)
    # Choosing by attention is what keeps the needle, not the keep rate.
    assert sum(o.evidence_kept for o in spaced) < 2
    assert sum(o.answer_divergence for o in scored) < sum(o.answer_divergence for o in spaced)


def test_calibration_finds_heads_that_look_things_up(settings):
    found = calibrate(settings, lambda *_: None, heads=12, samples=1, lengths=(768,))
    chosen = [found.reciprocal_rank[head] for head in found.heads]
    others = [v for head, v in found.reciprocal_rank.items() if head not in found.heads]
    assert min(chosen) >= max(others)
    assert sum(chosen) / len(chosen) > 2 * sum(others) / len(others)
    assert {layer for layer, _ in found.heads} <= set(range(12, 20))
    assert set(found.after) == {*CALIBRATION_TASKS, *HELD_OUT_TASKS}
    kept = [sum(shares[t] for t in CALIBRATION_TASKS) for shares in (found.before, found.after)]
    assert kept[1] >= kept[0]
