# SPDX-License-Identifier: Apache-2.0
import json
import subprocess
import sys

import numpy as np
import pytest
from specprefill.break_even import BreakEvenGate, calibrate, draft_operations, operations
from specprefill.cause import Cause
from specprefill.cost_model import prefill_pass
from specprefill.draft.base import DraftEngine
from specprefill.engine_costs import (
    DRAFT,
    TARGET,
    EngineCost,
    measured_alone,
    read_cost,
    write_cost,
)
from specprefill.errors import ConfigurationError, RequestCancelledError
from specprefill.model_sources.shapes import PUBLISHED_SHAPES
from specprefill.prompt import Prompt
from specprefill.scoring import make_rule
from specprefill.settings import DraftSettings, SelectionSettings
from specprefill.speculator import Speculator

BIG, SMALL = PUBLISHED_SHAPES["llama-3.1-70b"], PUBLISHED_SHAPES["llama-3.2-1b"]
ZSCORE = make_rule(SelectionSettings(scorer="zscore"))
LOOKAHEAD = make_rule(SelectionSettings(scorer="lookahead"))


def gate(target=BIG, draft=SMALL, per_operation=1e-14, step_seconds=0.0, margin=0.05):
    costs = EngineCost("t", per_operation), EngineCost("d", per_operation, step_seconds)
    return BreakEvenGate(target, draft, DraftSettings(), lambda: costs, margin)


def test_a_small_draft_pays():
    assert gate().dense_reason(ZSCORE, 8192, 8192, 1639) == ""


def test_a_draft_as_big_as_the_target_does_not():
    reason = gate(target=SMALL).dense_reason(ZSCORE, 8192, 8192, 1639)
    assert reason.startswith("pruning would not pay, ")


def test_look_ahead_steps_count():
    assert gate(step_seconds=1.0).dense_reason(ZSCORE, 8192, 8192, 820) == ""
    assert gate(step_seconds=1.0).dense_reason(LOOKAHEAD, 8192, 8192, 820)


def test_the_margin_must_be_saved():
    predicted = gate().predict(ZSCORE, 8192, 8192, 1639)
    saved = 1 - predicted.sparse / predicted.dense
    assert gate(margin=saved - 0.01).dense_reason(ZSCORE, 8192, 8192, 1639) == ""
    assert gate(margin=saved + 0.01).dense_reason(ZSCORE, 8192, 8192, 1639)


def test_times_follow_the_arithmetic():
    predicted = gate(per_operation=2e-14).predict(ZSCORE, 4096, 4096, 820)
    assert predicted.dense == pytest.approx(2e-14 * operations(prefill_pass(BIG, 4096)))
    sparse = operations(prefill_pass(BIG, 820))
    sparse += draft_operations(SMALL, DraftSettings(), ZSCORE, 4096)
    assert predicted.sparse == pytest.approx(2e-14 * sparse)


def test_unknown_costs_let_everything_through():
    unknown = BreakEvenGate(SMALL, BIG, DraftSettings(), lambda: None, 0.0)
    assert unknown.dense_reason(ZSCORE, 100, 100, 99) == ""


def test_calibration_asks_a_fast_engine_for_more_tokens():
    asked = []

    def run(tokens):
        asked.append(tokens)
        return 0.01 + tokens * 1e-5  # a constant part that must not count

    per_token = calibrate(run, lambda tokens: tokens, longest_tokens=100_000)
    assert asked == [256, 1024, 4096, 16384, 16384, 16384]
    assert per_token == pytest.approx(1e-5, rel=0.1)


def test_calibration_stays_within_the_longest_prompt():
    asked = []
    calibrate(lambda tokens: asked.append(tokens) or 1e-6, lambda tokens: tokens, 1500)
    assert asked == [256, 1024, 1024, 1024]


def test_calibration_takes_the_run_that_was_disturbed_least():
    seconds = iter([0.4, 0.2, 0.3])
    assert calibrate(lambda tokens: next(seconds), lambda tokens: 2.0, 256) == 0.1


def test_two_processes_do_not_measure_at_the_same_time(tmp_path):
    other = (
        "import sys, pathlib; from specprefill.engine_costs import measured_alone\n"
        "with measured_alone(pathlib.Path(sys.argv[1])): print('measures', flush=True)"
    )
    with measured_alone(tmp_path):
        process = subprocess.Popen(
            [sys.executable, "-c", other, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(2)
    output, _ = process.communicate(timeout=60)
    assert output == "measures\n"


def test_costs_are_taken_for_their_own_engine_only(tmp_path):
    write_cost(tmp_path, TARGET, EngineCost("big", 1e-12, 0.5))
    assert read_cost(tmp_path, TARGET, "big") == EngineCost("big", 1e-12, 0.5)
    assert read_cost(tmp_path, TARGET).engine == "big"
    assert read_cost(tmp_path, TARGET, "other") is None
    assert read_cost(tmp_path, DRAFT) is None


@pytest.mark.parametrize(
    "content",
    ["{", "[]", '{"engine": "a"}', json.dumps({"engine": "a", "seconds_per_operation": -1})],
)
def test_files_that_hold_no_cost_are_named(tmp_path, content):
    (tmp_path / "draft-cost.json").write_text(content)
    with pytest.raises(ConfigurationError, match=r"gate\.costs_folder: .*draft-cost\.json holds"):
        read_cost(tmp_path, DRAFT)


class SlowDraft(DraftEngine):
    context_length = 100_000

    def __init__(self):
        self.reads = 0

    def observe(self, prompt_ids, observer, cancelled=lambda: False):
        self.reads += 1
        while not cancelled():
            pass
        raise RequestCancelledError("asked to end")


PROMPT = Prompt(np.arange(1000, dtype=np.int32))
SETTINGS = SelectionSettings(keep_rate=0.2, min_prompt_tokens=0)


def test_the_gate_spares_the_draft():
    draft = SlowDraft()
    closed = gate(target=SMALL)
    speculation = Speculator(draft, gate=closed).speculate(PROMPT, SETTINGS)
    assert draft.reads == 0
    assert speculation.selection.cause == Cause.BREAK_EVEN
    assert speculation.selection.reason.startswith("dense: pruning would not pay")
    assert len(speculation.selection.kept) == 1000


def test_a_draft_past_its_deadline_means_dense():
    speculation = Speculator(SlowDraft()).speculate(PROMPT, SETTINGS, deadline_seconds=0.05)
    assert speculation.selection.cause == Cause.DRAFT_FAILED
    assert "too long (draft.deadline_seconds)" in speculation.selection.reason
    assert 50 <= speculation.draft_ms < 2000
    assert speculation.draft_failed


def test_a_cancelled_request_is_cancelled_also_past_the_deadline():
    with pytest.raises(RequestCancelledError):
        Speculator(SlowDraft()).speculate(PROMPT, SETTINGS, lambda: True, deadline_seconds=0.0)
