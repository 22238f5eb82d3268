# SPDX-License-Identifier: Apache-2.0
"""How long a deployment takes from its start until it is ready."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from rich.progress import Progress
from specprefill.client import stream
from specprefill.embedded_model import resolve_model
from specprefill.server import TritonServer
from specprefill.settings import Settings

from benchmarks.deployments import deployment
from benchmarks.options import Options
from benchmarks.prompts import messages_of_about
from benchmarks.results import spread
from benchmarks.rounds import run_rounds

TITLE = "Start-up"

_PROMPT_TOKENS = 600


def measure(options: Options, progress: Progress) -> dict[str, Any]:
    """Start the server again and again, with the model's files in the page cache."""
    settings = deployment(options)
    messages = messages_of_about(_PROMPT_TOKENS, resolve_model(settings.target.model))
    _start(settings, messages)  # the first reads the files
    samples = run_rounds(
        {"start": partial(_start, settings, messages)}, options.seconds, progress, "start-up"
    )["start"]
    return {name: spread(values) for name, values in samples.items()}


def _start(settings: Settings, messages: str) -> Mapping[str, float]:
    """Return the seconds until the server was ready, and those of its first answer."""
    started = time.perf_counter()
    with TritonServer(settings) as server:
        ready = time.perf_counter()
        for _ in stream(server.grpc_url, messages=messages, max_tokens=1, keep_rate=0.5):
            pass
        answered = time.perf_counter()
    return {"ready": ready - started, "first_answer": answered - ready}
