# SPDX-License-Identifier: Apache-2.0
"""Spans: how long chosen functions take, without a line of timing in them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

# Class or module, and the name of the function in it.
Place = tuple[Any, str]


class Spans:
    """Collects start and end of every call of the functions that `record` wraps."""

    def __init__(self, device: str) -> None:
        """Start empty; on a GPU every span ends when the GPU has done its work."""
        self._wait = torch.cuda.synchronize if device == "cuda" else lambda: None
        self._spans: dict[str, list[tuple[float, float]]] = {}

    def clear(self) -> None:
        """Forget what was recorded."""
        self._spans.clear()

    def seconds(self, name: str) -> float:
        """Return the time spent in all calls."""
        return sum(end - start for start, end in self._spans.get(name, ()))

    def seconds_within(self, inner: str, outer: str) -> float:
        """Return the time of the inner calls that ran inside an outer one."""
        outers = self._spans.get(outer, ())
        return sum(
            end - start
            for start, end in self._spans.get(inner, ())
            if any(begin <= start and end <= stop for begin, stop in outers)
        )

    def end(self, name: str) -> float:
        """Return when the last call ended."""
        return self._spans[name][-1][1]

    @contextmanager
    def record(self, places: Mapping[str, Place]) -> Iterator[None]:
        """Wrap functions for the time of the block.

        Args:
            places: name of the span -> where the function is found by its callers.
        """
        originals = {place: getattr(*place) for place in places.values()}
        for name, place in places.items():
            setattr(*place, self._timed(name, originals[place]))
        try:
            yield
        finally:
            for place, original in originals.items():
                setattr(*place, original)

    def _timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            self._wait()
            started = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self._wait()
                self._spans.setdefault(name, []).append((started, time.perf_counter()))

        return timed
