# SPDX-License-Identifier: Apache-2.0
"""One answer as its pieces come in."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from specprefill.client import Piece

from openai_gateway.api_error import ApiError
from openai_gateway.response_models import (
    FinishReason,
    PromptTokensDetails,
    Speculation,
    Usage,
)

# Minus infinity is no JSON; OpenAI writes this for a token that could not have been chosen.
_LOWEST_LOG_PROB = -9999.0


@dataclass(frozen=True, slots=True)
class Part:
    """Some of an answer.

    Attributes:
        text: the next characters; may be empty.
        tokens: texts of the tokens since the part before, with their log probabilities; empty
            unless the request asked for them.
        finish_reason: set on the last part.
    """

    text: str
    tokens: tuple[tuple[str, float], ...]
    finish_reason: FinishReason | None


class Answer:
    """Reads the server's pieces and keeps the tally.

    Attributes:
        completion_tokens: tokens generated so far.
    """

    def __init__(self) -> None:
        """Start without a token."""
        self.completion_tokens = 0
        self._statistics: dict[str, Any] = {}

    async def parts(self, pieces: AsyncIterator[Piece]) -> AsyncIterator[Part]:
        """Yield the answer's parts.

        Raises:
            ApiError: the pieces ended before the answer did.
        """
        finished = False
        async for piece in pieces:
            outputs = piece.outputs
            self.completion_tokens += int(outputs.get("num_output_tokens", 0))
            if "prompt_tokens" in outputs:
                self._statistics = outputs
            reason = outputs.get("finish_reason")
            finished = reason is not None
            yield Part(piece.text, _tokens(outputs), reason)
        if not finished:
            raise ApiError(500, "the answer ended before it was complete", code="server_failed")

    @property
    def usage(self) -> Usage:
        """Return the tokens used; complete after the last part."""
        prompt_tokens = self._statistics["prompt_tokens"]
        return Usage(
            prompt_tokens=prompt_tokens,
            completion_tokens=self.completion_tokens,
            total_tokens=prompt_tokens + self.completion_tokens,
            prompt_tokens_details=PromptTokensDetails(
                cached_tokens=0, kept_tokens=self._statistics["kept_tokens"]
            ),
        )

    @property
    def speculation(self) -> Speculation:
        """Return what became of the prompt; known after the first part."""
        return Speculation.model_validate(
            {name: self._statistics[name] for name in Speculation.model_fields}
        )


def _tokens(outputs: dict[str, Any]) -> tuple[tuple[str, float], ...]:
    texts = _as_list(outputs.get("output_tokens", []))
    log_probs = _as_list(outputs.get("output_log_probs", []))
    return tuple(
        (text, value if math.isfinite(value) else _LOWEST_LOG_PROB)
        for text, value in zip(texts, log_probs, strict=True)
    )


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
