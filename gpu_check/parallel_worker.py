# SPDX-License-Identifier: Apache-2.0
"""One rank of the check of two ranks; started by mpirun."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from specprefill.settings import Settings
from specprefill.target.trtllm_target import TrtllmTarget

from gpu_check.deployments import ask


def main() -> None:
    """Run one rank; rank 0 answers task.json of the folder that the command line names."""
    folder = Path(sys.argv[1])
    task = json.loads((folder / "task.json").read_text())
    settings = Settings.model_validate(task["settings"])
    target = TrtllmTarget(settings.target.model, settings.target, settings.tensorrt_llm)
    if target.takes_requests:
        tokens = np.array(task["token_ids"], dtype=np.int32)
        positions = np.array(task["position_ids"], dtype=np.int32)
        answer = ask(target, tokens, positions, 32)
        values = {"tokens": answer.tokens.tolist(), "log_probs": answer.log_probs.tolist()}
        (folder / "answer.json").write_text(json.dumps(values))
    target.close()


if __name__ == "__main__":
    main()
