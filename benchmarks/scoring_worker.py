# SPDX-License-Identifier: Apache-2.0
"""One scoring in a process of its own; prints seconds, peak bytes and a checksum as JSON."""

from __future__ import annotations

import ctypes
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from specprefill.observer import AttentionObserver
from specprefill.scoring import make_rule
from specprefill.settings import SelectionSettings

from benchmarks.scoring import OBSERVER, Case

_KERNEL = 13


class Draft:
    """Queries and keys of a draft that was never run: random, the same for both ways.

    All layers share one tensor of keys, which both ways only read; a real draft's keys lie in its
    cache and belong to neither.
    """

    def __init__(self, case: Case, device: str) -> None:
        torch.manual_seed(0)
        self.case = case
        self.scaling = case.head_size**-0.5
        size = (case.kv_heads, case.prompt_tokens, case.head_size)
        self.keys = torch.randn(size, device=device)
        size = (case.layers, case.steps, case.heads, 1, case.head_size)
        self.queries = torch.randn(size, device=device)


def with_observer(draft: Draft) -> torch.Tensor:
    """Score layer by layer and step by step: float32 [M]."""
    case = draft.case
    settings = SelectionSettings(scorer="lookahead", look_ahead=case.steps, pool_kernel=_KERNEL)
    observer = AttentionObserver(make_rule(settings), case.prompt_tokens)
    for step in range(case.steps):
        for layer in range(case.layers):
            observer.update(layer, step, draft.queries[layer, step], draft.keys, draft.scaling)
    return observer.importance()


def with_whole_tensors(draft: Draft) -> torch.Tensor:
    """Score after the last step, all layers, heads and steps at once: float32 [M]."""
    case = draft.case
    group = case.heads // case.kv_heads
    logits = []
    for layer in range(case.layers):
        queries = draft.queries[layer, :, :, 0]  # [N, heads, d]
        grouped = queries.transpose(0, 1).reshape(case.kv_heads, group * case.steps, -1)
        logits.append(grouped @ draft.keys.transpose(1, 2) * draft.scaling)
    attention = torch.stack(logits).softmax(dim=-1)  # [layers, kv_heads, group*N, M]
    attention = attention.reshape(-1, case.steps, case.prompt_tokens)  # [layers*heads, N, M]
    pooled = torch.nn.functional.avg_pool1d(attention, _KERNEL, stride=1, padding=_KERNEL // 2)
    return pooled.amax(dim=0).mean(dim=0)


@torch.inference_mode()
def run(way: str, case: Case, device: str) -> dict[str, float]:
    """Measure one way of scoring one case."""
    score: Callable[[Draft], torch.Tensor]
    score = with_observer if way == OBSERVER else with_whole_tensors
    cuda = device == "cuda"
    score(Draft(Case(2, case.head_size, 1024, case.heads, case.kv_heads, 2), device))  # warm up
    draft = Draft(case, device)
    if cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() if cuda else _forget_peak()
    started = time.perf_counter()
    importance = score(draft)
    if cuda:
        torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    after = torch.cuda.max_memory_allocated() if cuda else _memory("VmHWM")
    return {
        "seconds": seconds,
        "peak_bytes": float(after - before),
        "checksum": float(importance.double().sum()),
    }


def _memory(field: str) -> int:
    """Return a field of this process's status in bytes: VmRSS now, VmHWM at its peak."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"this kernel does not report {field}")


def _forget_peak() -> int:
    """Give free memory back, make the present memory the peak, and return it in bytes."""
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return _memory("VmRSS")


if __name__ == "__main__":
    way, device, case = sys.argv[1:]
    sys.stdout.write(json.dumps(run(way, Case(**json.loads(case)), device)) + "\n")
