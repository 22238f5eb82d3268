# SPDX-License-Identifier: Apache-2.0
"""A server in the test's own event loop, with one slot and a queue."""

import asyncio
import time

from load_generator.endpoint import BusyError, Chunk


class FakeEndpoint:
    """Serves one request at a time, each for `service_seconds`; refuses beyond `max_waiting`."""

    def __init__(self, service_seconds=0.02, max_waiting=10**6, tokens=3):
        self.service_seconds = service_seconds
        self.max_waiting = max_waiting
        self.tokens = tokens
        self.arrived = []
        self.prompts = []
        self.cancelled = 0
        self._waiting = 0

    def describe(self):
        return {"kind": "fake"}

    def check(self, query):
        pass

    async def __aenter__(self):
        self._slot = asyncio.Semaphore(1)
        return self

    async def __aexit__(self, *exception):
        pass

    async def ask(self, query):
        self.arrived.append(time.perf_counter())
        self.prompts.append(query.prompt or query.messages[0]["content"])
        if self._waiting > self.max_waiting:
            raise BusyError("server busy")
        self._waiting += 1
        finished = False
        try:
            async with self._slot:
                await asyncio.sleep(self.service_seconds)
                for number in range(self.tokens):
                    yield Chunk(f"{number}", 1, {"kept_tokens": 5})
            finished = True
        finally:
            self._waiting -= 1
            self.cancelled += not finished
