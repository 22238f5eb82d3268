# SPDX-License-Identifier: Apache-2.0
"""Bodies of checks that end in every way; a module of its own, so that processes start fast."""

from __future__ import annotations

import os
import time

from gpu_check.bench import Bench, CheckSkippedError


def passing(bench: Bench) -> None:
    bench.note("speed", 1.23456)


def failing(bench: Bench) -> None:
    bench.note("error", 3)
    bench.require(False, "the error is too large")


def raising(bench: Bench) -> None:
    raise RuntimeError("no such thing")


def skipping(bench: Bench) -> None:
    raise CheckSkippedError("it does not fit")


def dying(bench: Bench) -> None:
    os._exit(9)


def hanging(bench: Bench) -> None:
    time.sleep(60)
