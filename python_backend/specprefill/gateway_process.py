# SPDX-License-Identifier: Apache-2.0
"""The OpenAI gateway as a child process."""

from __future__ import annotations

import contextlib
import importlib.util
import socket
import subprocess
import sys
import time
from collections.abc import Callable

from specprefill.errors import ConfigurationError
from specprefill.restart_policy import RestartPolicy
from specprefill.server import configured_environment, die_with_parent
from specprefill.settings import Settings, dump_settings
from specprefill.workspace import Workspace

_MODULES = ("openai_gateway", "fastapi", "uvicorn", "prometheus_client")
_START_SECONDS = 60.0


def missing_module() -> str | None:
    """Return the name of a module that the gateway needs and that is not installed."""
    return next((name for name in _MODULES if importlib.util.find_spec(name) is None), None)


class GatewayProcess:
    """Runs the gateway, and starts it again when it ends by itself."""

    def __init__(self, settings: Settings, report: Callable[[str], None]) -> None:
        """Prepare; nothing runs before `start`.

        Args:
            settings: the deployment, all ports chosen.
            report: told what happens to the process.
        """
        self._settings = settings
        self._report = report
        self._workspace = Workspace()
        self._process: subprocess.Popen[bytes] | None = None
        self._policy = RestartPolicy(limit=None)
        self._since = 0.0  # when it was started, or is to be

    @property
    def url(self) -> str:
        """Base URL for OpenAI clients."""
        host = self._settings.gateway.host
        return f"http://{f'[{host}]' if ':' in host else host}:{self._settings.gateway.port}/v1"

    @property
    def pid(self) -> int | None:
        """Process id; None while none runs."""
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Start the process; `wait_listening` tells when it serves."""
        folder = self._workspace.path
        config = folder / "settings.yaml"
        dump_settings(self._settings, config)
        with (folder / "gateway.log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "openai_gateway"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=configured_environment(config),
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        self._since = time.monotonic()

    def wait_listening(self) -> None:
        """Wait until it accepts connections.

        Raises:
            ConfigurationError: it ended, or took too long; says what it wrote last.
        """
        address = (self._settings.gateway.host, self._settings.gateway.port)
        while self.is_alive() and time.monotonic() - self._since < _START_SECONDS:
            with contextlib.suppress(OSError), socket.create_connection(address, timeout=1):
                return
            time.sleep(0.05)
        raise ConfigurationError(f"the OpenAI gateway did not start: {self._last_words()}")

    def is_alive(self) -> bool:
        """Tell whether the process runs."""
        return self._process is not None and self._process.poll() is None

    def tick(self, now: float) -> None:
        """Start it again if it ended, after a pause that grows with every time.

        Args:
            now: `time.monotonic()`.
        """
        if self._process is not None and self._process.poll() is not None:
            delay = self._policy.crashed(now - self._since) or 0.0
            self._report(
                f"the OpenAI gateway ended by itself ({self._last_words()}); "
                f"starting it again in {delay:.0f} s"
            )
            self._process = None
            self._since = now + delay
        if self._process is None and now >= self._since:
            self.start()

    def terminate(self) -> None:
        """Ask it to end; answers that are running may end first."""
        if self._process is not None:
            self._process.terminate()

    def close(self) -> None:
        """End it at once and remove its files; safe to call twice."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        self._workspace.cleanup()

    def _last_words(self) -> str:
        log = self._workspace.path / "gateway.log"
        lines = log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it wrote nothing"
