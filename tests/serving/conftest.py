# SPDX-License-Identifier: Apache-2.0
"""How the tests configure and ask a real tritonserver."""

from __future__ import annotations

import json
import urllib.error
import urllib.request

from specprefill.cli import default_config
from specprefill.server import TritonServer
from specprefill.settings import load_settings

FREE_PORTS = {"http_port": 0, "grpc_port": 0, "metrics_port": 0}


def settings(**sections):
    # Whether pruning pays on a busy machine must not decide what a test sees.
    overrides = {"server": FREE_PORTS, "gate": {"enabled": False}, **sections}
    return load_settings(default_config(), overrides, environment={})


def post(
    server: TritonServer,
    path: str,
    body: dict | str | bytes,
    headers: dict[str, str] | None = None,
) -> tuple[int, str]:
    """POST JSON; return status and body, also of an error."""
    data = json.dumps(body) if isinstance(body, dict) else body
    data = data.encode() if isinstance(data, str) else data
    request = urllib.request.Request(
        f"http://{server.http_url}/v2/{path}",
        data,
        {"Content-Type": "application/json", **(headers or {})},
    )
    try:
        with urllib.request.urlopen(request, timeout=120) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def generate(server: TritonServer, model: str, **fields) -> dict:
    status, body = post(server, f"models/{model}/generate", fields)
    assert status == 200, body
    return json.loads(body)


def generate_stream(server: TritonServer, model: str, **fields) -> list[dict]:
    fields = {**fields, "stream": True}
    status, body = post(server, f"models/{model}/generate_stream", fields)
    assert status == 200, body
    return [json.loads(line[6:]) for line in body.splitlines() if line.startswith("data: ")]


def metric(server: TritonServer, name: str) -> float:
    """Sum of a metric over its labels."""
    with urllib.request.urlopen(server.metrics_url, timeout=10) as response:
        lines = response.read().decode().splitlines()
    values = [
        float(line.rsplit(" ", 1)[1]) for line in lines if line.split("{")[0].split(" ")[0] == name
    ]
    return sum(values)
