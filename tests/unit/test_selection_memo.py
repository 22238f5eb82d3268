# SPDX-License-Identifier: Apache-2.0
import dataclasses

import numpy as np
import pytest
from specprefill.prompt import Prompt
from specprefill.selection import Selection
from specprefill.selection_memo import SelectionMemo
from specprefill.settings import SelectionSettings
from specprefill.speculator import Speculation

SETTINGS = SelectionSettings()
PROMPT = Prompt(np.arange(8, dtype=np.int32))


def speculation(draft_ms=5.0, **values):
    selection = Selection(np.array([0, 7], np.int32), 8, True, "pruned")
    return Speculation(selection, draft_ms, **values)


OTHERS = [
    dataclasses.replace(PROMPT, token_ids=np.arange(1, 9, dtype=np.int32)),
    dataclasses.replace(PROMPT, protected=((0, 2),)),
    dataclasses.replace(PROMPT, role_spans=((0, 2, 1),)),
    dataclasses.replace(PROMPT, borders=np.zeros(8, np.uint8)),
    dataclasses.replace(PROMPT, dense_reason="dense: because"),
    dataclasses.replace(PROMPT, draft_ids=np.arange(8, dtype=np.int32)),
]


@pytest.mark.parametrize("other", OTHERS)
def test_every_part_of_a_prompt_is_in_the_key(other):
    assert SelectionMemo.key(other, SETTINGS) != SelectionMemo.key(PROMPT, SETTINGS)


def test_every_setting_is_in_the_key():
    changed = SETTINGS.for_request({"keep_rate": 0.21})
    assert SelectionMemo.key(PROMPT, changed) != SelectionMemo.key(PROMPT, SETTINGS)


def test_equal_prompts_have_equal_keys():
    copy = Prompt(PROMPT.token_ids.copy())
    assert SelectionMemo.key(copy, SelectionSettings()) == SelectionMemo.key(PROMPT, SETTINGS)


def test_the_least_recently_used_is_forgotten():
    memo = SelectionMemo(2)
    for key in (b"a", b"b"):
        memo.put(key, speculation())
    memo.get(b"a")
    memo.put(b"c", speculation())
    assert memo.get(b"b") is None
    assert memo.get(b"a").selection.kept.tolist() == [0, 7]
    assert memo.get(b"c").draft_ms == 0


@pytest.mark.parametrize("forgotten", [speculation(0.0), speculation(draft_failed=True)])
def test_failures_and_what_cost_nothing_are_not_remembered(forgotten):
    memo = SelectionMemo(2)
    memo.put(b"a", forgotten)
    assert memo.get(b"a") is None


def test_zero_entries_turn_it_off():
    memo = SelectionMemo(0)
    memo.put(b"a", speculation())
    assert memo.get(b"a") is None
