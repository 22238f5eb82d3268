# SPDX-License-Identifier: Apache-2.0
"""The gateway as a process: start, open streams at SIGTERM, bad settings, no Triton."""

import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import openai
import pytest
from specprefill.cli import default_config
from specprefill.settings import load_settings

from tests.gateway.conftest import free_port, gateway_process

LONG = {"specprefill": {"min_tokens": 3000}}


def settings(**sections):
    return load_settings(default_config(), sections, environment={})


def test_open_streams_end_whole_after_sigterm(server, tmp_path):
    with gateway_process(server.settings, tmp_path) as (url, process):
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0)
        stream = client.completions.create(
            model="specprefill",
            prompt="Once",
            max_tokens=60,
            stream=True,
            extra_body={"specprefill": {"min_tokens": 60}},
        )
        next(iter(stream))
        process.send_signal(signal.SIGTERM)
        chunks = list(stream)
        assert chunks[-1].choices[0].finish_reason == "length"
        assert process.wait(timeout=20) == 0
        with pytest.raises(openai.APIConnectionError):
            client.models.list()


def test_streams_beyond_the_drain_time_are_cut_off(server, tmp_path):
    short = server.settings.server.model_copy(update={"drain_seconds": 1})
    chosen = server.settings.model_copy(update={"server": short})
    with gateway_process(chosen, tmp_path) as (url, process):
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0)
        stream = client.completions.create(
            model="specprefill", prompt="Once", max_tokens=3000, stream=True, extra_body=LONG
        )
        next(iter(stream))
        reader = threading.Thread(target=_read_all, args=(stream,))
        reader.start()
        start = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 0
        assert 0.9 < time.monotonic() - start < 10
        reader.join(timeout=10)


def _read_all(stream):
    try:
        for _ in stream:
            pass
    except Exception:
        return


def test_keys_from_the_environment_open_the_process(server, tmp_path):
    with gateway_process(server.settings, tmp_path, SPECPREFILL_API_KEYS="k1,k2") as (url, process):
        good, bad = (
            openai.OpenAI(base_url=f"{url}/v1", api_key=key) for key in ("k2", "wrong-key")
        )
        assert good.models.list()
        with pytest.raises(openai.AuthenticationError):
            bad.models.list()
        process.terminate()
        log = process.stderr.read().decode()
    assert "k2" not in log
    assert "wrong-key" not in log


def test_without_triton_it_says_so(tmp_path):
    nowhere = settings(server={"grpc_port": free_port()})
    with gateway_process(nowhere, tmp_path) as (url, _):
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0)
        for stream in (False, True):
            with pytest.raises(openai.InternalServerError) as caught:
                client.completions.create(model="specprefill", prompt="Hi", stream=stream)
            assert caught.value.status_code == 503
            assert caught.value.code == "server_unavailable"
        with pytest.raises(urllib.error.HTTPError) as unhealthy:
            urllib.request.urlopen(f"{url}/health", timeout=10)
        assert unhealthy.value.code == 503


def run(**environment):
    return subprocess.run(
        [sys.executable, "-m", "openai_gateway"],
        env={"PATH": "/usr/bin", **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_bad_settings_are_one_line(tmp_path):
    missing = tmp_path / "missing"
    result = run(SPECPREFILL__GATEWAY__API_KEY_FILE=str(missing))
    assert result.returncode == 1
    assert f"gateway.api_key_file {missing} cannot be read" in result.stderr
    result = run(
        SPECPREFILL__GATEWAY__ROOT_CERTIFICATES=str(missing), SPECPREFILL__GATEWAY__PORT="0"
    )
    assert result.returncode == 1
    assert f"gateway.root_certificates {missing} cannot be read" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_taken_port_is_named(server):
    port = server.settings.server.http_port
    result = run(SPECPREFILL__GATEWAY__PORT=str(port))
    assert result.returncode == 1
    assert f"gateway.port: 127.0.0.1:{port} cannot be bound" in result.stderr


def test_the_command_serves_any_triton(server):
    process = subprocess.Popen(
        [
            Path(sys.executable).with_name("specprefill"),
            *("openai", "--url", server.grpc_url, "--port", "0", "--model-name", "mine"),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        line = process.stdout.readline()
        endpoint = line.split()[3].rstrip(",")
        client = openai.OpenAI(base_url=endpoint, api_key="any", max_retries=0)
        assert [model.id for model in client.models.list()] == ["mine"]
        answer = client.completions.create(
            model="mine", prompt="The capital of France is", temperature=0, max_tokens=3
        )
        assert answer.choices[0].text.startswith(" Paris")
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
