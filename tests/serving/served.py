# SPDX-License-Identifier: Apache-2.0
"""`specprefill serve` as a process, and what its faults leave behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import yaml
from specprefill.admin_access import AdminAccess
from specprefill.client import stream
from specprefill.model_process import ModelProcess, model_processes
from specprefill.run_state import FOLDER_VARIABLE

CLI = Path(sys.executable).with_name("specprefill")


class Served:
    """A running `specprefill serve` with a tiny model.

    Attributes:
        http_url, grpc_url: host:port.
        openai_url: base URL of the gateway, or None.
    """

    def __init__(self, folder: Path, model: Path, *options: str, **server: Any) -> None:
        weights = {"model": str(model), "dtype": "float32"}
        values = {
            "target": weights,
            "draft": weights,
            "selection": {"min_prompt_tokens": 64, "scorer": "lookahead", "look_ahead": 64},
            "server": {"http_port": 0, "grpc_port": 0, "metrics_port": 0, **server},
            "gateway": {"port": 0},
            "gate": {"enabled": False},  # a tiny target never gains anything
        }
        config = folder / "serve.yaml"
        config.write_text(yaml.safe_dump(values))
        self._errors = folder / "stderr.txt"
        with self._errors.open("w") as errors:
            self.process = subprocess.Popen(
                [str(CLI), "serve", "--config", str(config), *options],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, "COLUMNS": "200"},
            )
        banner = ""
        for line in self.process.stdout or ():
            banner += line
            if "curl" in line:
                break
        else:
            raise AssertionError(banner + self.errors)
        self.http_url = re.search(r"HTTP +http://(\S+)", banner).group(1)
        self.grpc_url = re.search(r"gRPC +(\S+)", banner).group(1)
        self.openai_url = (re.search(r"OpenAI +(http\S+)", banner) or [None, None])[1]

    @property
    def errors(self) -> str:
        """What was reported so far."""
        return self._errors.read_text()

    @property
    def triton(self) -> psutil.Process:
        """The tritonserver's process."""
        children = psutil.Process(self.process.pid).children()
        (found,) = [child for child in children if child.name() == "tritonserver"]
        return found

    @property
    def admin(self) -> AdminAccess:
        """What the launcher left for those who load and unload by hand."""
        return AdminAccess.read(Path(self.triton.environ()[FOLDER_VARIABLE]))

    def models(self) -> dict[str, ModelProcess]:
        """Processes of the models."""
        return model_processes(self.triton.pid)

    def kill_model(self, model: str) -> float:
        """SIGKILL a model's process; return when."""
        os.kill(self.models()[model].pid, signal.SIGKILL)
        return time.monotonic()

    def everything(self) -> list[psutil.Process]:
        """All processes that run for it."""
        own = psutil.Process(self.process.pid)
        return [own, *own.children(recursive=True)]

    def regions(self) -> list[Path]:
        """Its shared-memory regions."""
        return list(Path("/dev/shm").glob(f"specprefill_{self.process.pid}_*"))

    def wait(self, seconds: float) -> int:
        """Wait for its end; return its exit status."""
        return self.process.wait(seconds)

    def close(self) -> None:
        """End it, however it is."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                for process in reversed(self.everything()):
                    process.kill()


class Answer(threading.Thread):
    """One request in a thread of its own.

    Attributes:
        pieces: responses so far.
        error: what it failed with, or None.
        ended: when it ended, or None.
    """

    def __init__(self, url: str, model: str = "specprefill", **fields: Any) -> None:
        super().__init__(daemon=True)
        self.pieces: list[Any] = []
        self.error: Exception | None = None
        self.ended: float | None = None
        self._stream = stream(url, model, **fields)
        self.start()

    def run(self) -> None:
        try:
            for piece in self._stream:
                self.pieces.append(piece)
        except Exception as error:
            self.error = error
        self.ended = time.monotonic()

    @property
    def outputs(self) -> dict[str, Any]:
        """Outputs of all pieces, merged."""
        return {name: value for piece in self.pieces for name, value in piece.outputs.items()}

    def wait_first(self, seconds: float = 30) -> None:
        wait_until(lambda: self.pieces or self.error, seconds)
        assert self.error is None, self.error


def wait_until(condition: Callable[[], Any], seconds: float) -> Any:
    """Wait until a condition holds; return its value."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.02)
