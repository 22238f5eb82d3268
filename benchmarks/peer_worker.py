# SPDX-License-Identifier: Apache-2.0
"""One other engine in its own interpreter; needs that engine and nothing of this project.

Arguments: engine, model, threads, dtype. Reads one JSON list of token ids per line and answers with
the seconds to the first token.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

Prefill = Callable[[list[int]], None]


def transformers_engine(model: str, threads: int, dtype: str) -> tuple[Prefill, str]:
    """Load the model as transformers does by default, with PyTorch's own attention."""
    import torch
    import transformers

    torch.set_num_threads(threads)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(
        model, dtype=getattr(torch, dtype), local_files_only=True
    ).eval()

    @torch.inference_mode()
    def prefill(ids: list[int]) -> None:
        output = loaded(torch.tensor([ids]), use_cache=True, logits_to_keep=1)
        int(output.logits[0, -1].argmax())

    return prefill, f"{transformers.__version__}, {dtype}"


def llama_cpp_engine(model: str, threads: int, _dtype: str) -> tuple[Prefill, str]:
    """Load the GGUF file with llama.cpp."""
    import llama_cpp

    loaded = llama_cpp.Llama(
        model, n_ctx=8192, n_batch=512, n_threads=threads, n_threads_batch=threads, verbose=False
    )

    def prefill(ids: list[int]) -> None:
        loaded.reset()
        loaded.eval(ids)
        loaded.sample(temp=0.0)

    return prefill, f"llama-cpp-python {llama_cpp.__version__}, Q4_1"


def openvino_engine(model: str, threads: int, _dtype: str) -> tuple[Prefill, str]:
    """Load the GGUF file with OpenVINO GenAI, without its cache of prefixes: prompts come again."""
    import numpy as np
    import openvino
    import openvino_genai

    scheduler = openvino_genai.SchedulerConfig()
    scheduler.enable_prefix_caching = False
    scheduler.max_num_batched_tokens = 8192
    loaded = openvino_genai.LLMPipeline(
        model, "CPU", scheduler_config=scheduler, INFERENCE_NUM_THREADS=threads
    )
    config = openvino_genai.GenerationConfig(max_new_tokens=1)

    def prefill(ids: list[int]) -> None:
        tokens = openvino.Tensor(np.asarray([ids], dtype=np.int64))
        mask = openvino.Tensor(np.ones((1, len(ids)), dtype=np.int64))
        loaded.generate(openvino_genai.TokenizedInputs(tokens, mask), config)

    return prefill, f"{openvino_genai.__version__}, from Q4_1"


ENGINES: dict[str, Callable[[str, int, str], tuple[Prefill, str]]] = {
    "transformers": transformers_engine,
    "llama.cpp": llama_cpp_engine,
    "OpenVINO GenAI": openvino_engine,
}


def main() -> None:
    """Load one engine, run it once, and answer until the input ends."""
    name, model, threads, dtype = sys.argv[1:]
    prefill, version = ENGINES[name](model, int(threads), dtype)
    prefill(list(range(100, 356)))
    answer(version=version)
    for line in sys.stdin:
        ids = json.loads(line)
        started = time.perf_counter()
        prefill(ids)
        answer(seconds=time.perf_counter() - started)


def answer(**values: Any) -> None:
    """Write one answer where the engine's own output cannot be taken for it."""
    sys.stdout.write(f"\nPEER {json.dumps(values)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
