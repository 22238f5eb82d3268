# SPDX-License-Identifier: Apache-2.0
"""Time and memory of scoring: our observer against the rule written with whole tensors.

Both get the same queries and keys of every layer and step and apply the paper's rule. The observer
takes one layer of one step at a time; the other keeps the attention of all layers, heads and steps
until it reduces them, as the rule is usually written. Each runs in a process of its own, whose peak
memory the kernel counts.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import psutil
from rich.progress import Progress

from benchmarks.options import ROOT, Options
from benchmarks.results import spread
from benchmarks.rounds import Cell, run_rounds

TITLE = "Scoring"

OBSERVER, WHOLE = "observer", "whole tensors"


@dataclass(frozen=True, slots=True)
class Case:
    """A draft and a prompt.

    Attributes:
        layers: layers whose attention counts.
        head_size: d.
        prompt_tokens: M.
        heads: query heads.
        kv_heads: key-value heads.
        steps: N.
    """

    layers: int
    head_size: int
    prompt_tokens: int
    heads: int = 32
    kv_heads: int = 8
    steps: int = 8

    @property
    def whole_bytes(self) -> int:
        """Memory of the whole-tensor version: the attention about three times in float32."""
        return 3 * 4 * self.layers * self.heads * self.steps * self.prompt_tokens


# The shapes of Llama-3.2-1B and Llama-3.1-8B.
_CASES = tuple(
    Case(layers, head_size, tokens)
    for layers, head_size in ((16, 64), (32, 128))
    for tokens in (4096, 16384, 65536)
)
_SMOKE_CASES = (Case(2, 16, 512, heads=4, kv_heads=2, steps=3),)


def measure(options: Options, progress: Progress) -> dict[str, Any]:
    """Run every case both ways, each in a process of its own."""
    cells: dict[str, Cell] = {}
    cases = _SMOKE_CASES if options.smoke else _CASES
    skipped = []
    for index, case in enumerate(cases):
        for way in (OBSERVER, WHOLE):
            name = f"{index} {way}"
            free = psutil.virtual_memory().available
            if way == WHOLE and options.device == "cpu" and case.whole_bytes > 0.8 * free:
                skipped.append(name)
                continue
            cells[name] = partial(_in_own_process, way, case, options.device)
    samples = run_rounds(cells, options.seconds, progress, "scoring")
    rows = []
    for index, case in enumerate(cases):
        row: dict[str, Any] = asdict(case)
        for way in (OBSERVER, WHOLE):
            name = f"{index} {way}"
            if name in skipped:
                row[way] = None
                continue
            row[way] = {key: spread(values) for key, values in samples[name].items()}
        rows.append(row)
    return {"rows": rows}


def _in_own_process(way: str, case: Case, device: str) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.scoring_worker", way, device]
    done = subprocess.run(
        [*command, json.dumps(asdict(case))], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"{way}, {case}: {done.stderr.strip()[-500:]}")
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result
