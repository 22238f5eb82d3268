# SPDX-License-Identifier: Apache-2.0
"""The bodies of successful responses."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

FinishReason = Literal["stop", "length"]


class PromptTokensDetails(BaseModel):
    """What became of the prompt's tokens."""

    cached_tokens: int
    kept_tokens: int


class Usage(BaseModel):
    """Tokens of one request; the whole prompt counts, not only what was kept of it."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class Speculation(BaseModel):
    """Whether and how far the prompt was pruned, and how long that took."""

    active: bool
    reason: str
    prompt_tokens: int
    kept_tokens: int
    draft_ms: float
    target_prefill_ms: float
    queue_ms: float


class TokenLogProb(BaseModel):
    """Log probability of one generated token; its bytes are unknown for parts of characters."""

    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[None]


class ChatLogProbs(BaseModel):
    """Log probabilities of an answer's tokens."""

    content: list[TokenLogProb]


class CompletionLogProbs(BaseModel):
    """Log probabilities of a completion's tokens; offsets count from the completion's start."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]] | None
    text_offset: list[int]


class AnswerMessage(BaseModel):
    """The model's answer."""

    role: Literal["assistant"]
    content: str


class ChatChoice(BaseModel):
    """The one answer."""

    index: Literal[0]
    message: AnswerMessage
    logprobs: ChatLogProbs | None
    finish_reason: FinishReason


class ChatCompletion(BaseModel):
    """Response of POST /v1/chat/completions."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    specprefill: Speculation


class Delta(BaseModel):
    """The next part of the answer."""

    role: Literal["assistant"] | None = None
    content: str | None = None


class ChunkChoice(BaseModel):
    """The one answer's next part."""

    index: Literal[0]
    delta: Delta
    logprobs: ChatLogProbs | None
    finish_reason: FinishReason | None


class ChatChunk(BaseModel):
    """One event of a streamed chat completion."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: Usage | None = None
    specprefill: Speculation | None = None


class CompletionChoice(BaseModel):
    """The one completion, or its next part."""

    index: Literal[0]
    text: str
    logprobs: CompletionLogProbs | None
    finish_reason: FinishReason | None


class Completion(BaseModel):
    """Response of POST /v1/completions, and each event of its stream."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = None
    specprefill: Speculation | None = None


class Model(BaseModel):
    """The one model."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelList(BaseModel):
    """Response of GET /v1/models."""

    object: Literal["list"]
    data: list[Model]


class Health(BaseModel):
    """Response of GET /health."""

    status: Literal["ok"]
