# SPDX-License-Identifier: Apache-2.0
"""Answers in the shape of chat completions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from openai_gateway.answer import Answer, Part
from openai_gateway.identity import Identity
from openai_gateway.response_models import (
    AnswerMessage,
    ChatChoice,
    ChatChunk,
    ChatCompletion,
    ChatLogProbs,
    ChunkChoice,
    Delta,
    FinishReason,
    TokenLogProb,
)


class ChatFormat:
    """Writes one chat completion, whole or in chunks."""

    def __init__(self, identity: Identity, log_probs: bool, include_usage: bool) -> None:
        """Prepare for one answer."""
        self._identity = identity
        self._log_probs = log_probs
        self._include_usage = include_usage

    def whole(self, answer: Answer, parts: list[Part]) -> ChatCompletion:
        """Return the complete answer."""
        identity = self._identity
        reason = parts[-1].finish_reason
        assert reason is not None
        choice = ChatChoice(
            index=0,
            message=AnswerMessage(role="assistant", content="".join(part.text for part in parts)),
            logprobs=self._chat_log_probs(parts),
            finish_reason=reason,
        )
        return ChatCompletion(
            id=identity.id,
            object="chat.completion",
            created=identity.created,
            model=identity.model,
            choices=[choice],
            usage=answer.usage,
            specprefill=answer.speculation,
        )

    def begin(self) -> Iterator[ChatChunk]:
        """Yield what comes before the first part."""
        yield self._chunk(Delta(role="assistant", content=""))

    def part(self, part: Part) -> Iterator[ChatChunk]:
        """Yield what one part becomes."""
        if part.text or part.tokens:
            yield self._chunk(Delta(content=part.text), self._chat_log_probs([part]))

    def end(self, answer: Answer, reason: FinishReason) -> Iterator[ChatChunk]:
        """Yield what comes after the last part."""
        last = self._chunk(Delta(), reason=reason)
        if self._include_usage:
            yield last
            last = self._chunk(None)
            last.usage = answer.usage
        last.specprefill = answer.speculation
        yield last

    def _chunk(
        self,
        delta: Delta | None,
        log_probs: ChatLogProbs | None = None,
        reason: FinishReason | None = None,
    ) -> ChatChunk:
        identity = self._identity
        kind: Literal["chat.completion.chunk"] = "chat.completion.chunk"
        choices = []
        if delta is not None:
            choices = [ChunkChoice(index=0, delta=delta, logprobs=log_probs, finish_reason=reason)]
        chunk = ChatChunk(
            id=identity.id,
            object=kind,
            created=identity.created,
            model=identity.model,
            choices=choices,
        )
        if self._include_usage:
            chunk.usage = None  # set, so that it is written: the API has it on every chunk then
        return chunk

    def _chat_log_probs(self, parts: list[Part]) -> ChatLogProbs | None:
        if not self._log_probs:
            return None
        return ChatLogProbs(
            content=[
                TokenLogProb(
                    token=text,
                    logprob=value,
                    bytes=None if "\N{REPLACEMENT CHARACTER}" in text else list(text.encode()),
                    top_logprobs=[],
                )
                for part in parts
                for text, value in part.tokens
            ]
        )
