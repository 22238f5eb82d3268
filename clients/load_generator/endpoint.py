# SPDX-License-Identifier: Apache-2.0
"""Endpoint: a server that answers queries as streams."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from load_generator.query import Query


class BusyError(Exception):
    """The server refused the request because too many are waiting."""


class AnswerError(Exception):
    """The server answered with an error, or could not be reached."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """One response of a stream.

    Attributes:
        text: the next part of the answer.
        tokens: how many tokens it has.
        statistics: what else the server told, for example kept_tokens.
    """

    text: str
    tokens: int
    statistics: Mapping[str, Any] = field(default_factory=dict)


class Endpoint(Protocol):
    """A server; entered once per run, in that run's event loop."""

    def describe(self) -> dict[str, Any]:
        """Return what a report tells about the server."""

    def check(self, query: Query) -> None:
        """Raise SpecPrefillError if the query cannot be sent to such a server."""

    async def __aenter__(self) -> Endpoint:
        """Open the connection."""

    async def __aexit__(self, *exception: object) -> None:
        """Close the connection."""

    def ask(self, query: Query) -> AsyncGenerator[Chunk, None]:
        """Stream the answer; closing the stream cancels the request.

        Raises:
            BusyError: refused because too many are waiting.
            AnswerError: any other error of the server.
        """
