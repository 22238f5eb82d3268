# SPDX-License-Identifier: Apache-2.0
import itertools
import math
import time
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from specprefill import budget
from specprefill.chunks import NO_ROLE, chunk_roles, chunk_scores, chunk_starts
from specprefill.prompt import ROLES
from specprefill.selection import (
    LINE_BORDER,
    SENTENCE_BORDER,
    Selection,
    keep_all,
    protected_mask,
    select,
)
from specprefill.settings import Role, SelectionSettings


def pick(importance, keep_rate, mask, chunk_size, **options):
    options = {"keep_rate": keep_rate, "chunk_size": chunk_size, **options}
    return select(importance, SelectionSettings(**options), mask)


def no_protection(length: int) -> np.ndarray:
    return np.zeros(length, dtype=np.bool_)


def test_keeps_the_best_chunks_whole():
    importance = np.zeros(100, dtype=np.float32)
    importance[40:45] = 1.0  # chunk 4 of 10
    importance[95] = 0.5  # chunk 9
    kept = pick(importance, 0.2, no_protection(100), 10).kept
    assert kept.tolist() == [*range(40, 50), *range(90, 100)]


def test_ties_go_to_the_earlier_chunk():
    kept = pick(np.ones(64, dtype=np.float32), 0.25, no_protection(64), 8).kept
    assert kept.tolist() == [*range(16), 63]


def test_the_last_chunk_is_averaged_over_its_own_tokens():
    importance = np.array([1, 1, 1, 1, 3], dtype=np.float32)
    assert chunk_scores(importance, chunk_starts(5, 4)).tolist() == [1.0, 3.0]
    assert pick(importance, 0.5, no_protection(5), 4).kept.tolist() == [4]


@pytest.mark.parametrize(("rate", "chunks"), [(0.1, 3), (0.2, 6), (0.3, 9), (0.34, 11), (1e-9, 1)])
def test_budget_is_the_ceiling_of_the_exact_product(rate, chunks):
    importance = np.arange(30, 0, -1, dtype=np.float32).repeat(4)
    selection = pick(importance, rate, no_protection(120), 4)
    assert len(selection.kept) == chunks * 4 + 1  # and the last token


def test_single_tokens_without_chunks():
    importance = np.random.default_rng(0).random(101).astype(np.float32)
    kept = pick(importance, 0.3, no_protection(101), 1).kept
    best = set(np.argsort(-importance)[: math.ceil(0.3 * 101)].tolist()) | {100}
    assert set(kept.tolist()) == best


def test_a_large_protected_tail_leaves_scored_chunks_from_the_middle():
    importance = np.random.default_rng(1).random(3000).astype(np.float32)
    mask = protected_mask(3000, 4, 900, ())
    kept = pick(importance, 0.2, mask, 32).kept
    middle = ((kept >= 4) & (kept < 2100)).sum()
    assert mask[kept].sum() == 904
    assert middle >= 0.5 * 0.2 * 3000 - 32


def test_protected_tokens_come_out_of_the_budget():
    importance = np.random.default_rng(2).random(3200).astype(np.float32)
    free = pick(importance, 0.2, no_protection(3200), 32).kept
    protected = pick(importance, 0.2, protected_mask(3200, 0, 256, ()), 32).kept
    assert len(protected) <= len(free) + 32


def test_says_when_everything_is_kept():
    selection = pick(np.ones(10, dtype=np.float32), 0.99, no_protection(10), 4)
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
    selection = pick(importance, keep_rate, mask, chunk_size)
    kept = selection.kept
    assert kept.dtype == np.int32
    assert (np.diff(kept) > 0).all()
    assert kept[0] >= 0
    assert kept[-1] == length - 1
    assert set(np.flatnonzero(mask)) <= set(kept.tolist())
    assert selection.active == (len(kept) < length)
    assert selection.reason
    again = pick(importance.copy(), keep_rate, mask.copy(), chunk_size)
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
    few = pick(importance, low, mask, chunk_size).kept
    many = pick(importance, high, mask, chunk_size).kept
    assert set(few.tolist()) <= set(many.tolist())


