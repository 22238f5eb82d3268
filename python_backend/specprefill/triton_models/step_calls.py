# SPDX-License-Identifier: Apache-2.0
"""Calls from one model to another that end when the other one's process dies."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from typing import TypeVar

from specprefill.errors import StepUnavailableError
from specprefill.model_process import ModelProcess, model_processes

_CHECK_SECONDS = 0.25
Result = TypeVar("Result")


class StepCalls:
    """Runs blocking calls to the steps, and gives one up whose step is no longer there.

    Triton 2.51 never answers a call to a Python process that dies meanwhile. A thread that is
    stuck in such a call stays so for as long as this process lives, so every call gets a thread of
    its own, and nothing waits for that thread alone.
    """

    def __init__(self, own_model: str) -> None:
        """Find the processes of the models beside `own_model`, which runs in this one."""
        self._processes = model_processes(os.getppid())
        # Where /proc does not show this process among its siblings, it tells nothing about them.
        own = self._processes.get(own_model)
        self._knows_processes = own is not None and own.pid == os.getpid()

    def run(self, model: str, call: Callable[[], Result]) -> Result:
        """Return what `call`, which calls `model`, returns or raises.

        Raises:
            StepUnavailableError: the model's process is dead, or died during the call. The call
                may still come to its end later; its result is dropped.
        """
        process = self._process(model)
        outcome: queue.SimpleQueue[tuple[Result | None, BaseException | None]] = queue.SimpleQueue()

        def work() -> None:
            try:
                outcome.put((call(), None))
            except BaseException as error:
                outcome.put((None, error))

        # A daemon: the interpreter's end must not wait for one that is stuck.
        threading.Thread(target=work, name=f"call-{model}", daemon=True).start()
        dead = False
        while True:
            try:
                result, error = outcome.get(timeout=_CHECK_SECONDS)
            except queue.Empty:
                # What a process sent before it died may still be on its way: look once more.
                if dead:
                    raise StepUnavailableError(model) from None
                dead = process is not None and not process.is_alive()
                continue
            if error is not None:
                raise error
            return result  # type: ignore[return-value]

    def _process(self, model: str) -> ModelProcess | None:
        """Return the model's process, None if that cannot be known here."""
        if not self._knows_processes:
            return None
        process = self._processes.get(model)
        if process is None or not process.is_alive():
            self._processes = model_processes(os.getppid())
            process = self._processes.get(model)
        if process is None:
            raise StepUnavailableError(model)
        return process
