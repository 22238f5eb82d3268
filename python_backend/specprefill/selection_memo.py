# SPDX-License-Identifier: Apache-2.0
"""SelectionMemo: a prompt that comes again with the same settings is not scored again."""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import threading

import numpy as np

from specprefill.prompt import Prompt
from specprefill.settings import SelectionSettings
from specprefill.speculator import Speculation


class SelectionMemo:
    """The most recently used selections of one draft, up to a bound; safe to use from threads.

    It lives and dies with the draft's process, so the draft's weights need not be in the key.
    """

    def __init__(self, entries: int) -> None:
        """Remember at most so many selections; 0 remembers none."""
        self._entries = entries
        self._lock = threading.Lock()
        self._memo: collections.OrderedDict[bytes, Speculation] = collections.OrderedDict()

    @staticmethod
    def key(prompt: Prompt, settings: SelectionSettings) -> bytes:
        """Digest everything that decides a selection."""
        digest = hashlib.blake2b(settings.model_dump_json().encode(), digest_size=32)
        for field in dataclasses.fields(prompt):
            value = getattr(prompt, field.name)
            array = None if value is None or isinstance(value, str) else np.asarray(value)
            # Name, kind and shape keep one field's bytes from being taken for another's.
            kind = (value,) if array is None else (array.dtype.str, array.shape)
            digest.update(f"\0{field.name}{kind}".encode())
            if array is not None:
                digest.update(np.ascontiguousarray(array).tobytes())
        return digest.digest()

    def get(self, key: bytes) -> Speculation | None:
        """Return the remembered speculation, at no draft time, or None."""
        with self._lock:
            if key not in self._memo:
                return None
            self._memo.move_to_end(key)
            return self._memo[key]

    def put(self, key: bytes, speculation: Speculation) -> None:
        """Remember what the draft took time for; a failure may not happen again."""
        if not speculation.draft_ms or speculation.draft_failed or not self._entries:
            return
        selection = dataclasses.replace(
            speculation.selection, reason=f"{speculation.selection.reason}; selection remembered"
        )
        with self._lock:
            self._memo[key] = Speculation(selection)
            self._memo.move_to_end(key)
            while len(self._memo) > self._entries:
                self._memo.popitem(last=False)
