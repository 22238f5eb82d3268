# SPDX-License-Identifier: Apache-2.0
"""Token ids -> text, piece by piece: whole characters only, and never a part of a stop string."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenizers.decoders import DecodeStream


class TextStream:
    """Incremental detokenisation with stop strings.

    The pieces joined are the whole text; a character that was not finished is left out.
    """

    def __init__(self, tokenizer: Any, stop_strings: Sequence[str] = ()) -> None:
        """Start an empty text.

        Args:
            tokenizer: a fast Hugging Face tokenizer.
            stop_strings: the text ends before the first of these that appears.
        """
        self._backend = tokenizer.backend_tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)
        self._stop_strings = tuple(stop for stop in stop_strings if stop)
        self._held = ""
        self.stopped = False

    def push(self, token_id: int) -> str:
        """Take one token; return the text that is certain now, possibly empty."""
        if self.stopped:
            return ""
        self._held += self._stream.step(self._backend, token_id) or ""
        found = [i for stop in self._stop_strings if (i := self._held.find(stop)) >= 0]
        if found:
            self.stopped = True
            text, self._held = self._held[: min(found)], ""
            return text
        certain = len(self._held) - self._possible_stop()
        text, self._held = self._held[:certain], self._held[certain:]
        return text

    def finish(self) -> str:
        """Return the text held back for a stop string that did not come."""
        text, self._held = self._held, ""
        return text

    def _possible_stop(self) -> int:
        """Return the length of the longest end of the held text that may begin a stop string."""
        longest = max((len(stop) for stop in self._stop_strings), default=1) - 1
        for length in range(min(longest, len(self._held)), 0, -1):
            tail = self._held[-length:]
            if any(stop.startswith(tail) for stop in self._stop_strings):
                return length
        return 0