# --- chunks -----------------------------------------------------------------------------------


def slow_chunk_starts(length, size, borders):
    """Walk token by token: of the places a chunk may end at, take the nearest border."""
    starts = [0]
    while True:
        full = starts[-1] + size
        if full >= length:
            return starts
        reach = size // 2
        allowed = [at for at in range(full - reach, full + reach + 1) if at < length]
        found = [at for at in allowed if borders[at]]
        starts.append(min(found, key=lambda at: (abs(at - full), at)) if found else full)


@settings(max_examples=300, deadline=None)
@given(borders=hnp.arrays(np.bool_, st.integers(1, 300)), chunk_size=st.integers(1, 70))
def test_chunks_end_at_the_nearest_border(borders, chunk_size):
    starts = chunk_starts(borders.size, chunk_size, borders)
    assert starts.dtype == np.int32
    assert starts.tolist() == slow_chunk_starts(borders.size, chunk_size, borders)
    lengths = np.diff(starts, append=borders.size)
    assert lengths.min() >= 1
    assert lengths.max() <= chunk_size + chunk_size // 2


def test_lines_are_borders_of_sentences_too():
    borders = np.zeros(64, dtype=np.uint8)
    borders[14], borders[33] = SENTENCE_BORDER, LINE_BORDER
    starts = {
        kind: select(
            np.ones(64, dtype=np.float32),
            SelectionSettings(chunk_size=16, chunk_borders=kind),
            no_protection(64),
            borders,
        ).chunk_starts.tolist()
        for kind in ("fixed", "line", "sentence")
    }
    assert starts["fixed"] == [0, 16, 32, 48]
    assert starts["line"] == [0, 16, 33, 49]
    assert starts["sentence"] == [0, 14, 33, 49]


def test_a_prompt_without_borders_has_chunks_of_one_size():
    chunked = pick(np.ones(64, dtype=np.float32), 0.5, no_protection(64), 16, chunk_borders="line")
    assert chunked.chunk_starts.tolist() == [0, 16, 32, 48]


def test_chunk_roles_are_those_of_most_tokens():
    roles = chunk_roles(40, chunk_starts(40, 10), ((0, 14, 3), (16, 25, 1)))
    # Four tokens of the tool, four of the user and two of nobody: the higher index goes first.
    assert roles.tolist() == [3, 3, 1, NO_ROLE]
    assert chunk_roles(40, chunk_starts(40, 10), ()).tolist() == [NO_ROLE] * 4


def test_roles_are_numbered_as_the_prompt_numbers_them():
    assert get_args(Role) == ROLES


# --- order --------------------------------------------------------------------------------------


def slow_priority(scores, candidates, neighbours):
    """Take chunks by score, each with its neighbours, one at a time."""
    taken = []
    for chunk in sorted(candidates, key=lambda c: (-scores[c], c)):
        for distance in range(neighbours + 1):
            for near in (chunk - distance, chunk + distance):
                if near in candidates and near not in taken:
                    taken.append(near)
    return taken


@settings(max_examples=200, deadline=None)
@given(
    scores=hnp.arrays(np.float64, st.integers(1, 40), elements=st.integers(0, 6).map(float)),
    neighbours=st.integers(0, 5),
    data=st.data(),
)
def test_neighbours_follow_the_chunk_that_was_chosen(scores, neighbours, data):
    candidates = data.draw(st.sets(st.integers(0, scores.size - 1), min_size=1).map(sorted))
    order = budget.priority(scores, np.array(candidates), neighbours)
    assert order.tolist() == slow_priority(scores, candidates, neighbours)


