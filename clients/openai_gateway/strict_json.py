# SPDX-License-Identifier: Apache-2.0
"""Reads JSON bodies strictly: no NaN, no lone surrogates, no bottomless nesting."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import HTTPException, Request, Response
from fastapi.routing import APIRoute
from pydantic_core import from_json


class StrictJsonRequest(Request):
    """A request whose JSON body follows RFC 8259."""

    async def json(self) -> Any:
        """Return the parsed body.

        Raises:
            HTTPException: 400, the body is no JSON; the only kind that FastAPI passes on here.
        """
        if not hasattr(self, "_json"):
            try:
                self._json = from_json(await self.body(), allow_inf_nan=False)
            except ValueError as error:
                raise HTTPException(400, f"the body is no valid JSON: {error}") from error
        return self._json


class StrictJsonRoute(APIRoute):
    """A route whose requests are strict about JSON."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return FastAPI's handler, given a strict request."""
        handle = super().get_route_handler()

        async def handle_strictly(request: Request) -> Response:
            return await handle(StrictJsonRequest(request.scope, request.receive))

        return handle_strictly
