# SPDX-License-Identifier: Apache-2.0
"""A gateway in front of a stand-in, and a real one in front of the session's real Triton."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from openai_gateway.api_keys import ApiKeys
from openai_gateway.app import create_app
from specprefill.server import TritonServer
from specprefill.settings import CONFIG_VARIABLE, GatewaySettings, Settings, dump_settings
from starlette.testclient import TestClient

from tests.gateway.stand_in import StandIn

BODY_LIMIT = 4096


@pytest.fixture
def stand_in() -> StandIn:
    return StandIn()


@pytest.fixture
def http(stand_in: StandIn) -> TestClient:
    """A client of an application with the stand-in behind it."""
    settings = GatewaySettings(max_body_bytes=BODY_LIMIT)
    app = create_app(settings, stand_in, ApiKeys())
    return TestClient(app, raise_server_exceptions=False)


def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def gateway_process(
    settings: Settings, folder: Path, **environment: str
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Run `python -m openai_gateway`; yields its URL and the process."""
    port = free_port()
    gateway = settings.gateway.model_copy(update={"port": port})
    config = folder / "settings.yaml"
    dump_settings(settings.model_copy(update={"gateway": gateway}), config)
    process = subprocess.Popen(
        [sys.executable, "-m", "openai_gateway"],
        env={**os.environ, CONFIG_VARIABLE: str(config), **environment},
        stderr=subprocess.PIPE,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 30
        while True:
            try:
                urllib.request.urlopen(f"{url}/health", timeout=5).close()
                break
            except urllib.error.HTTPError:
                break
            except OSError:
                assert process.poll() is None, "the gateway ended"
                assert time.monotonic() < deadline, "the gateway does not listen"
                time.sleep(0.1)
        yield url, process
    finally:
        process.terminate()
        process.wait(timeout=30)
        process.stderr.close()


@pytest.fixture(scope="session")
def gateway(server: TritonServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a gateway in front of the real server."""
    with gateway_process(server.settings, tmp_path_factory.mktemp("gateway")) as (url, _):
        yield url