def test_neighbours_are_paid_from_the_budget():
    importance = np.zeros(200, dtype=np.float32)
    importance[100:110] = 1.0  # chunk 10 of 20
    importance[30:40] = 0.5  # chunk 3
    kept = pick(importance, 0.2, no_protection(200), 10, neighbours=1).kept
    assert kept.tolist() == [*range(30, 40), *range(90, 120), 199]


def test_coverage_spaces_chunks_evenly():
    importance = np.arange(200, dtype=np.float32)
    kept = pick(importance, 0.2, no_protection(200), 10, coverage=0.5).kept
    assert kept.tolist() == [*range(50, 60), *range(150, 160), *range(180, 200)]
    every_fourth = pick(importance, 0.25, no_protection(200), 10, coverage=1.0).kept
    assert every_fourth[::10].tolist() == [20, 60, 100, 140, 180, 199]


def test_without_scores_the_whole_budget_is_coverage():
    importance = np.arange(200, dtype=np.float32)
    spaced = pick(importance, 0.25, no_protection(200), 10, coverage=1.0)
    unscored = pick(None, 0.25, no_protection(200), 10, scorer="none")
    assert (unscored.kept == spaced.kept).all()
    assert unscored.chunk_scores is None
    assert unscored.chunk_starts.tolist() == list(range(0, 200, 10))
    assert "evenly spaced" in unscored.reason


# --- budgets ------------------------------------------------------------------------------------


def test_the_token_budget_is_never_exceeded_by_a_chunk():
    importance = np.random.default_rng(3).random(3000).astype(np.float32)
    mask = protected_mask(3000, 4, 64, ())
    selection = pick(importance, 0.2, mask, 32, budget="tokens", keep_tokens=500)
    assert 500 - 32 < len(selection.kept) <= 500
    assert "at keep_tokens 500" in selection.reason


def test_the_last_token_is_paid_from_the_token_budget():
    importance = np.arange(3000, 0, -1, dtype=np.float32)
    for tokens, kept in ((300, 291), (301, 301)):
        selection = pick(
            importance, 0.2, no_protection(3000), 10, budget="tokens", keep_tokens=tokens
        )
        assert len(selection.kept) == kept


def test_a_token_budget_below_one_chunk_keeps_one_chunk():
    importance = np.zeros(300, dtype=np.float32)
    importance[70] = 1
    kept = pick(importance, 0.2, no_protection(300), 50, budget="tokens", keep_tokens=7).kept
    assert kept.tolist() == [*range(50, 100), 299]


def test_mass_is_the_smallest_set_with_that_share_of_the_excess():
    scores = np.array([5.0, 5, 5, 5, 5, 11, 8, 6, 5])  # above the median: 6, 3, 1
    for shift in (0.0, -70.0):  # z-scores have no natural zero
        counts = [budget.mass_count(scores + shift, m) for m in (0.1, 0.6, 0.61, 0.9, 0.91, 1)]
        assert counts == [1, 1, 2, 2, 3, 3]
    assert budget.mass_count(np.ones(10), 0.25) == 3


def test_threshold_compares_with_the_best_chunk():
    scores = np.array([5.0, 5, 5, 5, 5, 11, 8, 6, 5])
    for scale in (1.0, 100.0):
        counts = [budget.threshold_count(scores * scale, share) for share in (0.6, 0.49, 0.1, 0)]
        assert counts == [1, 2, 3, 3]
    assert budget.threshold_count(np.ones(10), 0.5) == 0


def spiky(chunks, size=10, spikes=(7,)):
    importance = np.random.default_rng(4).random(chunks * size).astype(np.float32)
    for spike in spikes:
        importance[spike * size : (spike + 1) * size] += 50
    return importance


