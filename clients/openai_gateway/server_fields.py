# SPDX-License-Identifier: Apache-2.0
"""Requests of the OpenAI API -> inputs of the entry model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from openai_gateway.api_error import ApiError
from openai_gateway.messages import messages_json
from openai_gateway.options import Options, read_options
from openai_gateway.request_models import ChatRequest, CompletionRequest, GenerationRequest

_SAME_NAME = ("max_tokens", "presence_penalty", "frequency_penalty")


def chat_fields(request: ChatRequest) -> dict[str, Any]:
    """Return the entry model's inputs for a chat request.

    Raises:
        ApiError: fields contradict each other.
    """
    if request.tool_choice is not None and not request.tools:
        raise _refuse("tool_choice", "there are no tools to choose from", "tools as well, or none")
    if request.max_tokens is not None and request.max_completion_tokens is not None:
        raise _refuse("max_completion_tokens", "max_tokens is set as well", "one of the two")
    fields = _common_fields(request)
    if request.max_completion_tokens is not None:
        fields["max_tokens"] = request.max_completion_tokens
    tools = None if request.tool_choice == "none" else request.tools
    fields["messages"] = json.dumps(messages_json(request.messages, tools), ensure_ascii=False)
    if request.logprobs:
        fields["return_log_probs"] = True
    return fields


def completion_fields(request: CompletionRequest) -> dict[str, Any]:
    """Return the entry model's inputs for a completion request.

    Raises:
        ApiError: fields contradict each other.
    """
    if request.logprobs == 1 and not request.greedy:
        raise _refuse(
            "logprobs",
            "got 1, but while sampling only the sampled token's probability is known",
            "0, or 1 with temperature 0",
        )
    fields = _common_fields(request)
    fields["text_input"] = request.prompt if isinstance(request.prompt, str) else request.prompt[0]
    if request.logprobs is not None:
        fields["return_log_probs"] = True
    return fields


def public_names(request: GenerationRequest) -> Mapping[str, str]:
    """Return what the request calls the inputs of the entry model."""
    names = {name: f"specprefill.{name}" for name in Options.model_fields}
    names |= {"text_input": "prompt", "stop_words": "stop"}
    if getattr(request, "max_completion_tokens", None) is not None:
        names["max_tokens"] = "max_completion_tokens"
    return names


def _common_fields(request: GenerationRequest) -> dict[str, Any]:
    if request.stream_options is not None and not request.stream:
        raise _refuse("stream_options", "stream is not set", "only together with stream true")
    fields = read_options(request.specprefill)
    fields["return_num_output_tokens"] = True
    if request.temperature == 0 or request.top_p == 0:
        fields["temperature"] = 0.0
    else:
        # The server samples only when top_k or top_p is set; OpenAI's API does by default.
        fields["temperature"] = 1.0 if request.temperature is None else request.temperature
        fields["top_p"] = 1.0 if request.top_p is None else request.top_p
    if request.seed is not None:
        fields["seed"] = request.seed % 2**64
    if request.stop:
        fields["stop_words"] = [request.stop] if isinstance(request.stop, str) else request.stop
    for name in _SAME_NAME:
        value = getattr(request, name)
        if value is not None:
            fields[name] = value
    return fields


def _refuse(param: str, problem: str, allowed: str) -> ApiError:
    return ApiError(400, f"{param}: {problem}; allowed: {allowed}", param, "invalid_value")
