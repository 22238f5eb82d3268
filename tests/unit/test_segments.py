# SPDX-License-Identifier: Apache-2.0
"""Prompts read in segments, against the whole prompt and against readings put together by hand."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from specprefill.draft.torch_draft import TorchDraft
from specprefill.errors import ConfigurationError, RequestCancelledError
from specprefill.observer import AttentionObserver
from specprefill.prompt import Prompt
from specprefill.scoring import make_rule
from specprefill.segments import observe_in_segments, readings
from specprefill.settings import DraftSettings, SelectionSettings
from specprefill.speculator import Speculator

RULES = [
    {"scorer": "lookahead", "look_ahead": 3},
    {"scorer": "zscore"},
    {"scorer": "window", "pooling": "max"},
    {"scorer": "single_layer", "single_layer": 2},
]


@pytest.fixture(scope="module")
def draft(tiny_llama):
    return TorchDraft(tiny_llama, DraftSettings(dtype="float32"))


def prompt(length, seed=0):
    return np.random.default_rng(seed).integers(10, 40_000, length).astype(np.int32)


def whole(draft, ids, rule):
    observer = AttentionObserver(rule, len(ids))
    draft.observe(ids, observer)
    return observer.importance().numpy()


@settings(max_examples=300, deadline=None)
@given(
    length=st.integers(1, 5000),
    segment_tokens=st.one_of(st.none(), st.integers(256, 2000)),
    tail=st.integers(1, 600),
)
def test_every_token_is_scored_once_with_context_and_tail(length, segment_tokens, tail):
    cut = readings(length, segment_tokens, tail)
    assert [r.scored_from for r in cut[1:]] == [r.end for r in cut[:-1]]
    assert cut[0].start == cut[0].scored_from == 0
    assert cut[-1].end == length
    if segment_tokens is None or length <= segment_tokens:
        assert len(cut) == 1
        return
    for reading in cut:
        assert reading.start < reading.end
        assert reading.end - reading.start + length - reading.tail_start <= segment_tokens
    for reading in cut[:-1]:
        assert reading.end <= reading.tail_start == length - min(tail, segment_tokens // 2)
    for reading in cut[1:]:
        assert reading.scored_from - reading.start >= min(32, reading.scored_from)
    # No reading is much shorter than another, and none is superfluous.
    sizes = [r.end - r.scored_from for r in cut[:-1]]
    assert not sizes or max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("options", RULES, ids=str)
@pytest.mark.parametrize("segment_tokens", [None, 300, 1000])
def test_one_segment_is_the_whole_prompt(draft, options, segment_tokens):
    ids, rule = prompt(300), make_rule(SelectionSettings(**options))
    actual = observe_in_segments(
        draft, ids, lambda tokens: AttentionObserver(rule, tokens), segment_tokens, 64
    )
    np.testing.assert_array_equal(actual, whole(draft, ids, rule))


@pytest.mark.parametrize("options", RULES, ids=str)
def test_segments_are_read_with_the_tail_behind_them(draft, options):
    ids, rule = prompt(700), make_rule(SelectionSettings(**options))
    actual = observe_in_segments(
        draft, ids, lambda tokens: AttentionObserver(rule, tokens), 300, 50
    )
    # 650 tokens before the tail; 300 - 50 - 37 new ones fit into a reading, so there are four.
    tail, edges = ids[650:], [0, 162, 325, 487, 650]
    for start, end in itertools.pairwise(edges[:4]):
        first = max(0, start - 37)
        expected = whole(draft, np.concatenate((ids[first:end], tail)), rule)
        np.testing.assert_array_equal(actual[start:end], expected[start - first : end - first])
    np.testing.assert_array_equal(actual[487:], whole(draft, ids[450:], rule)[37:])


def test_a_draft_serves_prompts_beyond_its_context(draft):
    ids = prompt(9000)  # the draft reads 8192
    chosen = SelectionSettings(keep_rate=0.2, min_prompt_tokens=0)
    at_once = Speculator(draft).speculate(Prompt(ids), chosen)
    assert at_once.draft_failed
    speculation = Speculator(draft, segment_tokens=2048).speculate(Prompt(ids), chosen)
    assert not speculation.draft_failed
    assert speculation.selection.active
    assert speculation.importance.shape == (9000,)
    kept = speculation.selection.kept
    assert all(((kept >= start) & (kept < start + 1500)).any() for start in range(0, 9000, 1500))


def test_a_segment_has_to_fit_the_draft(draft):
    with pytest.raises(ConfigurationError, match=r"draft\.segment_tokens: 8193 .* at most 8192"):
        Speculator(draft, segment_tokens=8193)


def test_cancelling_between_segments_ends_the_reading(draft):
    asked = []

    def cancelled():
        asked.append(1)
        return len(asked) > 2

    with pytest.raises(RequestCancelledError):
        Speculator(draft, segment_tokens=256).speculate(
            Prompt(prompt(2000)), SelectionSettings(), cancelled
        )
