# SPDX-License-Identifier: Apache-2.0
import pytest
from specprefill.quality import summary
from specprefill.quality.outcome import Outcome


def outcome(sample, variant, score, task="a", draft_ms=0.0, prefill_ms=100.0, **fields):
    return Outcome(
        sample, task, 1000, variant, "", score, 1000, 200, draft_ms, prefill_ms, "", **fields
    )


RUN = [
    outcome("1", "dense", 1.0),
    outcome("1", "x", 0.0, draft_ms=20, prefill_ms=30, evidence_kept=0.5),
    outcome("2", "dense", 0.0),
    outcome("2", "x", 1.0, draft_ms=30, prefill_ms=30),
    outcome("3", "dense", 1.0, task="b"),
    outcome("3", "x", 1.0, task="b", draft_ms=10, prefill_ms=30),
]


def test_wilson_interval_of_known_proportions():
    # Published examples: 8 of 10 and 0 of 10 at 95 %.
    assert summary.wilson(8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-3)
    assert summary.wilson(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-3)
    assert summary.wilson(10, 10) == pytest.approx((0.7225, 1.0), abs=1e-3)


def test_a_lucky_answer_does_not_make_up_for_a_lost_one():
    cell = summary.by_class(RUN)["x", "a"]
    assert cell.score == 0.5
    assert cell.retained == 0.0
    assert summary.by_class(RUN)["x", "b"].retained == 1.0


def test_a_class_that_dense_fails_has_nothing_to_retain():
    run = [outcome("1", "dense", 0.0), outcome("1", "x", 1.0)]
    cell = summary.by_class(run)["x", "a"]
    assert cell.retained is None
    assert cell.retained_interval is None


def test_relative_score_counts_what_dense_gets_wrong():
    assert summary.relative(RUN, "x", ["a", "b"])[0] == 1.0
    assert summary.relative(RUN, "x", ["b"]) == (1.0, 1.0, 1.0)
    assert (
        summary.relative([outcome("1", "dense", 0.0), outcome("1", "x", 1.0)], "x", ["a"]) is None
    )


def test_relative_scores_interval_holds_the_ratio():
    run = []
    for number in range(40):
        run += [
            outcome(str(number), "dense", float(number % 2)),
            outcome(str(number), "x", float(number % 4 == 1 or number % 8 == 0)),
        ]
    ratio, low, high = summary.relative(run, "x", ["a"])
    assert ratio == pytest.approx(15 / 20)
    assert 0.2 < low < ratio < high < 1.6


def test_times_and_measures():
    cell = summary.over_classes(RUN, ["a", "b"])["x"]
    assert cell.samples == 3
    assert cell.time_ratio == pytest.approx(0.5)
    assert cell.draft_ms == 20
    assert cell.kept == pytest.approx(0.2)
    assert cell.evidence_kept == 0.5
    assert cell.matched is None
    assert summary.over_classes(RUN, ["c"]) == {}


def test_difference_is_paired():
    run = []
    for number in range(40):
        run += [
            outcome(str(number), "dense", 1.0),
            outcome(str(number), "base", float(number % 2)),
            outcome(str(number), "better", float(number % 2 or number % 8 == 0)),
        ]
    mean, low, high = summary.difference(run, "better", "base", ["a"])
    assert mean == pytest.approx(5 / 40)
    assert 0.0 <= low < mean < high < 0.3
    assert summary.difference(run, "base", "base", ["a"]) == (0, 0, 0)
