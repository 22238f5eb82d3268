# SPDX-License-Identifier: Apache-2.0
"""The OpenAI shape of messages and tools, and what is wrong with others."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from specprefill.errors import InvalidRequestError
from specprefill.messages import parse_conversation

from tests.unit.chat_templates import TOOLS, call


def parse(value):
    return parse_conversation(json.dumps(value))


def test_an_agents_conversation():
    parsed = parse(
        {
            "messages": [
                {"role": "developer", "content": [{"type": "text", "text": "Be brief."}]},
                {"role": "user", "content": "Go", "name": "ann"},
                {"role": "assistant", "content": None, "tool_calls": [call("x")], "refusal": None},
                {
                    "role": "tool",
                    "tool_call_id": "call00001",
                    "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
                },
            ],
            "tools": TOOLS,
        }
    )
    system, user, assistant, tool = parsed.messages
    assert system == {"role": "system", "content": "Be brief."}
    assert user["name"] == "ann"
    assert assistant["content"] == ""
    assert assistant["tool_calls"][0]["function"]["arguments"] == {"query": "x"}
    assert "refusal" not in assistant
    assert tool == {"role": "tool", "tool_call_id": "call00001", "content": "a\nb"}
    assert list(parsed.tools) == TOOLS
    assert parsed.last_user_turn() == 1


def test_a_bare_list_has_no_tools():
    assert parse([{"role": "user", "content": "x"}]).tools == ()
    assert parse({"messages": [{"role": "user", "content": "x"}], "tools": None}).tools == ()


def test_no_user_turn():
    assert parse([{"role": "system", "content": "x"}]).last_user_turn() is None
    blank = [{"role": "user", "content": "x"}, {"role": "user", "content": " "}]
    assert parse(blank).last_user_turn() == 0


def calls(**function):
    made = {"type": "function", "function": {"name": "f", **function}}
    return [{"role": "assistant", "tool_calls": [made]}]


def tools(tool):
    return {"messages": [{"role": "user", "content": "x"}], "tools": [tool]}


IMAGE = {"type": "image_url", "image_url": {"url": "data:"}}
TEXT = {"type": "text", "text": "x"}


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"messages": [], "model": "x"}, ("messages.model", "unknown key", "messages, tools")),
        ({"tools": []}, ("messages", "no list")),
        (
            [{"role": "user", "content": [TEXT, IMAGE]}],
            ("messages[0].content[1].type", "'image_url'", "reads text only"),
        ),
        ([{"role": "user", "content": [3]}], ("messages[0].content[0].type", "None")),
        ([{"role": "user", "content": [{"type": "text"}]}], ("content[0].text", "no text")),
        ([{"role": "user", "content": 3}], ("messages[0].content", "no text", "list of")),
        ([{"role": "user"}], ("messages[0].content", "no text")),
        ([{"role": "assistant", "content": None}], ("messages[0].content", "no text")),
        ([{"role": ["user"], "content": "x"}], ("messages[0].role", "['user']", "developer")),
        ([{"role": "user", "content": "x", "name": 3}], ("messages[0].name", "no text")),
        (
            [{"role": "user", "content": "x", "tool_calls": [call("x")]}],
            ("messages[0].tool_calls", "unknown key", "content, name, role"),
        ),
        ([{"role": "user", "content": "x", "tool_call_id": "y"}], ("tool_call_id", "unknown")),
        ([{"role": "tool", "content": "x", "tool_call_id": 3}], ("tool_call_id", "no text")),
        (
            [{"role": "assistant", "content": "x", "tool_calls": []}],
            ("messages[0].tool_calls", "empty"),
        ),
        ([{"role": "assistant", "tool_calls": ["x"]}], ("tool_calls[0]", "no object")),
        (
            [{"role": "assistant", "tool_calls": [{"type": "custom"}]}],
            ("messages[0].tool_calls[0].type", "'custom'"),
        ),
        (calls(name=""), ("messages[0].tool_calls[0].function.name",)),
        (calls(arguments="{"), ("tool_calls[0].function.arguments", "no valid JSON")),
        (calls(arguments='{"x": NaN}'), ("function.arguments", "NaN")),
        (calls(arguments="[1]"), ("tool_calls[0].function.arguments", "no object")),
        ({"messages": [{"role": "user", "content": "x"}], "tools": {}}, ("tools", "no list")),
        ({"messages": [{"role": "user", "content": "x"}], "tools": "f"}, ("tools", "no list")),
        (tools(3), ("tools[0]", "no object")),
        (tools({"type": "web_search"}), ("tools[0].type", "'web_search'", "function")),
        (tools({"type": "function"}), ("tools[0].function", "no object")),
        (tools({"type": "function", "function": {}}), ("tools[0].function.name",)),
        (
            tools({"type": "function", "function": {"name": "f", "parameters": []}}),
            ("tools[0].function.parameters", "JSON schema"),
        ),
        ([{"role": "user", "content": "\ud800"}], ("messages[0].content", "surrogate")),
        (calls(arguments='["\\ud800"]'), ("function.arguments[0]", "surrogate")),
        (
            tools({"type": "function", "function": {"name": "\ud800"}}),
            ("tools[0].function.name: ", "surrogate"),
        ),
        ([{"role": "user", "content": "x", "\ud800": 1}], ("messages[0]: ", "surrogate")),
    ],
)
def test_what_is_wrong_is_named(value, words):
    with pytest.raises(InvalidRequestError) as caught:
        parse(value)
    for word in words:
        assert word in str(caught.value)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(("role", "content", "tools", "messages", "tool_calls", "function")),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(json_values)
def test_anything_else_is_a_clear_error(value):
    problem = None
    try:
        parsed = parse(value)
    except InvalidRequestError as error:
        problem = error.field
    if problem is None:
        assert all(isinstance(message["content"], str) for message in parsed.messages)
    else:
        assert problem.startswith(("messages", "tools"))


def test_roles_are_checked_before_contents():
    with pytest.raises(InvalidRequestError, match=r"messages\[1\].role: got None"):
        parse([{"role": "user", "content": "x"}, {"content": "y"}])
