# SPDX-License-Identifier: Apache-2.0
"""HTTP responses: JSON, errors, and streams of server-sent events."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from pydantic import BaseModel
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from openai_gateway.api_error import ApiError

DONE = b"data: [DONE]\n\n"
# Legal in JSON, but many clients that read a stream line by line end a line there.
_LINE_ENDS = {ord(end): f"\\u{ord(end):04x}" for end in "\x85\u2028\u2029"}


class EventStream(Response):
    """A stream of server-sent events; whatever ends it, its source is closed."""

    media_type = "text/event-stream"

    def __init__(
        self, events: AsyncGenerator[bytes, None], source: AsyncGenerator[Any, None]
    ) -> None:
        """Send events as they come.

        Args:
            events: what is sent.
            source: what the events are made of; closed even if the first was never sent.
        """
        # Without the second header nginx holds a stream back until it is complete.
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._events = events
        self._source = source

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        try:
            await send(
                {
                    "type": "http.response.start",
                    "status": self.status_code,
                    "headers": self.raw_headers,
                }
            )
            async for event in self._events:
                await send({"type": "http.response.body", "body": event, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            await self._events.aclose()
            await self._source.aclose()


def event(model: BaseModel) -> bytes:
    """Return one server-sent event with the fields of a model that were set."""
    text = model.model_dump_json(exclude_unset=True).translate(_LINE_ENDS)
    return f"data: {text}\n\n".encode()


def json_response(model: BaseModel, status: int = 200) -> Response:
    """Return a model as JSON."""
    return Response(model.model_dump_json(), status, media_type="application/json")


def error_response(error: ApiError) -> Response:
    """Return an error as its OpenAI error object."""
    response = json_response(error.body, error.status)
    response.headers.update(error.headers)
    return response
