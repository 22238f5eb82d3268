# SPDX-License-Identifier: Apache-2.0
"""Stops waiting for an answer whose reader has gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, TypeVar

from openai_gateway.api_error import CLIENT_GONE, ApiError

T = TypeVar("T")


async def until_disconnect(
    receive: Callable[[], Awaitable[Any]], items: AsyncGenerator[T, None]
) -> AsyncGenerator[T, None]:
    """Pass items on until the client closes its connection; `items` is closed in the end.

    Args:
        receive: of the request, after its body was read.
        items: what is passed on.

    Raises:
        ApiError: 499, the client has gone.
    """
    gone = asyncio.create_task(_wait_for_disconnect(receive))
    upcoming: asyncio.Task[T | None] | None = None
    try:
        while True:
            upcoming = asyncio.create_task(_next(items))
            await asyncio.wait((upcoming, gone), return_when=asyncio.FIRST_COMPLETED)
            if not upcoming.done():
                raise ApiError(
                    CLIENT_GONE, "the client closed the connection", code="request_cancelled"
                )
            item = upcoming.result()
            if item is None:
                return
            yield item
    finally:
        gone.cancel()
        if upcoming is not None and not upcoming.done():
            upcoming.cancel()
            await asyncio.wait((upcoming,))
        await items.aclose()


async def _next(items: AsyncGenerator[T, None]) -> T | None:
    return await anext(items, None)


async def _wait_for_disconnect(receive: Callable[[], Awaitable[Any]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
