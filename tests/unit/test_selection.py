# SPDX-License-Identifier: Apache-2.0
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from specprefill.selection import Selection, chunk_scores, keep_all, protected_mask, select


def no_protection(length: int) -> np.ndarray:
    return np.zeros(length, dtype=np.bool_)


def test_keeps_the_best_chunks_whole():
    importance = np.zeros(100, dtype=np.float32)
    importance[40:45] = 1.0  # chunk 4 of 10
    importance[95] = 0.5  # chunk 9
    kept = select(importance, 0.2, no_protection(100), 10).kept
    assert kept.tolist() == [*range(40, 50), *range(90, 100)]


def test_ties_go_to_the_earlier_chunk():
    kept = select(np.ones(64, dtype=np.float32), 0.25, no_protection(64), 8).kept
    assert kept.tolist() == [*range(16), 63]


def test_the_last_chunk_is_averaged_over_its_own_tokens():
    importance = np.array([1, 1, 1, 1, 3], dtype=np.float32)
    assert chunk_scores(importance, 4).tolist() == [1.0, 3.0]
    assert select(importance, 0.5, no_protection(5), 4).kept.tolist() == [4]


@pytest.mark.parametrize(("rate", "chunks"), [(0.1, 3), (0.2, 6), (0.3, 9), (0.34, 11), (1e-9, 1)])
def test_budget_is_the_ceiling_of_the_exact_product(rate, chunks):
    importance = np.arange(30, 0, -1, dtype=np.float32).repeat(4)
    selection = select(importance, rate, no_protection(120), 4)
    assert len(selection.kept) == chunks * 4 + 1  # and the last token


def test_single_tokens_without_chunks():
    importance = np.random.default_rng(0).random(101).astype(np.float32)
    kept = select(importance, 0.3, no_protection(101), 1).kept
    best = set(np.argsort(-importance)[: math.ceil(0.3 * 101)].tolist()) | {100}
    assert set(kept.tolist()) == best


def test_a_large_protected_tail_leaves_scored_chunks_from_the_middle():
    importance = np.random.default_rng(1).random(3000).astype(np.float32)
    mask = protected_mask(3000, 4, 900, ())
    kept = select(importance, 0.2, mask, 32).kept
    middle = ((kept >= 4) & (kept < 2100)).sum()
    assert mask[kept].sum() == 904
    assert middle >= 0.5 * 0.2 * 3000 - 32


def test_protected_tokens_come_out_of_the_budget():
    importance = np.random.default_rng(2).random(3200).astype(np.float32)
    free = select(importance, 0.2, no_protection(3200), 32).kept
    protected = select(importance, 0.2, protected_mask(3200, 0, 256, ()), 32).kept
    assert len(protected) <= len(free) + 32


def test_says_when_everything_is_kept():
    selection = select(np.ones(10, dtype=np.float32), 0.99, no_protection(10), 4)
    assert not selection.active
    assert selection.reason.startswith("dense")
    assert selection.kept.tolist() == list(range(10))


def test_spans_are_runs_of_kept_tokens():
    selection = Selection(np.array([0, 1, 5, 6, 7, 9], dtype=np.int32), 10, True, "")
    assert selection.spans() == [(0, 2), (5, 8), (9, 10)]
    assert keep_all(7, "").spans() == [(0, 7)]


def test_spans_outside_the_prompt_are_ignored():
    assert protected_mask(5, 0, 0, [(-3, 2), (4, 90), (7, 9)]).tolist() == [1, 1, 0, 0, 1]


importances = hnp.arrays(
    np.float32, st.integers(1, 400), elements=st.floats(0, 1, width=32, allow_nan=False)
)


@settings(max_examples=300, deadline=None)
@given(
    importance=importances,
    keep_rate=st.floats(0.001, 1),
    chunk_size=st.integers(1, 80),
    first=st.integers(0, 50),
    last=st.integers(0, 50),
    span=st.tuples(st.integers(-5, 400), st.integers(0, 100)),
)
def test_invariants(importance, keep_rate, chunk_size, first, last, span):
    length = importance.size
    mask = protected_mask(length, first, last, [(span[0], span[0] + span[1])])
    selection = select(importance, keep_rate, mask, chunk_size)
    kept = selection.kept
    assert kept.dtype == np.int32
    assert (np.diff(kept) > 0).all()
    assert kept[0] >= 0
    assert kept[-1] == length - 1
    assert set(np.flatnonzero(mask)) <= set(kept.tolist())
    assert selection.active == (len(kept) < length)
    assert selection.reason
    again = select(importance.copy(), keep_rate, mask.copy(), chunk_size)
    assert (again.kept == kept).all()
    chunks = math.ceil(length / chunk_size)
    budget = min(chunks, math.ceil(round(keep_rate * chunks, 9)))
    assert len(kept) <= budget * chunk_size + mask.sum() + 1
    # Never fewer chunks than half the budget are chosen by score.
    whole = [mask[i : i + chunk_size].all() for i in range(0, length, chunk_size)]
    full = [
        np.isin(np.arange(i, min(i + chunk_size, length)), kept).all()
        for i in range(0, length, chunk_size)
    ]
    scored = sum(f and not w for f, w in zip(full, whole, strict=True))
    assert scored >= min(math.ceil(budget / 2), chunks - sum(whole))


@settings(max_examples=100, deadline=None)
@given(
    importance=importances,
    chunk_size=st.integers(1, 40),
    rates=st.tuples(st.floats(0.01, 1), st.floats(0.01, 1)),
)
def test_a_larger_keep_rate_keeps_a_superset(importance, chunk_size, rates):
    low, high = sorted(rates)
    mask = no_protection(importance.size)
    few = select(importance, low, mask, chunk_size).kept
    many = select(importance, high, mask, chunk_size).kept
    assert set(few.tolist()) <= set(many.tolist())
