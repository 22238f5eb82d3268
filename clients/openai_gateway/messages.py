# SPDX-License-Identifier: Apache-2.0
"""Chat messages and tools of a request."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, JsonValue, Tag
from pydantic_core import PydanticCustomError


def _must_be(kind: type) -> BeforeValidator:
    """Tell 1 from true and 0 from false, which are equal in Python."""

    def check(value: Any) -> Any:
        if type(value) is not kind:
            raise PydanticCustomError(
                "type", "Input should be of type {kind}", {"kind": _JSON[kind]}
            )
        return value

    return BeforeValidator(check)


_JSON = {int: "integer", bool: "boolean"}
Zero = Annotated[Literal[0], _must_be(int)]
One = Annotated[Literal[1], _must_be(int)]
No = Annotated[Literal[False], _must_be(bool)]
Yes = Annotated[Literal[True], _must_be(bool)]


class RequestModel(BaseModel):
    """A part of a request: unknown fields and values of another type are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class TextPart(RequestModel):
    """A part of a message's content; other types than text are not supported."""

    type: Literal["text"]
    text: str


def _content_kind(value: Any) -> str:
    return "parts" if isinstance(value, list) else "text"


Content = Annotated[
    Annotated[str, Tag("text")]
    | Annotated[list[TextPart], Field(min_length=1, max_length=256), Tag("parts")],
    Discriminator(_content_kind),
]


class CalledFunction(RequestModel):
    """A function as the model called it."""

    name: str = Field(min_length=1)
    arguments: str = Field(description="JSON, as the model wrote it.")


class ToolCall(RequestModel):
    """One call of a tool, from an earlier answer."""

    id: str = Field(min_length=1)
    type: Literal["function"]
    function: CalledFunction


class InstructionMessage(RequestModel):
    """What the model should always heed; always kept when the prompt is pruned."""

    role: Literal["system", "developer"]
    content: Content
    name: str | None = None


class UserMessage(RequestModel):
    """What the user said."""

    role: Literal["user"]
    content: Content
    name: str | None = None


class AssistantMessage(RequestModel):
    """What the model answered earlier."""

    role: Literal["assistant"]
    content: Content | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = Field(None, max_length=128)
    refusal: None = None


class ToolMessage(RequestModel):
    """What a tool returned."""

    role: Literal["tool"]
    content: Content
    tool_call_id: str = Field(min_length=1)


Message = Annotated[
    InstructionMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")
]


class Function(RequestModel):
    """A function that the model may call."""

    name: str = Field(min_length=1, max_length=64)
    description: str | None = None
    parameters: dict[str, JsonValue] | None = None
    strict: No | None = None


class Tool(RequestModel):
    """A tool that the model may call."""

    type: Literal["function"]
    function: Function


def messages_json(messages: list[Message], tools: list[Tool] | None) -> Any:
    """Return what the server's input `messages` holds, before it becomes JSON."""
    plain = [_plain_message(message) for message in messages]
    if not tools:
        return plain
    return {"messages": plain, "tools": [tool.model_dump(exclude_none=True) for tool in tools]}


def _plain_message(message: Message) -> dict[str, Any]:
    values: dict[str, Any] = message.model_dump(exclude_none=True)
    content = message.content
    if isinstance(content, list):
        values["content"] = "\n".join(part.text for part in content)
    elif content is None:
        values["content"] = ""
    if values["role"] == "developer":
        values["role"] = "system"
    return values
