# SPDX-License-Identifier: Apache-2.0
"""What is decided with and without the draft."""

import numpy as np
import pytest
import torch
from specprefill.prompt import Prompt
from specprefill.settings import SelectionSettings
from specprefill.speculator import Speculator


class OneHotDraft:
    """Attends to one token alone, and counts how often it is asked."""

    context_length = 10**6

    def __init__(self, token=700):
        self.token = token
        self.read = []

    def observe(self, prompt_ids, observer, cancelled=None):
        self.read.append(prompt_ids)
        length = len(prompt_ids)
        keys = torch.zeros(1, length, 2)
        keys[0, self.token, 0] = 8.0
        queries = torch.tensor([1.0, 0.0]).expand(1, observer.prompt_queries, 2)
        for layer in observer.wanted_of(range(2)):
            observer.update(layer, 0, queries, keys, 1.0)


class NoDraft:
    context_length = 10**6

    def observe(self, prompt_ids, observer, cancelled=None):
        raise AssertionError("no draft was needed")


def make_prompt(length=1000, **details):
    return Prompt(np.arange(length, dtype=np.int32), **details)


@pytest.mark.parametrize(
    ("settings", "details", "reason"),
    [
        ({"keep_rate": 1}, {}, "dense: keep_rate is 1"),
        ({"keep_rate": 1, "budget": "mass"}, {}, "dense: keep_rate is 1"),
        (
            {"keep_rate_by_length": {0: 0.5, 1000: 1}},
            {},
            "dense: keep_rate_by_length is 1 for 1000 prompt tokens",
        ),
        (
            {"budget": "tokens", "keep_tokens": 1000},
            {},
            "dense: 1000 prompt tokens, no more than 1000 (keep_tokens)",
        ),
        (
            {"min_prompt_tokens": 1001},
            {},
            "dense: 1000 prompt tokens, fewer than 1001 (min_prompt_tokens)",
        ),
        ({}, {"dense_reason": "the prompt asks for a quote"}, "dense: the prompt asks for a quote"),
        ({}, {"protected": ((0, 1000),)}, "dense: every token is protected"),
    ],
)
def test_dense_prompts_do_not_ask_the_draft(settings, details, reason):
    speculation = Speculator(NoDraft()).speculate(
        make_prompt(**details), SelectionSettings(**settings)
    )
    assert speculation.selection.reason == reason
    assert len(speculation.selection.kept) == 1000
    assert not speculation.draft_failed
    assert speculation.draft_ms == 0
    assert speculation.importance is None


def test_the_rule_none_asks_no_draft_and_spaces_chunks_evenly():
    speculation = Speculator(NoDraft()).speculate(
        make_prompt(), SelectionSettings(scorer="none", keep_rate=0.25, protect_last=1)
    )
    kept = speculation.selection.kept
    assert speculation.selection.active
    assert not speculation.draft_failed
    assert speculation.importance is None
    assert speculation.draft_ms == 0
    assert [int(((kept >= at) & (kept < at + 250)).sum()) for at in (0, 250, 500, 750)] == [
        4 + 64,  # the protected start
        64,
        64,
        65,  # the last token
    ]


@pytest.mark.parametrize("scorer", ["lookahead", "zscore", "window", "single_layer"])
def test_every_rule_finds_the_token_that_is_attended_to(scorer):
    settings = SelectionSettings(scorer=scorer, look_ahead=1, single_layer=1, keep_rate=0.1)
    speculation = Speculator(OneHotDraft()).speculate(make_prompt(), settings)
    assert speculation.importance.shape == (1000,)
    assert abs(int(speculation.importance.argmax()) - 700) <= 6
    assert 700 in speculation.selection.kept
    assert speculation.selection.chunk_scores.argmax() == 700 // 32
    assert speculation.draft_ms > 0


def test_a_layer_that_the_draft_lacks_means_dense_and_says_why():
    settings = SelectionSettings(scorer="single_layer", single_layer=9)
    speculation = Speculator(OneHotDraft()).speculate(make_prompt(), settings)
    assert speculation.draft_failed
    assert speculation.selection.reason == "dense: single_layer is 9 but the draft scores 0 to 1"


def test_borders_and_roles_of_the_prompt_are_used():
    borders = np.zeros(1000, dtype=np.uint8)
    borders[[690, 720]] = 2
    prompt = make_prompt(borders=borders, role_spans=((0, 1000, 3),))
    settings = SelectionSettings(
        chunk_borders="line", role_keep_rates={"tool": 0.03}, protect_first=0, protect_last=1
    )
    speculation = Speculator(OneHotDraft()).speculate(prompt, settings)
    assert speculation.selection.kept.tolist() == [*range(690, 720), 999]
    assert "tool 0.03" in speculation.selection.reason


def test_another_family_s_draft_reads_its_own_tokens():
    """Twice as many tokens, two for each of the target's."""
    ranges = np.arange(2000, dtype=np.int32).reshape(1000, 2)
    ranges[:, 1] += 1
    draft = OneHotDraft(token=1400)
    prompt = make_prompt(draft_ids=np.arange(2000, dtype=np.int32), draft_ranges=ranges)
    speculation = Speculator(draft).speculate(prompt, SelectionSettings(pool_kernel=1))
    assert [len(ids) for ids in draft.read] == [2000]
    assert speculation.importance.shape == (1000,)
    assert speculation.importance.argmax() == 700
    assert 700 in speculation.selection.kept
