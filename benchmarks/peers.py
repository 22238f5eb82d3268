# SPDX-License-Identifier: Apache-2.0
"""Dense TTFT of other engines with the same weights, beside our dense and sparse TTFT.

Every engine gets the same token ids and runs in a process of its own, in the same rounds. llama.cpp
and OpenVINO GenAI read the 4-bit GGUF file that the embedded model is unpacked from and may compute
in fewer bits; transformers computes in the format that we compute in.
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
from rich.progress import Progress
from specprefill.embedded_model import gguf_file, resolve_model
from specprefill.errors import ConfigurationError
from specprefill.pipeline import Pipeline
from specprefill.torch_engine.processor import resolve_dtype

from benchmarks.deployments import deployment, pipeline, tiny_model
from benchmarks.first_token import in_process
from benchmarks.options import ROOT, SMOKE_TOKENS, Options
from benchmarks.prompts import messages_of_about
from benchmarks.results import spread
from benchmarks.rounds import Cell, run_rounds

TITLE = "Beside other engines"

NAMES = ("transformers", "llama.cpp", "OpenVINO GenAI")
INSTALL = (
    "python3 -m venv build/peers && build/peers/bin/pip install openvino-genai llama-cpp-python, "
    "then --peer-python build/peers/bin/python"
)

_LENGTHS = (1000, 4000)
_WORKER = Path(__file__).with_name("peer_worker.py")


class Peer:
    """One engine in its own process, asked for one prefill at a time."""

    def __init__(self, name: str, python: Path, model: Path, dtype: str) -> None:
        """Start the process and wait until the model is loaded.

        Raises:
            RuntimeError: the engine is not installed, or could not load the model.
        """
        command = [str(python), str(_WORKER), name, str(model), str(torch.get_num_threads()), dtype]
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.version = str(self._answer()["version"])

    def seconds(self, token_ids: list[int]) -> float:
        """Return the time to the first token of a prompt."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(token_ids) + "\n")
        self._process.stdin.flush()
        return float(self._answer()["seconds"])

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        # Engines print what they like; answers begin with a mark.
        for line in self._process.stdout:
            if line.startswith("PEER "):
                answer: dict[str, Any] = json.loads(line[5:])
                return answer
        raise RuntimeError(self._process.stderr.read().strip().splitlines()[-1])

    def __enter__(self) -> Peer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()


def measure(options: Options, progress: Progress) -> dict[str, Any]:
    """Measure every peer that is installed, and say which are not.

    Raises:
        ConfigurationError: the device is not the CPU.
    """
    if options.device != "cpu":
        raise ConfigurationError("peers: --device: other engines are measured on the CPU only")
    settings = deployment(options)
    folder = resolve_model(settings.target.model)
    dtype = resolve_dtype(settings.target.dtype, settings.target.device)
    missing: dict[str, str] = {}
    peers: dict[str, Peer] = {}
    with ExitStack() as loaded:
        local = loaded.enter_context(pipeline(settings))
        for name in NAMES:
            own = name == "transformers"
            python = Path(sys.executable) if own else options.peer_python
            if python is None:
                missing[name] = f"no --peer-python given; {INSTALL}"
                continue
            if options.smoke and own:
                model = tiny_model(options.output)
            else:
                model = folder if own else gguf_file()
            try:
                peers[name] = loaded.enter_context(
                    Peer(name, python, model, str(dtype).removeprefix("torch."))
                )
            except (RuntimeError, OSError) as error:
                missing[name] = f"{error}; {INSTALL}"
        cells: dict[str, Cell] = {}
        lengths = (SMOKE_TOKENS,) if options.smoke else _LENGTHS
        for length in lengths:
            messages = messages_of_about(length, folder)
            ids = _token_ids(local, messages)
            cells[f"{length} dense"] = partial(in_process, local, messages, 1.0)
            cells[f"{length} sparse"] = partial(
                in_process, local, messages, settings.selection.keep_rate
            )
            for name, peer in peers.items():
                cells[f"{length} {name}"] = partial(_theirs, peer, ids)
        samples = run_rounds(cells, options.seconds, progress, "peers")
    rows = []
    for length in lengths:
        engines = {name: spread(samples[f"{length} {name}"]["ttft"]) for name in peers}
        rows.append(
            {
                "prompt_tokens": int(samples[f"{length} dense"]["prompt_tokens"][0]),
                "kept_tokens": int(samples[f"{length} sparse"]["kept_tokens"][0]),
                "dense": spread(samples[f"{length} dense"]["ttft"]),
                "sparse": spread(samples[f"{length} sparse"]["ttft"]),
                "peers": engines,
            }
        )
    return {
        "dtype": str(dtype).removeprefix("torch."),
        "versions": {name: peer.version for name, peer in peers.items()},
        "missing": missing,
        "rows": rows,
    }


def _token_ids(local: Pipeline, messages: str) -> np.ndarray[Any, Any]:
    generation = local.start(
        messages=messages, selection={"keep_rate": 1.0}, sampling={"max_tokens": 1}
    )
    for _ in generation.pieces:
        pass
    return generation.prompt.token_ids


def _theirs(peer: Peer, ids: np.ndarray[Any, Any]) -> dict[str, float]:
    return {"ttft": peer.seconds(ids.tolist())}
