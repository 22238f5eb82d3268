# SPDX-License-Identifier: Apache-2.0
"""Runs one request on the server and sends its answer, whole or as a stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from typing import Any, Protocol

from fastapi import Request, Response
from pydantic import BaseModel
from specprefill.client import Piece, ServerError

from openai_gateway.answer import Answer, Part
from openai_gateway.api_error import ApiError, from_server_error
from openai_gateway.disconnect import until_disconnect
from openai_gateway.metrics import Metrics, RequestTimer
from openai_gateway.response_models import FinishReason
from openai_gateway.responses import DONE, EventStream, event, json_response
from openai_gateway.triton_backend import Backend


class AnswerFormat(Protocol):
    """Shapes an answer for one endpoint."""

    def whole(self, answer: Answer, parts: list[Part]) -> BaseModel:
        """Return the complete answer."""
        ...

    def begin(self) -> Iterator[BaseModel]:
        """Yield what comes before the first part."""
        ...

    def part(self, part: Part) -> Iterator[BaseModel]:
        """Yield what one part becomes."""
        ...

    def end(self, answer: Answer, reason: FinishReason) -> Iterator[BaseModel]:
        """Yield what comes after the last part."""
        ...


class Generation:
    """One request on its way."""

    def __init__(self, request: Request, backend: Backend, metrics: Metrics) -> None:
        """Prepare; nothing is sent yet."""
        self._request = request
        self._backend = backend
        self._metrics = metrics
        self._timer: RequestTimer = request.state.timer

    async def respond(
        self,
        fields: Mapping[str, Any],
        names: Mapping[str, str],
        answer_format: AnswerFormat,
        stream: bool,
    ) -> Response:
        """Send the request and return its response.

        Args:
            fields: inputs of the entry model.
            names: what the request calls them.
            answer_format: shape of the answer.
            stream: send the answer piece by piece; it begins when the first token is there, so
                that everything that fails before has an HTTP status.

        Raises:
            ApiError: the server refused the request, failed, or cannot be reached; or the client
                has gone.
        """
        answer = Answer()
        parts = self._parts(answer, fields, names)
        try:
            first = await anext(parts)
        except BaseException:
            await parts.aclose()
            raise
        self._metrics.first_token(self._timer)
        if stream:
            return EventStream(self._events(answer, first, parts, answer_format), parts)
        async with aclosing(parts):
            collected = [first, *[part async for part in parts]]
        return json_response(answer_format.whole(answer, collected))

    async def _parts(
        self, answer: Answer, fields: Mapping[str, Any], names: Mapping[str, str]
    ) -> AsyncGenerator[Part, None]:
        pieces: AsyncGenerator[Piece, None] = until_disconnect(
            self._request.receive, self._backend.stream(fields)
        )
        async with aclosing(pieces):
            try:
                async for part in answer.parts(pieces):
                    yield part
            except ServerError as error:
                raise from_server_error(error, names) from error

    async def _events(
        self,
        answer: Answer,
        part: Part,
        parts: AsyncGenerator[Part, None],
        answer_format: AnswerFormat,
    ) -> AsyncGenerator[bytes, None]:
        """Yield the stream's events; an error ends it without [DONE]."""
        for chunk in answer_format.begin():
            yield event(chunk)
        try:
            while True:
                for chunk in answer_format.part(part):
                    yield event(chunk)
                if part.finish_reason is not None:
                    break
                part = await anext(parts)
        except ApiError as error:
            self._timer.failure = error.status
            yield event(error.body)
            return
        for chunk in answer_format.end(answer, part.finish_reason):
            yield event(chunk)
        yield DONE
