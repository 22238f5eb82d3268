# SPDX-License-Identifier: Apache-2.0
"""Roles, tools and spans to keep, through a real server."""

import json

import pytest
from specprefill.client import ServerError, stream

from tests.serving.conftest import generate, post

ENTRIES = ("specprefill", "ensemble")
FILLER = "The weather was fine and nothing of note happened on that day. " * 24


def system_and(*turns):
    return json.dumps([{"role": "system", "content": FILLER}, *turns])


def last(server, model, **fields):
    """Return the outputs of the last response, statistics included."""
    *_, piece = stream(server.grpc_url, model, max_tokens=2, **fields)
    return piece.outputs


@pytest.mark.parametrize("model", ENTRIES)
def test_a_tool_result_is_pruned_where_a_system_prompt_is_not(server, model):
    question = {"role": "user", "content": "What happened?"}
    tool = {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": FILLER}]}
    outputs = last(server, model, messages=json.dumps([question, tool]))
    assert outputs["active"]
    assert outputs["kept_tokens"] < outputs["prompt_tokens"] / 2
    outputs = last(server, model, messages=system_and(question))
    assert not outputs["active"]
    assert outputs["kept_tokens"] == outputs["prompt_tokens"]
    assert outputs["reason"].startswith("dense: ")


@pytest.mark.parametrize("model", ENTRIES)
def test_spans_to_keep_are_kept(server, model):
    text = FILLER + "What happened?"
    few = last(server, model, text_input=text)
    more = last(server, model, text_input=text, keep_spans=f"[[0, {len(FILLER) * 9 // 10}]]")
    assert few["kept_tokens"] < few["prompt_tokens"] / 2
    assert more["kept_tokens"] > more["prompt_tokens"] * 0.85
    with pytest.raises(ServerError, match=r"keep_spans\[0\]: got \[5, 5\]; allowed: start < end"):
        last(server, model, text_input=text, keep_spans="[[5, 5]]")


@pytest.mark.parametrize("model", ENTRIES)
def test_the_verbatim_guard(server, model):
    text = FILLER + "Quote the first sentence."
    assert last(server, model, text_input=text)["active"]
    outputs = last(server, model, text_input=text, verbatim_guard=True)
    assert not outputs["active"]
    assert outputs["reason"] == "dense: the prompt asks for a verbatim copy (verbatim_guard)"


def test_tools_that_the_template_ignores_are_refused(server):
    tool = {"type": "function", "function": {"name": "f"}}
    turns = [{"role": "user", "content": "Hi"}]
    messages = json.dumps({"messages": turns, "tools": [tool]})
    status, body = post(server, "models/specprefill/generate", {"messages": messages})
    assert status == 400
    assert "tools: the model's chat template ignores them" in body
    answer = generate(server, "specprefill", messages=json.dumps({"messages": turns}), max_tokens=2)
    assert answer["text_output"]


def test_images_are_refused(server):
    parts = [{"type": "text", "text": "Look:"}, {"type": "image_url", "image_url": {"url": "x"}}]
    messages = json.dumps([{"role": "user", "content": parts}])
    status, body = post(server, "models/specprefill/generate", {"messages": messages})
    assert status == 400
    assert "messages[0].content[1].type" in body
