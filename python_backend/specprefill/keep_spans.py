# SPDX-License-Identifier: Apache-2.0
"""Character spans of a prompt that a client wants kept."""

from __future__ import annotations

import json

from specprefill.errors import InvalidRequestError
from specprefill.selection import Span

_ALLOWED = "a JSON list of [start, end] pairs, ascending, without overlap"


def parse_keep_spans(text: str, prompt_length: int) -> list[Span]:
    """Read half-open spans of characters (Unicode code points, not bytes).

    Args:
        text: JSON, for example `[[0, 120], [3000, 3400]]`.
        prompt_length: characters of text_input.

    Raises:
        InvalidRequestError: names the span, its problem and the range.
    """
    try:
        spans = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError("keep_spans", f"no valid JSON: {error}", _ALLOWED) from error
    if not isinstance(spans, list):
        raise InvalidRequestError("keep_spans", "no list", _ALLOWED)
    checked: list[Span] = []
    for i, span in enumerate(spans):
        field = f"keep_spans[{i}]"
        if not isinstance(span, list) or len(span) != 2 or not all(type(n) is int for n in span):
            raise InvalidRequestError(field, "no pair of integers", _ALLOWED)
        start, end = span
        lowest = checked[-1][1] if checked else 0
        if not lowest <= start < end <= prompt_length:
            raise InvalidRequestError(
                field,
                f"got [{start}, {end}]",
                f"start < end, from {lowest} up to {prompt_length} characters",
            )
        checked.append((start, end))
    return checked
