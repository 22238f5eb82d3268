# SPDX-License-Identifier: Apache-2.0
"""OpenAIEndpoint: our gateway, or any server of that protocol."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from specprefill.errors import SpecPrefillError

from load_generator.endpoint import AnswerError, BusyError, Chunk
from load_generator.query import Query

_BUSY_STATUS = (429, 503)


class OpenAIEndpoint:
    """Chat messages go to /chat/completions, raw prompts to /completions; both are streamed."""

    def __init__(self, base_url: str, model: str = "specprefill", api_key: str = "none") -> None:
        """Name the server, for example http://127.0.0.1:9000/v1.

        Raises:
            SpecPrefillError: the package openai is not installed.
        """
        try:
            import openai
        except ImportError as error:
            raise SpecPrefillError("the package openai is needed: pip install openai") from error
        self._package = openai
        self._base_url = base_url
        self._model = model
        self._api_key = api_key
        self._client: Any = None

    def describe(self) -> dict[str, Any]:
        """Return the address and the model, without the key."""
        return {"kind": "openai", "url": self._base_url, "model": self._model}

    def check(self, query: Query) -> None:
        """Accept every query: which settings a server takes only it can tell."""

    async def __aenter__(self) -> OpenAIEndpoint:
        """Open the connection."""
        # Retries would hide refusals, and the run has its own timeout.
        self._client = self._package.AsyncOpenAI(
            base_url=self._base_url, api_key=self._api_key, max_retries=0, timeout=None
        )
        return self

    async def __aexit__(self, *exception: object) -> None:
        """Close the connection."""
        await self._client.close()

    async def ask(self, query: Query) -> AsyncGenerator[Chunk, None]:
        """Stream the answer; closing the stream closes its connection."""
        try:
            stream = await self._create(query)
            async with stream:
                counted = 0
                async for event in stream:
                    for choice in event.choices:
                        text = _text(choice)
                        if text:
                            counted += 1
                            yield Chunk(text, 1)
                    if event.usage is not None:
                        # A piece of text may be several tokens; the server knows.
                        extra = event.usage.completion_tokens - counted
                        yield Chunk("", extra, {"prompt_tokens": event.usage.prompt_tokens})
        except self._package.APIStatusError as error:
            kind = BusyError if error.status_code in _BUSY_STATUS else AnswerError
            raise kind(f"{error.status_code}: {error.message}") from error
        except self._package.APIError as error:
            raise AnswerError(str(error)) from error

    async def _create(self, query: Query) -> Any:
        common: dict[str, Any] = {
            "model": self._model,
            "max_tokens": query.max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            "extra_body": dict(query.settings),
        }
        if query.prompt is None:
            return await self._client.chat.completions.create(
                messages=list(query.messages), **common
            )
        return await self._client.completions.create(prompt=query.prompt, **common)


def _text(choice: Any) -> str:
    return (choice.delta.content if hasattr(choice, "delta") else choice.text) or ""
