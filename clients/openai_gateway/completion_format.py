# SPDX-License-Identifier: Apache-2.0
"""Answers in the shape of completions."""

from __future__ import annotations

from collections.abc import Iterator

from openai_gateway.answer import Answer, Part
from openai_gateway.identity import Identity
from openai_gateway.response_models import (
    Completion,
    CompletionChoice,
    CompletionLogProbs,
    FinishReason,
)


class CompletionFormat:
    """Writes one completion, whole or in chunks."""

    def __init__(self, identity: Identity, log_probs: int | None, include_usage: bool) -> None:
        """Prepare for one answer."""
        self._identity = identity
        self._log_probs = log_probs
        self._include_usage = include_usage
        self._offset = 0  # characters of the tokens so far

    def whole(self, answer: Answer, parts: list[Part]) -> Completion:
        """Return the complete answer."""
        text = "".join(part.text for part in parts)
        completion = self._completion(text, parts, parts[-1].finish_reason)
        completion.usage = answer.usage
        completion.specprefill = answer.speculation
        return completion

    def begin(self) -> Iterator[Completion]:
        """Yield what comes before the first part: nothing."""
        yield from ()

    def part(self, part: Part) -> Iterator[Completion]:
        """Yield what one part becomes."""
        if part.text or part.tokens:
            yield self._completion(part.text, [part], None)

    def end(self, answer: Answer, reason: FinishReason) -> Iterator[Completion]:
        """Yield what comes after the last part."""
        last = self._completion("", [], reason)
        if self._include_usage:
            yield last
            last = self._completion("", [], None)
            last.choices = []
            last.usage = answer.usage
        last.specprefill = answer.speculation
        yield last

    def _completion(self, text: str, parts: list[Part], reason: FinishReason | None) -> Completion:
        identity = self._identity
        choice = CompletionChoice(
            index=0, text=text, logprobs=self._completion_log_probs(parts), finish_reason=reason
        )
        completion = Completion(
            id=identity.id,
            object="text_completion",
            created=identity.created,
            model=identity.model,
            choices=[choice],
        )
        if self._include_usage:
            completion.usage = None  # set, so that it is written: it is on every chunk then
        return completion

    def _completion_log_probs(self, parts: list[Part]) -> CompletionLogProbs | None:
        if self._log_probs is None:
            return None
        tokens = [token for part in parts for token in part.tokens]
        offsets = []
        for text, _ in tokens:
            offsets.append(self._offset)
            self._offset += len(text)
        return CompletionLogProbs(
            tokens=[text for text, _ in tokens],
            token_logprobs=[value for _, value in tokens],
            # Asked for only with greedy decoding, where the chosen token is the most likely one.
            top_logprobs=[{text: value} for text, value in tokens] if self._log_probs else None,
            text_offset=offsets,
        )
