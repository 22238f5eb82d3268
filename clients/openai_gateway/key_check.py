# SPDX-License-Identifier: Apache-2.0
"""Refuses requests without a valid API key before anything of them is read."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from openai_gateway.api_error import ApiError
from openai_gateway.api_keys import ApiKeys
from openai_gateway.responses import error_response

_OPEN_PATHS = frozenset(("/health",))


class KeyCheck:
    """ASGI middleware that asks for a key everywhere but at the health check."""

    def __init__(self, app: ASGIApp, keys: ApiKeys) -> None:
        """Guard an application."""
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 401."""
        if scope["type"] != "http" or scope["path"] in _OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("authorization")
        if self._keys.accept(None if given is None else given.encode("latin-1")):
            await self._app(scope, receive, send)
            return
        problem = "no API key was given" if given is None else "the API key is not valid"
        error = ApiError(
            401,
            f"{problem}; send one as Authorization: Bearer KEY",
            code="invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )
        await error_response(error)(scope, receive, send)
