# SPDX-License-Identifier: Apache-2.0
"""Notices closed connections and deadlines while nothing is being sent."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import triton_python_backend_utils as pb_utils

_PERIOD_SECONDS = 0.05


class CancellationWatch:
    """Polls response senders; calls back once for each that was abandoned or is too late."""

    def __init__(self) -> None:
        """Start the watching thread."""
        self._changed = threading.Condition()
        self._watched: dict[int, tuple[Any, Callable[[], Any], int]] = {}
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="cancellation", daemon=True)
        self._thread.start()

    def watch(
        self, sender: Any, on_cancel: Callable[[], Any], deadline_ns: int = 0
    ) -> WatchedSender:
        """Watch a response sender.

        Args:
            sender: the response sender.
            on_cancel: called from the watching thread, once at most.
            deadline_ns: time of the monotonic clock at which the request counts as abandoned;
                0 for none.
        """
        with self._changed:
            self._watched[id(sender)] = (sender, on_cancel, deadline_ns)
            self._changed.notify()
        return WatchedSender(self, sender)

    def forget(self, sender: Any) -> None:
        """Stop watching; when this returns, the sender is not being polled."""
        with self._changed:
            self._watched.pop(id(sender), None)

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
                # Polled under the lock: a sender that has sent its last response is gone in
                # Triton's memory, and asking it for anything ends the whole server.
                now = time.monotonic_ns()
                abandoned = [
                    (sender, on_cancel)
                    for sender, on_cancel, deadline_ns in self._watched.values()
                    if 0 < deadline_ns <= now or sender.is_cancelled()
                ]
                for sender, _ in abandoned:
                    del self._watched[id(sender)]
            for _, on_cancel in abandoned:
                on_cancel()
            with self._changed:
                self._changed.wait_for(lambda: self._closed, _PERIOD_SECONDS)


class WatchedSender:
    """A response sender that is never asked about cancellation after its last response."""

    def __init__(self, watch: CancellationWatch, sender: Any) -> None:
        """Wrap a sender that `watch` watches."""
        self._watch = watch
        self._sender = sender

    def send(self, response: Any, final: bool = False) -> None:
        """Send a response; with `final`, the last one."""
        if final:
            self._watch.forget(self._sender)
        self._sender.send(response, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if final else 0)
