# SPDX-License-Identifier: Apache-2.0
"""A prompt that comes again is not scored again; its answer is the same."""

import json

import pytest
from specprefill.client import stream

from tests.serving.conftest import generate, metric


def fresh(messages: str, word: str) -> str:
    """A prompt that no other test has sent."""
    changed = json.loads(messages)
    changed[0]["content"] = f"{word}. {changed[0]['content']}"
    return json.dumps(changed)


@pytest.mark.parametrize("model", ["specprefill", "ensemble"])
def test_an_equal_prompt_is_remembered(server, messages, model):
    fields = {"messages": fresh(messages, f"Memo {model}"), "max_tokens": 8}
    before = metric(server, "specprefill_memo_hits")
    first = generate(server, model, **fields)
    assert metric(server, "specprefill_memo_hits") == before
    second = generate(server, model, **fields)
    assert metric(server, "specprefill_memo_hits") == before + 1
    assert second["text_output"] == first["text_output"]
    assert second["kept_tokens"] == first["kept_tokens"]
    assert first["draft_ms"] > 0
    assert second["draft_ms"] == 0
    assert second["reason"] == f"{first['reason']}; selection remembered"


def test_other_settings_are_scored_anew(server, messages):
    fields = {"messages": fresh(messages, "Other"), "max_tokens": 2}
    first = generate(server, "specprefill", **fields)
    other = generate(server, "specprefill", **fields, keep_rate=0.4)
    assert other["draft_ms"] > 0
    assert other["kept_tokens"] > first["kept_tokens"]


def test_a_retry_after_the_clients_own_timeout_is_remembered(server, messages):
    fields = {"messages": fresh(messages, "Retry"), "max_tokens": 400, "min_tokens": 400}
    pieces = stream(server.grpc_url, **fields)
    next(pieces)
    pieces.close()  # what a client does when its patience ends
    again = generate(server, "specprefill", **{**fields, "max_tokens": 2, "min_tokens": 0})
    assert again["draft_ms"] == 0
    assert again["active"] is True
