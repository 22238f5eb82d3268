# SPDX-License-Identifier: Apache-2.0
"""CancellationWatch: notices closed connections while nothing is being sent."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

_PERIOD_SECONDS = 0.05


class CancellationWatch:
    """Polls response senders and calls back once for each that the client abandoned."""

    def __init__(self) -> None:
        """Start the watching thread."""
        self._changed = threading.Condition()
        self._watched: dict[str, tuple[Any, Callable[[], Any]]] = {}
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="cancellation", daemon=True)
        self._thread.start()

    def add(self, key: str, sender: Any, on_cancel: Callable[[], Any]) -> None:
        """Watch a sender; `on_cancel` is called from the watching thread, at most once."""
        with self._changed:
            self._watched[key] = (sender, on_cancel)
            self._changed.notify()

    def remove(self, key: str) -> None:
        """Stop watching."""
        with self._changed:
            self._watched.pop(key, None)

    def close(self) -> None:
        """End the watching thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._watched and not self._closed:
                    self._changed.wait()
                if self._closed:
                    return
                watched = dict(self._watched)
            for key, (sender, on_cancel) in watched.items():
                if sender.is_cancelled():
                    self.remove(key)
                    on_cancel()
            with self._changed:
                if self._changed.wait_for(lambda: self._closed, _PERIOD_SECONDS):
                    return
