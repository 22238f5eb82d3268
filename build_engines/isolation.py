# SPDX-License-Identifier: Apache-2.0
"""Runs a step in a process of its own.

A step that quantises or builds leaves GPU and host memory behind that Python cannot give back, and
the next one needs it; and a crash of native code must not take the steps after it along.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from specprefill.errors import EngineError

Isolation = Callable[..., None]


def run_in_own_process(function: Callable[..., Any], *arguments: Any) -> None:
    """Call a function in a fresh process and wait for it.

    Args:
        function: a function of a module's top level.
        arguments: what it is called with; must be picklable.

    Raises:
        EngineError: the process died.
        SpecPrefillError: what the function raised.
    """
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=1, mp_context=context) as pool:
        try:
            pool.submit(function, *arguments).result()
        except BrokenProcessPool as error:
            raise EngineError(
                f"the process that ran {function.__name__} died; the lines above and the kernel's "
                "log (out of memory?) say why"
            ) from error
