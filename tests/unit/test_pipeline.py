# SPDX-License-Identifier: Apache-2.0
"""The three steps together, in one process, on a tiny model."""

import json

import numpy as np
import pytest
from specprefill.errors import EngineError, InvalidRequestError, RequestCancelledError
from specprefill.pipeline import Pipeline
from specprefill.prompt import Prompt
from specprefill.settings import SelectionSettings, load_settings
from specprefill.speculator import Speculator

WORDS = " ".join(f"word{i % 97} number{i}" for i in range(300))


@pytest.fixture(scope="module")
def pipeline(tiny_llama):
    settings = load_settings(
        overrides={
            "target": {"model": str(tiny_llama), "dtype": "float32"},
            "draft": {"model": str(tiny_llama), "dtype": "float32", "layers": 3},
            "selection": {"min_prompt_tokens": 64, "keep_rate": 0.3},
            "sampling": {"max_tokens": 12},
        },
        environment={},
    )
    pipeline = Pipeline(settings)
    yield pipeline
    pipeline.close()


def test_a_long_prompt_is_pruned_and_says_so(pipeline):
    generation = pipeline.start(WORDS)
    selection = generation.speculation.selection
    assert selection.active
    assert 0.25 < len(selection.kept) / selection.prompt_length < 0.36
    assert selection.reason.startswith("pruned: kept")
    assert generation.speculation.draft_ms > 0
    assert sum(len(piece.token_ids) for piece in generation.pieces) == 12


def test_keep_rate_1_is_the_same_path_with_everything_kept(pipeline):
    generation = pipeline.start(WORDS, selection={"keep_rate": 1.0})
    selection = generation.speculation.selection
    assert not selection.active
    assert selection.reason == "dense: keep_rate is 1"
    assert selection.kept.tolist() == list(range(len(generation.prompt.token_ids)))


def test_short_prompts_are_dense(pipeline):
    generation = pipeline.start("a few words")
    assert generation.speculation.selection.reason.endswith("fewer than 64 (min_prompt_tokens)")


def test_protected_spans_of_messages_are_kept(pipeline):
    messages = json.dumps(
        [{"role": "system", "content": "Rules " * 40}, {"role": "user", "content": WORDS}]
    )
    generation = pipeline.start(messages=messages)
    kept = set(generation.speculation.selection.kept.tolist())
    assert generation.speculation.selection.active
    for start, end in generation.prompt.protected:
        assert set(range(start, end)) <= kept


def test_the_same_request_gives_the_same_selection_and_answer(pipeline):
    first, second = pipeline.start(WORDS), pipeline.start(WORDS)
    assert (first.speculation.selection.kept == second.speculation.selection.kept).all()
    assert [p.token_ids for p in first.pieces] == [p.token_ids for p in second.pieces]


def test_stop_strings_end_the_text(pipeline):
    whole = pipeline.generate(WORDS)
    stop = whole[len(whole) // 2 :][:3]
    assert pipeline.generate(WORDS, stop_strings=(stop,)) == whole[: whole.find(stop)]


def test_bad_values_name_the_field(pipeline):
    with pytest.raises(InvalidRequestError, match="keep_rate: got 0"):
        pipeline.start(WORDS, selection={"keep_rate": 0.0})
    with pytest.raises(InvalidRequestError, match="top_p"):
        pipeline.start(WORDS, sampling={"top_p": 7.0})


class FailingDraft:
    context_length = 10

    def __init__(self, error=None):
        self._error = error or EngineError("out of memory in the draft")

    def observe(self, prompt_ids, observer, cancelled=None):
        raise self._error


def test_a_fault_nobody_expected_means_dense_too():
    draft = FailingDraft(IndexError("index out of range in self"))
    speculation = Speculator(draft, None).speculate(
        Prompt(np.arange(900, dtype=np.int32)), SelectionSettings()
    )
    assert speculation.draft_failed
    assert "IndexError('index out of range in self')" in speculation.selection.reason


def test_a_cancelled_draft_is_no_failure():
    draft = FailingDraft(RequestCancelledError("gone"))
    with pytest.raises(RequestCancelledError):
        Speculator(draft, None).speculate(
            Prompt(np.arange(900, dtype=np.int32)), SelectionSettings()
        )


def test_a_failing_draft_means_dense_and_says_why():
    speculation = Speculator(FailingDraft(), None).speculate(
        Prompt(np.arange(900, dtype=np.int32)), SelectionSettings()
    )
    assert speculation.draft_failed
    assert not speculation.selection.active
    assert speculation.selection.reason == "dense: out of memory in the draft"
    assert len(speculation.selection.kept) == 900


def test_a_prompt_protected_as_a_whole_never_runs_the_draft():
    prompt = Prompt(np.arange(900, dtype=np.int32), ((0, 900),))
    speculation = Speculator(FailingDraft(), None).speculate(prompt, SelectionSettings())
    assert speculation.selection.reason == "dense: every token is protected"
    assert not speculation.draft_failed
