# SPDX-License-Identifier: Apache-2.0
"""Reads request bodies up to a limit, whatever their Content-Length claims."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from openai_gateway.api_error import ApiError
from openai_gateway.responses import error_response

# A client that is still sending when the connection closes never reads the answer.
_DISCARDED_TIMES = 8


class BodyLimit:
    """ASGI middleware that answers 413 to a body above the limit and holds at most the limit."""

    def __init__(self, app: ASGIApp, limit_bytes: int) -> None:
        """Guard an application."""
        self._app = app
        self._limit = limit_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the body, then pass the request on with it, or answer 413."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = bytearray()
        size = 0
        messages: list[Message] = []
        declared = Headers(scope=scope).get("content-length", "")
        refused = declared.isdecimal() and int(declared) > self._limit
        while size <= self._limit * _DISCARDED_TIMES:
            message = await receive()
            if message["type"] != "http.request":
                messages.append(message)
                break
            size += len(message.get("body", b""))
            refused = refused or size > self._limit
            if refused:
                body.clear()
            else:
                body += message.get("body", b"")
            if not message.get("more_body", False):
                messages.append({"type": "http.request", "body": bytes(body), "more_body": False})
                break
        if refused:
            error = ApiError(
                413,
                f"the body is larger than {self._limit} bytes",
                code="request_too_large",
                headers={"Connection": "close"},
            )
            await error_response(error)(scope, receive, send)
            return

        async def replay() -> Message:
            return messages.pop(0) if messages else await receive()

        await self._app(scope, replay, send)