@pytest.mark.parametrize("kind", ["mass", "threshold"])
def test_adaptive_budgets_follow_the_number_of_chunks_that_stand_out(kind):
    options = {"budget": kind, "min_keep_rate": 0.01, "keep_mass": 0.9}
    for spikes in ((7,), (7, 30, 31), (1, 7, 30, 31, 50, 77, 78, 90)):
        kept = pick(spiky(100, spikes=spikes), 0.2, no_protection(1000), 10, **options).kept
        assert set(np.unique(kept[kept < 990] // 10)) == set(spikes)


@pytest.mark.parametrize("kind", ["mass", "threshold"])
def test_adaptive_budgets_have_a_floor_and_a_ceiling(kind):
    low = pick(spiky(100), 0.2, no_protection(1000), 10, budget=kind, min_keep_rate=0.1)
    assert len(low.kept) == 101
    assert "raised to min_keep_rate 0.1" in low.reason
    flat = np.repeat(np.arange(100, dtype=np.float32), 10)
    wide = {"keep_mass": 1.0, "keep_threshold": 0.0, "max_keep_rate": 0.3}
    high = pick(flat, 0.2, no_protection(1000), 10, budget=kind, **wide)
    assert len(high.kept) == 300
    assert "held at max_keep_rate 0.3" in high.reason


def test_the_keep_rate_depends_on_the_length():
    chosen = SelectionSettings(keep_rate=0.5, keep_rate_by_length={"4096": 0.3, "16384": 0.15})
    rates = [budget.keep_rate_for(chosen, n)[0] for n in (1, 4095, 4096, 16383, 16384, 10**6)]
    assert rates == [0.5, 0.5, 0.3, 0.3, 0.15, 0.15]
    selection = select(np.ones(5000, dtype=np.float32), chosen, no_protection(5000))
    assert len(selection.kept) == 32 * math.ceil(0.3 * 157) + 1
    assert "at keep_rate_by_length 0.3" in selection.reason


def test_roles_have_budgets_of_their_own():
    importance = np.random.default_rng(5).random(3000).astype(np.float32)
    importance[:2000] += 10  # the tool's result would win every place
    selection = select(
        importance,
        SelectionSettings(keep_rate=0.2, chunk_size=10, role_keep_rates={"tool": 0.1, "user": 0.5}),
        no_protection(3000),
        role_spans=((0, 2000, 3), (2000, 2500, 1)),
    )
    kept = selection.kept
    assert [int(((kept >= a) & (kept < b)).sum()) for a, b in ((0, 2000), (2000, 2500))] == [
        200,
        250,
    ]
    assert ((kept >= 2500) & (kept < 2999)).sum() in (99, 100)  # nobody's: keep_rate
    assert "keep_rate 0.2, user 0.5, tool 0.1" in selection.reason


# --- guards -------------------------------------------------------------------------------------


def test_prominence_is_free_of_scale_and_zero():
    scores = np.random.default_rng(6).random(200)
    scores[9] += 4
    stands_out = budget.prominence(scores)
    assert stands_out > 10
    assert budget.prominence(scores * 1e-6 - 300) == pytest.approx(stands_out, rel=1e-3)
    assert budget.prominence(np.ones(9)) == 0
    assert budget.prominence(np.array([1.0, 1, 1, 1, 2])) == math.inf


@pytest.mark.parametrize("kind", ["rate", "tokens", "mass", "threshold"])
def test_flat_importance_raises_the_budget_or_goes_dense(kind):
    flat = np.random.default_rng(7).random(3000).astype(np.float32)
    mask = no_protection(3000)
    options = {"budget": kind, "min_keep_rate": 0.1, "max_keep_rate": 0.1, "keep_tokens": 301}
    plain = pick(flat, 0.1, mask, 10, **options)
    assert len(plain.kept) in (300, 301)
    raised = pick(flat, 0.1, mask, 10, flat_guard="raise", flat_keep_rate=0.4, **options)
    assert len(raised.kept) in (1200, 1201)
    assert set(plain.kept) <= set(raised.kept)
    assert "flat importance" in raised.reason
    assert "flat_keep_rate 0.4" in raised.reason
    dense = pick(flat, 0.1, mask, 10, flat_guard="dense", **options)
    assert not dense.active
    assert dense.reason.startswith("dense: flat importance")
    assert dense.chunk_scores is not None
    for guard in ("raise", "dense"):
        found = pick(spiky(300), 0.1, mask, 10, flat_guard=guard, **options)
        assert len(found.kept) in (300, 301)
        assert "flat" not in found.reason


def test_the_guard_does_not_judge_by_the_edges_of_the_prompt():
    """First tokens and those near the question draw attention whatever the prompt says."""
    importance = np.random.default_rng(10).random(3000).astype(np.float32)
    importance[:60] += 50
    importance[-570:] += 50
    assert "flat" in pick(importance, 0.1, no_protection(3000), 10, flat_guard="raise").reason
    importance[1000:1010] += 50
    assert "flat" not in pick(importance, 0.1, no_protection(3000), 10, flat_guard="raise").reason


def test_the_guard_does_not_judge_prompts_that_are_all_edge():
    importance = np.random.default_rng(11).random(700).astype(np.float32)
    assert "flat" not in pick(importance, 0.1, no_protection(700), 10, flat_guard="dense").reason


def test_the_guard_looks_at_what_may_be_dropped_only():
    importance = np.random.default_rng(8).random(3000).astype(np.float32)
    importance[1000:1064] += 50
    mask = protected_mask(3000, 0, 80, [(1000, 1070)])
    assert "flat" in pick(importance, 0.1, mask, 10, flat_guard="raise").reason


# --- everything together ------------------------------------------------------------------------

any_settings = st.fixed_dictionaries(
    {
        "budget": st.sampled_from(["rate", "tokens", "mass", "threshold"]),
        "keep_rate": st.floats(0.01, 1),
        "keep_tokens": st.integers(1, 500),
        "keep_mass": st.floats(0.01, 1),
        "keep_threshold": st.floats(0, 0.99),
        "min_keep_rate": st.floats(0.01, 0.3),
        "max_keep_rate": st.floats(0.3, 1),
        "role_keep_rates": st.sampled_from([None, {"tool": 0.05, "user": 0.7}]),
        "keep_rate_by_length": st.sampled_from([None, {0: 0.9, 100: 0.2}]),
        "flat_guard": st.sampled_from(["off", "raise"]),
        "flat_keep_rate": st.floats(0.01, 1),
        "neighbours": st.integers(0, 4),
        "coverage": st.floats(0, 1),
        "chunk_size": st.integers(1, 80),
        "chunk_borders": st.sampled_from(["fixed", "line", "sentence"]),
    }
)


def budget_of(chosen, selection, role_spans):
    """The most chunks, or tokens, that the reason's budget may pay for; written out anew."""
    n, length = len(selection.chunk_starts), selection.prompt_length
    guarded = chosen.flat_keep_rate if "flat" in selection.reason else 0
    if chosen.budget in ("mass", "threshold"):
        return math.ceil(n * max(chosen.max_keep_rate, guarded) - 1e-9)
    by_length = chosen.keep_rate_by_length or {}
    reached = [n for n in by_length if n <= length]
    rate = by_length[max(reached)] if reached else chosen.keep_rate
    if not chosen.role_keep_rates or not role_spans:
        return math.ceil(n * max(rate, guarded) - 1e-9)
    total = 0
    roles = chunk_roles(length, selection.chunk_starts, role_spans)
    for role in set(roles.tolist()):
        name = "" if role == NO_ROLE else ROLES[role]
        own = max(chosen.role_keep_rates.get(name, rate), guarded)
        total += math.ceil((roles == role).sum() * own - 1e-9)
    return total


@settings(max_examples=400, deadline=None)
@given(
    importance=importances,
    values=any_settings,
    first=st.integers(0, 20),
    last=st.integers(0, 20),
    seed=st.integers(0, 2**16),
)
def test_no_combination_breaks_a_promise(importance, values, first, last, seed):
    length = importance.size
    draw = np.random.default_rng(seed)
    borders = draw.choice(3, size=length, p=(0.9, 0.05, 0.05)).astype(np.uint8)
    edges = sorted(draw.integers(0, length + 1, 2).tolist())
    role_spans = ((0, edges[0], 3), (edges[0], edges[1], 1))
    chosen = SelectionSettings(**values)
    mask = protected_mask(length, first, last, ())
    selection = select(importance, chosen, mask, borders, role_spans)
    kept = selection.kept
    again = select(importance.copy(), chosen, mask.copy(), borders.copy(), role_spans)
    assert (again.kept == kept).all()
    assert again.reason == selection.reason
    assert (np.diff(kept) > 0).all()
    assert 0 <= kept[0] <= kept[-1] == length - 1
    assert mask[kept].sum() == mask.sum()
    assert selection.active == (kept.size < length) == selection.reason.startswith("pruned: kept")
    spans = selection.spans()
    assert sum(end - start for start, end in spans) == kept.size
    assert all(end < start for (_, end), (start, _) in itertools.pairwise(spans))
    if mask.all():
        return
    starts = selection.chunk_starts
    assert starts[0] == 0
    assert (np.diff(starts) > 0).all()
    assert selection.chunk_scores.shape == starts.shape
    # A chunk that is kept whole was chosen, or protected, or is the last token alone.
    lengths = np.diff(starts, append=length)
    in_chunk = np.add.reduceat(np.isin(np.arange(length), kept), starts)
    whole = np.logical_and.reduceat(mask, starts)
    alone = np.zeros(starts.size, dtype=bool)
    alone[-1] = lengths[-1] == 1 or bool(mask[starts[-1] : -1].all())
    bought = (in_chunk == lengths) & ~whole
    if chosen.budget == "tokens" and "flat" not in selection.reason:
        anyway = int((mask | (np.arange(length) == length - 1)).sum())
        most = max(chosen.keep_tokens, anyway + math.ceil(chosen.keep_tokens / 2))
        assert kept.size <= max(most, anyway + lengths.max())
    elif chosen.budget != "tokens":
        assert (bought & ~alone).sum() <= budget_of(chosen, selection, role_spans)
    assert bought.any()
    if chosen.budget in ("mass", "threshold"):
        floor = math.ceil(len(starts) * chosen.min_keep_rate - 1e-9)
        assert bought.sum() >= min(math.ceil(floor / 2), (~whole).sum())


@settings(max_examples=200, deadline=None)
@given(importance=importances, values=any_settings, grown=st.floats(1, 4))
def test_a_larger_budget_keeps_a_superset_unless_spread_evenly(importance, values, grown):
    """Evenly spaced chunks move when there are more of them, so coverage is left out."""
    mask = no_protection(importance.size)
    few = SelectionSettings(**{**values, "coverage": 0.0})
    larger = {
        "keep_rate": min(1.0, few.keep_rate * grown),
        "keep_tokens": math.ceil(few.keep_tokens * grown),
        "keep_mass": min(1.0, few.keep_mass * grown),
        "keep_threshold": few.keep_threshold / grown,
        "max_keep_rate": min(1.0, few.max_keep_rate * grown),
        "flat_keep_rate": min(1.0, few.flat_keep_rate * grown),
    }
    many = few.model_copy(update=larger)
    assert set(select(importance, few, mask).kept) <= set(select(importance, many, mask).kept)


def test_ten_thousand_chunks_with_neighbours_are_quick():
    importance = np.random.default_rng(9).random(131_072).astype(np.float32)
    borders = (np.random.default_rng(9).random(131_072) < 0.05).astype(np.uint8) * LINE_BORDER
    chosen = SelectionSettings(chunk_size=8, neighbours=4, chunk_borders="line", coverage=0.1)
    started = time.process_time()
    select(importance, chosen, no_protection(131_072), borders)
    assert time.process_time() - started < 2
