# SPDX-License-Identifier: Apache-2.0
"""Answers in Triton's place, so that the HTTP side can be tested alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from specprefill.client import Piece, ServerError, make_input

STATISTICS = {
    "prompt_tokens": 100,
    "kept_tokens": 20,
    "active": True,
    "reason": "pruned to 20 of 100 tokens",
    "draft_ms": 3.5,
    "target_prefill_ms": 7.5,
    "queue_ms": 0.5,
}


class StandIn:
    """Says "one two three", or fails as it is told.

    Attributes:
        asked: fields of the requests so far.
        failure: raised before the piece with the number `fails_at`.
        endless: never comes to an end.
        closed: requests whose stream was closed.
    """

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.ready = True
        self.failure: Exception | None = None
        self.fails_at = 0
        self.endless = False
        self.closed = 0

    async def stream(self, fields: Mapping[str, Any]) -> AsyncGenerator[Piece, None]:
        for name, value in fields.items():
            make_input(name, value)  # what the real one does; fails where a value fits no tensor
        self.asked.append(dict(fields))
        try:
            for i, text in enumerate(("one", " two", " three")):
                if self.failure is not None and i == self.fails_at:
                    raise self.failure
                outputs: dict[str, Any] = {"num_output_tokens": 1}
                if fields.get("return_log_probs"):
                    outputs |= {"output_tokens": text, "output_log_probs": -0.25 * (i + 1)}
                if i in (0, 2):
                    outputs |= STATISTICS
                if i == 2:
                    while self.endless:
                        await asyncio.sleep(0.01)
                    outputs["finish_reason"] = "length"
                yield Piece(text, outputs)
        finally:
            self.closed += 1

    async def is_ready(self) -> bool:
        return self.ready


def refusal(sentence: str, status: str | None = None) -> ServerError:
    return ServerError(sentence, status)
