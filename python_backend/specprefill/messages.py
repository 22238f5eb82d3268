# SPDX-License-Identifier: Apache-2.0
"""Chat messages and tools from JSON, in the shape of the OpenAI API, checked field by field."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from specprefill.errors import InvalidRequestError

ROLES = ("system", "user", "assistant", "tool")
# OpenAI's newer name of the same role; chat templates know only the older one.
_ALIASES = {"developer": "system"}
_MESSAGES = 'a JSON list of {"role", "content"} objects, or {"messages": [...], "tools": [...]}'
_TEXT_PARTS = 'a string, or a list of {"type": "text", "text": "..."} parts'


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a chat template renders.

    Attributes:
        messages: role and content, always text; as given also name, tool_call_id and tool_calls,
            whose arguments are objects.
        tools: definitions of the functions that the model may call.
    """

    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...] = ()

    def last_user_turn(self) -> int | None:
        """Return the index of the last user message that says something."""
        turns = [
            i for i, m in enumerate(self.messages) if m["role"] == "user" and m["content"].strip()
        ]
        return turns[-1] if turns else None


def parse_conversation(text: str) -> Conversation:
    """Read messages, and tools if there are any.

    Keys with the value null count as absent: clients send a model's answer back as they got it.

    Args:
        text: JSON, a list of messages or an object with `messages` and `tools`.

    Raises:
        InvalidRequestError: names the field, down to the part of a content that is no text.
    """
    value = _load("messages", text, _MESSAGES)
    tools: Any = []
    if isinstance(value, dict):
        _refuse_unknown("messages", value, {"messages", "tools"})
        tools = [] if value.get("tools") is None else value["tools"]
        value = value.get("messages")
    if not isinstance(value, list) or not value:
        raise InvalidRequestError("messages", "no list of messages, or an empty one", _MESSAGES)
    if not isinstance(tools, list):
        raise InvalidRequestError("tools", "no list", "a list of function definitions")
    messages = tuple(_message(f"messages[{i}]", message) for i, message in enumerate(value))
    for i, tool in enumerate(tools):
        _check_tool(f"tools[{i}]", tool)
    if not any(m["content"].strip() or m.get("tool_calls") for m in messages):
        raise InvalidRequestError("messages", "every message is empty", "text with content")
    return Conversation(messages, tuple(tools))


def _message(field: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidRequestError(field, "no object", _MESSAGES)
    given = {key: item for key, item in value.items() if item is not None}
    role = given.get("role")
    role = _ALIASES.get(role, role) if isinstance(role, str) else role
    if role not in ROLES:
        raise InvalidRequestError(
            f"{field}.role", f"got {given.get('role')!r}", ", ".join((*ROLES, *_ALIASES))
        )
    known = {"role", "content", "name"}
    known |= {"assistant": {"tool_calls"}, "tool": {"tool_call_id"}}.get(role, set())
    _refuse_unknown(field, given, known)
    for key in ("name", "tool_call_id"):
        if key in given and not isinstance(given[key], str):
            raise InvalidRequestError(f"{field}.{key}", "no text", "a string")
    message = {**given, "role": role, "content": _content(f"{field}.content", given)}
    if "tool_calls" in given:
        message["tool_calls"] = _tool_calls(f"{field}.tool_calls", given["tool_calls"])
    return message


def _content(field: str, message: dict[str, Any]) -> str:
    content = message.get("content")
    if content is None and message.get("tool_calls"):
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidRequestError(field, "no text", _TEXT_PARTS)
    texts = []
    for i, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text":
            raise InvalidRequestError(
                f"{field}[{i}].type", f"got {kind!r}, but this model reads text only", '"text"'
            )
        if not isinstance(part.get("text"), str):
            raise InvalidRequestError(f"{field}[{i}].text", "no text", "a string")
        texts.append(part["text"])
    # A template takes one string per message; line breaks keep the parts apart.
    return "\n".join(texts)


def _tool_calls(field: str, calls: Any) -> list[dict[str, Any]]:
    if not isinstance(calls, list) or not calls:
        raise InvalidRequestError(field, "no list of calls, or an empty one", "a list of calls")
    checked = []
    for i, call in enumerate(calls):
        function = _function(f"{field}[{i}]", call)
        arguments = function.get("arguments") or {}
        where = f"{field}[{i}].function.arguments"
        if isinstance(arguments, str):
            arguments = _load(where, arguments, "a JSON object")
        if not isinstance(arguments, dict):
            raise InvalidRequestError(where, "no object", "a JSON object")
        # Templates expect the object itself where the API has its JSON text.
        checked.append({**call, "function": {**function, "arguments": arguments}})
    return checked


def _check_tool(field: str, tool: Any) -> None:
    function = _function(field, tool)
    parameters = function.get("parameters")
    if parameters is not None and not isinstance(parameters, dict):
        raise InvalidRequestError(f"{field}.function.parameters", "no object", "a JSON schema")


def _function(field: str, value: Any) -> dict[str, Any]:
    """Return the named function of a tool definition or of a tool call."""
    if not isinstance(value, dict):
        raise InvalidRequestError(field, "no object", '{"type": "function", "function": {...}}')
    kind = value.get("type", "function")
    if kind != "function":
        raise InvalidRequestError(f"{field}.type", f"got {kind!r}", '"function"')
    function = value.get("function")
    if not isinstance(function, dict):
        raise InvalidRequestError(f"{field}.function", "no object", "an object with a name")
    if not isinstance(function.get("name"), str) or not function["name"]:
        raise InvalidRequestError(f"{field}.function.name", "no text", "the function's name")
    return function


def _load(field: str, text: str, allowed: str) -> Any:
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
        where = _lone_surrogate(field, value)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(field, f"no valid JSON: {error}", allowed) from error
    if where is not None:
        # In the wrapper object the messages and the tools have names of their own.
        where = where.removeprefix("messages.")
        raise InvalidRequestError(where, "a lone surrogate is no character", "valid Unicode")
    return value


def _refuse_constant(name: str) -> Callable[[], None]:
    raise ValueError(f"{name} is no JSON number")


def _refuse_unknown(field: str, value: dict[str, Any], known: set[str]) -> None:
    unknown = sorted(key for key in value.keys() - known if value[key] is not None)
    if unknown:
        allowed = ", ".join(sorted(known))
        raise InvalidRequestError(f"{field}.{unknown[0]}", "unknown key", allowed)


def _lone_surrogate(field: str, value: Any) -> str | None:
    """Return where in a JSON value a text is no valid Unicode; keys count as their object."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return field
        return None
    if isinstance(value, dict):
        if any(_lone_surrogate(field, key) for key in value):
            return field
        items = [(f"{field}.{key}", item) for key, item in value.items()]
    elif isinstance(value, list):
        items = [(f"{field}[{i}]", item) for i, item in enumerate(value)]
    else:
        return None
    return next(filter(None, (_lone_surrogate(*item) for item in items)), None)
