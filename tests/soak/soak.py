# SPDX-License-Identifier: Apache-2.0
"""A server under a mix of good, bad, cancelled and late requests, above its capacity.

`make soak` runs it for ten minutes. Every request must end exactly once, in an answer or in a clear
error; afterwards the server is idle and ready, its memory has not grown, and a control prompt gets
the answer that it got before.
"""

from __future__ import annotations

import argparse
import collections
import json
import random
import sys
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field

import psutil
import tritonclient.grpc as grpc
from rich.console import Console
from rich.progress import Progress
from specprefill.cli import default_config
from specprefill.client import make_input
from specprefill.demo import document
from specprefill.server import TritonServer
from specprefill.settings import load_settings

# More clients than the server takes, so that its queue is full for most of the time.
CLIENTS = 14
LIMITS = {"max_running": 4, "max_queue": 4, "prefill_chunk_tokens": 256}
CONTROL = {"text_input": "The capital of France is", "max_tokens": 6}
PATIENCE_SECONDS = 180
# What the Python allocator, the memo and the caches may take between the two looks.
GROWTH_SHARE, GROWTH_BYTES = 0.10, 64 * 2**20


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of request.

    Attributes:
        weight: how often it is drawn.
        outcomes: every way in which it may end; `answer`, `busy`, or words of the error.
    """

    weight: int
    outcomes: tuple[str, ...]


KINDS = {
    "short": Kind(30, ("answer", "busy")),
    "long": Kind(8, ("answer", "busy")),
    "http": Kind(8, ("answer", "busy")),
    "http stream": Kind(8, ("answer", "busy")),
    "malformed": Kind(16, ("allowed:", "busy")),
    "cancelled": Kind(20, ("cancelled", "answer", "busy")),
    "cancelled long": Kind(8, ("cancelled", "answer", "busy")),
    "timed out": Kind(12, ("timeout_ms", "answer", "busy")),
}
MALFORMED = (
    {"text_input": ""},
    {"text_input": "Hi", "keep_rate": 3.0},
    {"text_input": "Hi", "max_tokens": 0},
    {"text_input": "Hi", "scorer": "nonsense"},
    {"messages": "[{"},
    {"text_input": "word " * 9000},
    {"text_input": "Hi", "beam_width": 3},
)


@dataclass(slots=True)
class Tally:
    """What happened, filled by all clients."""

    outcomes: collections.Counter[tuple[str, str]] = field(default_factory=collections.Counter)
    faults: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, kind: str, outcome: str) -> None:
        """Count an outcome; one that its kind does not allow is a fault."""
        with self.lock:
            allowed = KINDS[kind].outcomes
            name = next((word for word in allowed if word in outcome), None)
            if name is None:
                self.faults.append(f"{kind}: {outcome}")
            self.outcomes[kind, name or "FAULT"] += 1


def grpc_outcome(
    url: str, model: str, fields: dict, cancel_after: float | None, seconds: float
) -> str:
    """Send one request; return how it ended. More or less than one end is an error.

    Args:
        url: gRPC address.
        model: entry.
        fields: inputs.
        cancel_after: seconds after which the client goes away.
        seconds: how long to wait for the end.
    """
    finals: list[str] = []
    ended = threading.Event()

    def receive(result, error):
        if error is not None:
            finals.append("cancelled" if "cancelled" in str(error).lower() else str(error))
            ended.set()
        elif result.get_response().parameters["triton_final_response"].bool_param:
            finals.append("answer")
            ended.set()

    with grpc.InferenceServerClient(url) as client:
        client.start_stream(receive)
        inputs = [make_input(name, value) for name, value in {**fields, "stream": True}.items()]
        client.async_stream_infer(model, inputs, enable_empty_final_response=True)
        if cancel_after is not None and not ended.wait(cancel_after):
            client.stop_stream(cancel_requests=True)
            return "cancelled"
        if not ended.wait(seconds):
            client.stop_stream(cancel_requests=True)
            return f"no end within {seconds} s"
        client.stop_stream()  # waits for everything that still comes
    if len(finals) != 1:
        return f"{len(finals)} ends: {finals}"
    return "busy" if "busy" in finals[0] else finals[0]


def http_outcome(url: str, model: str, fields: dict, streamed: bool, seconds: float) -> str:
    """Send one request over HTTP; return how it ended."""
    way = "generate_stream" if streamed else "generate"
    request = urllib.request.Request(
        f"http://{url}/v2/models/{model}/{way}",
        json.dumps({**fields, "stream": streamed}).encode(),
        {"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=seconds) as response:
            body = response.read().decode()
    except urllib.error.HTTPError as error:
        body = error.read().decode()
        return "busy" if "busy" in body else body
    if "finish_reason" not in body:
        return "busy" if "busy" in body else f"no last piece in {body[-200:]!r}"
    return "answer"


def one_request(server: TritonServer, kind: str, draw: random.Random) -> str:
    """Send one request of a kind; return how it ended."""
    model = draw.choice(("specprefill", "specprefill", "ensemble"))
    number = draw.randrange(10**6)
    short = {"text_input": f"Item {number}. Once upon a time", "max_tokens": draw.randint(2, 24)}
    long = {"text_input": f"{number} {document(draw.randint(20, 80), seed=number)}"}
    long |= {"max_tokens": draw.randint(1, 8), "keep_rate": draw.choice((0.1, 0.3, 1.0))}
    endless = {**short, "max_tokens": 2000, "min_tokens": 2000}
    url = server.grpc_url
    if kind == "short":
        return grpc_outcome(url, model, short, None, PATIENCE_SECONDS)
    if kind == "long":
        return grpc_outcome(url, model, long, None, PATIENCE_SECONDS)
    if kind.startswith("http"):
        return http_outcome(server.http_url, model, short, "stream" in kind, PATIENCE_SECONDS)
    if kind == "malformed":
        return grpc_outcome(url, model, draw.choice(MALFORMED), None, PATIENCE_SECONDS)
    if kind == "timed out":
        fields = {**draw.choice((endless, long)), "timeout_ms": draw.randint(50, 3000)}
        return grpc_outcome(url, model, fields, None, PATIENCE_SECONDS)
    # A client that goes away is noticed through `specprefill` alone.
    fields = long if kind == "cancelled long" else endless
    return grpc_outcome(url, "specprefill", fields, draw.uniform(0.05, 2), PATIENCE_SECONDS)


def memory(server: TritonServer) -> int:
    """Resident bytes of tritonserver and its Python processes."""
    parent = psutil.Process(server.pid)
    return sum(p.memory_info().rss for p in (parent, *parent.children(recursive=True)))


def gauge(server: TritonServer, name: str) -> float:
    """Read one gauge of the metrics page."""
    with urllib.request.urlopen(server.metrics_url, timeout=10) as response:
        lines = response.read().decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))


def wait_until_idle(server: TritonServer, seconds: float) -> bool:
    """Wait until nothing runs or waits any more; False if it still does."""
    names = (
        "specprefill_running",
        "specprefill_waiting",
        "specprefill_cache_tokens",
        "specprefill_draft_requests",
    )
    deadline = time.monotonic() + seconds
    while any(gauge(server, name) for name in names):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.5)
    return True


def soak(server: TritonServer, seconds: float, seed: int, progress: Progress) -> Tally:
    """Load a server for so many seconds, look at it afterwards, and return what happened."""
    tally = Tally()
    control = http_answer(server)
    names, weights = list(KINDS), [kind.weight for kind in KINDS.values()]
    started = time.monotonic()
    memories: list[int] = []

    def client(number: int) -> None:
        draw = random.Random(seed * 1000 + number)
        while time.monotonic() - started < seconds:
            kind = draw.choices(names, weights)[0]
            try:
                outcome = one_request(server, kind, draw)
            except Exception as error:
                outcome = f"{type(error).__name__}: {error}"
            tally.note(kind, outcome)
            if outcome == "busy":
                time.sleep(draw.uniform(0.05, 0.3))

    clients = [threading.Thread(target=client, args=(n,), daemon=True) for n in range(CLIENTS)]
    for thread in clients:
        thread.start()
    task = progress.add_task("soak", total=seconds)
    while (elapsed := time.monotonic() - started) < seconds:
        progress.update(task, completed=elapsed)
        if not memories and elapsed > seconds * 0.4:
            memories.append(memory(server))
        time.sleep(0.5)
    progress.update(task, completed=seconds)
    for thread in clients:
        thread.join(PATIENCE_SECONDS + 30)
        if thread.is_alive():
            tally.faults.append("a client never got its answer")
    tally.faults += faults_afterwards(server, memories[0], control)
    return tally


def faults_afterwards(server: TritonServer, memory_before: int, control: str) -> list[str]:
    """Look at a server that nobody loads any more."""
    faults = []
    if not wait_until_idle(server, 60):
        faults.append("the server is not idle a minute after the last request")
    now = memory(server)
    if now > memory_before * (1 + GROWTH_SHARE) + GROWTH_BYTES:
        faults.append(f"memory grew from {memory_before >> 20} to {now >> 20} MiB")
    if not server.is_alive() or http_answer(server) != control:
        faults.append("the control prompt has another answer than before")
    return faults


def http_answer(server: TritonServer) -> str:
    """Return the answer to the control prompt."""
    request = urllib.request.Request(
        f"http://{server.http_url}/v2/models/specprefill/generate",
        json.dumps(CONTROL).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as response:
        return str(json.loads(response.read())["text_output"])


def main() -> int:
    """Run from the command line; the exit status tells whether everything held."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    console = Console()
    settings = load_settings(
        default_config(),
        {
            "server": {"http_port": 0, "grpc_port": 0, "metrics_port": 0},
            "target": LIMITS,
            "selection": {"min_prompt_tokens": 256},
            "gate": {"enabled": False},
        },
    )
    with TritonServer(settings) as server, Progress(console=console) as progress:
        tally = soak(server, arguments.seconds, arguments.seed, progress)
    for (kind, outcome), count in sorted(tally.outcomes.items()):
        console.print(f"{count:7d}  {kind}: {outcome}", highlight=False)
    for fault in tally.faults[:20]:
        console.print(f"[red]FAULT[/] {fault}", highlight=False)
    return 1 if tally.faults else 0


if __name__ == "__main__":
    sys.exit(main())
