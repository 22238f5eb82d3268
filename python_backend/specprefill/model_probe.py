# SPDX-License-Identifier: Apache-2.0
"""Tells a model that no longer answers from one that is slow on a busy machine."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

_FAILURES = 5
_SECONDS = 20.0


class ModelProbe:
    """Asks one model again and again, one question at a time."""

    def __init__(self, ask: Callable[[], object], workers: ThreadPoolExecutor) -> None:
        """Ask nothing yet.

        Args:
            ask: asks the model and raises if it does not answer.
            workers: where to ask.
        """
        self._ask = ask
        self._workers = workers
        self._question: Future[object] | None = None
        self._failures = 0
        self._failing_since = 0.0

    def tick(self, now: float) -> bool:
        """Take the answer to the last question and ask the next.

        Args:
            now: seconds of a monotonic clock.

        Returns:
            Whether the model counts as dead: at least 5 questions in a row failed, for at least
            20 s.
        """
        if self._question is not None:
            if not self._question.done():
                return False
            if self._question.exception() is None:
                self._failures = 0
            else:
                self._failing_since = self._failing_since if self._failures else now
                self._failures += 1
        self._question = self._workers.submit(self._ask)
        return self._failures >= _FAILURES and now - self._failing_since >= _SECONDS
