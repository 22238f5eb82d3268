# SPDX-License-Identifier: Apache-2.0
"""The two requests; fields that only take their neutral value are declared as exactly that."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from openai_gateway.messages import Message, No, One, RequestModel, Tool, Yes, Zero
from openai_gateway.options import Options

_LARGEST_INT32 = 2**31 - 1
_MOST_TOKENS = Field(None, ge=1, le=_LARGEST_INT32, description="Unset: the server's default.")
PromptText = Annotated[str, Field(min_length=1)]
StopString = Annotated[str, Field(min_length=1, max_length=1024)]


def _is_list(value: Any) -> str:
    return "many" if isinstance(value, list) else "one"


class StreamOptions(RequestModel):
    """How a stream looks."""

    include_usage: bool | None = None


class TextFormat(RequestModel):
    """The only response format."""

    type: Literal["text"]


class GenerationRequest(RequestModel):
    """What both endpoints take."""

    model: str = Field(min_length=1, description="The gateway's model name.")
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = _MOST_TOKENS
    temperature: float | None = Field(None, ge=0, le=2, description="Unset: 1. 0 is greedy.")
    top_p: float | None = Field(None, ge=0, le=1, description="Unset: 1.")
    seed: int | None = Field(None, ge=-(2**63), le=2**63 - 1)
    stop: (
        Annotated[
            Annotated[StopString, Tag("one")]
            | Annotated[list[StopString], Field(max_length=4), Tag("many")],
            Discriminator(_is_list),
        ]
        | None
    ) = None
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    user: str | None = Field(None, description="Accepted, without effect.")
    n: One | None = None
    logit_bias: Annotated[dict[str, float], Field(max_length=0)] | None = None
    specprefill: Options | None = Field(
        None, description="Selection settings and sampling settings beyond OpenAI's."
    )

    @property
    def greedy(self) -> bool:
        """Tell whether the most likely token is always taken."""
        one = getattr(self.specprefill, "top_k", None) == 1
        return self.temperature == 0 or self.top_p == 0 or one


class ChatRequest(GenerationRequest):
    """Body of POST /v1/chat/completions."""

    messages: list[Message] = Field(min_length=1, max_length=4096)
    max_completion_tokens: int | None = _MOST_TOKENS
    tools: list[Tool] | None = Field(None, max_length=128)
    tool_choice: Literal["auto", "none"] | None = None
    parallel_tool_calls: Yes | None = None
    response_format: TextFormat | None = None
    modalities: list[Literal["text"]] | None = Field(None, min_length=1, max_length=1)
    logprobs: bool | None = None
    top_logprobs: Zero | None = None


class CompletionRequest(GenerationRequest):
    """Body of POST /v1/completions."""

    prompt: Annotated[
        Annotated[str, Field(min_length=1), Tag("one")]
        | Annotated[
            list[Annotated[str, Field(min_length=1)]],
            Field(min_length=1, max_length=1),
            Tag("many"),
        ],
        Discriminator(_is_list),
    ]
    logprobs: Annotated[int, Field(ge=0, le=1)] | None = None
    best_of: One | None = None
    echo: No | None = None
    suffix: Literal[""] | None = None
