# SPDX-License-Identifier: Apache-2.0
"""Two ranks under mpirun against one rank."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
from specprefill.trtllm_engine.mpi import without_mpi_variables

from gpu_check.bench import Bench
from gpu_check.deployments import make_small_deployment, pruned_positions
from gpu_check.registry import Check, repository_root

_PROMPT = 1000
_RANKS = 2


def two_ranks(bench: Bench) -> None:
    """Build engines for two GPUs, run them under mpirun, and let Hugging Face judge the answer."""
    deployment = make_small_deployment(bench, _RANKS)
    positions = pruned_positions(_PROMPT)
    prompt = deployment.prompt(_PROMPT)[positions]
    folder = bench.new_folder()
    task = {
        "settings": deployment.settings.model_dump(mode="json"),
        "token_ids": prompt.tolist(),
        "position_ids": positions.tolist(),
    }
    (folder / "task.json").write_text(json.dumps(task))
    worker = [sys.executable, "-m", "gpu_check.parallel_worker", str(folder)]
    finished = subprocess.run(
        ["mpirun", "--allow-run-as-root", "-n", str(_RANKS), *worker],
        cwd=repository_root(),
        # TensorRT-LLM has started MPI in this process, which mpirun must not take for its parent.
        env=without_mpi_variables(os.environ),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=900,
    )
    tail = "; ".join(finished.stdout.splitlines()[-5:])
    bench.require(finished.returncode == 0, f"mpirun ended with {finished.returncode}: {tail}")
    answer = json.loads((folder / "answer.json").read_text())
    tokens = np.array(answer["tokens"], dtype=np.int32)
    judgement = deployment.reference(bench).judge(prompt, positions, tokens, _PROMPT)
    error = float(np.abs(np.array(answer["log_probs"]) - judgement.log_probs).max())
    bench.note("log probability error", error)
    bench.note("largest regret", judgement.regret)
    bench.require(
        max(error, judgement.regret) <= deployment.tolerance, "two ranks answer something else"
    )


CHECKS = [
    Check(
        "two ranks",
        "tensor parallelism",
        "tensorrt",
        "a pruned prompt's log probabilities equal Hugging Face's with tp_size 2",
        ("cuda", "two GPUs", "tensorrt_llm", "plugin", "mpirun"),
        two_ranks,
    )
]
