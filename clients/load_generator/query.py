# SPDX-License-Identifier: Apache-2.0
"""Query: one request of a workload."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Query:
    """One request, not yet bound to a server or a time.

    Attributes:
        name: what the raw results call it.
        max_tokens: length of the answer at most.
        prompt: raw text, or None if there are messages.
        messages: chat messages with role and content, or none if there is a prompt.
        settings: further public inputs, for example {"keep_rate": 0.2}.
    """

    name: str
    max_tokens: int
    prompt: str | None = None
    messages: tuple[Message, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)

    def with_settings(self, settings: Mapping[str, Any]) -> Query:
        """Add settings for the whole workload; the query's own win."""
        return replace(self, settings={**settings, **self.settings})

    def with_mark(self, mark: str) -> Query:
        """Put a line before the prompt that no other prompt starts with."""
        if self.prompt is not None:
            return replace(self, prompt=f"{mark}\n{self.prompt}")
        first, *others = self.messages
        if not isinstance(first["content"], str):  # content parts, as OpenAI has them
            content: Any = [{"type": "text", "text": mark}, *first["content"]]
        else:
            content = f"{mark}\n{first['content']}"
        return replace(self, messages=({**first, "content": content}, *others))
