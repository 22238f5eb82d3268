# SPDX-License-Identifier: Apache-2.0
"""What somebody who reaches the ports cannot do, on one server with TLS on gRPC."""

from __future__ import annotations

import base64
import json
import socket
import stat
import subprocess
import time
import urllib.request
from pathlib import Path

import psutil
import pytest
import tritonclient.grpc as grpc
from specprefill.admin_access import AdminAccess
from specprefill.run_state import FOLDER_VARIABLE
from tritonclient.utils import InferenceServerException

from tests.serving.conftest import post
from tests.serving.served import Served, wait_until

RESTRICTED = {
    "repository/index": {},
    "repository/models/target/unload": {},
    "systemsharedmemory/region/theirs/register": {"key": "/any", "offset": 0, "byte_size": 8},
    "cudasharedmemory/region/theirs/register": {"device_id": 0, "byte_size": 8},
    "trace/setting": {"trace_level": ["TIMESTAMPS"]},
    "models/target/trace/setting": {"trace_level": ["TIMESTAMPS"]},
    "logging": {"log_verbose_level": 9},
}


def certify(folder: Path, name: str) -> tuple[Path, Path]:
    """A key and a certificate that it signed itself, for the loopback address."""
    key, certificate = folder / f"{name}.key", folder / f"{name}.pem"
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost"
    command += " -addext subjectAltName=IP:127.0.0.1"
    subprocess.run(
        [*command.split(), "-keyout", str(key), "-out", str(certificate)],
        check=True,
        capture_output=True,
    )
    return key, certificate


@pytest.fixture(scope="module")
def certificates(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    certify(folder, "server")
    certify(folder, "stranger")
    return folder


@pytest.fixture(scope="module")
def served(tiny_llama, tmp_path_factory, certificates):
    arguments = [
        "--grpc-use-ssl=true",
        f"--grpc-server-cert={certificates / 'server.pem'}",
        f"--grpc-server-key={certificates / 'server.key'}",
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPECPREFILL__GATEWAY__ROOT_CERTIFICATES", str(certificates / "server.pem"))
        served = Served(tmp_path_factory.mktemp("served"), tiny_llama, arguments=arguments)
    yield served
    served.close()


@pytest.fixture
def client(served, certificates):
    certificate = str(certificates / "server.pem")
    with grpc.InferenceServerClient(
        served.grpc_url, ssl=True, root_certificates=certificate
    ) as client:
        yield client


def ask(served, **fields):
    return post(served, "models/specprefill/generate", {"max_tokens": 1, **fields})


def chat(served, content):
    body = {"model": "specprefill", "messages": [{"role": "user", "content": content}]}
    request = urllib.request.Request(
        f"{served.openai_url}/chat/completions",
        json.dumps({**body, "max_tokens": 1}).encode(),
        {"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.mark.parametrize("path", list(RESTRICTED))
def test_administration_needs_the_secret_over_http(served, path):
    for headers in ({}, AdminAccess().http_headers):
        status, body = post(served, path, RESTRICTED[path], headers)
        assert status == 403
        assert "This API is restricted" in body


def test_administration_needs_the_secret_over_grpc(served, client):
    calls = (
        client.get_model_repository_index,
        lambda **headers: client.load_model("target", **headers),
        lambda **headers: client.unload_model("target", **headers),
        lambda **headers: client.register_system_shared_memory("theirs", "/any", 8, **headers),
        lambda **headers: client.register_cuda_shared_memory("theirs", b"", 0, 8, **headers),
        lambda **headers: client.update_trace_settings(settings={"trace_rate": "1"}, **headers),
        lambda **headers: client.update_log_settings({"log_verbose_level": 9}, **headers),
    )
    for call in calls:
        for headers in ({}, AdminAccess().grpc_headers):
            with pytest.raises(InferenceServerException, match="This protocol is restricted"):
                call(headers=headers)
    index = client.get_model_repository_index(headers=served.admin.grpc_headers, as_json=True)
    assert {"name": "target", "version": "1", "state": "READY"} in index["models"]


def test_a_load_request_runs_no_code_without_the_secret(served, tmp_path):
    """With the secret it does: the code is in the request."""
    ran = tmp_path / "ran"
    code = f"open({str(ran)!r}, 'w')\nclass TritonPythonModel:\n    def execute(self, _): pass\n"
    config = {"backend": "python", "output": [{"name": "x", "data_type": "TYPE_BOOL", "dims": [1]}]}
    body = {
        "parameters": {
            "config": json.dumps(config),
            "file:1/model.py": base64.b64encode(code.encode()).decode(),
        }
    }
    assert post(served, "repository/models/theirs/load", body)[0] == 403
    time.sleep(0.5)
    assert not ran.exists()
    admin = served.admin.http_headers
    status, answer = post(served, "repository/models/theirs/load", body, admin)
    assert status == 200, answer
    assert ran.exists()
    assert post(served, "repository/models/theirs/unload", {}, admin)[0] == 200


def test_what_clients_and_load_tools_need_is_open(served, client):
    assert client.is_server_live()
    assert client.get_inference_statistics("target").model_stats
    assert client.get_model_metadata("specprefill").inputs
    assert client.get_model_config("specprefill").config.name == "specprefill"
    for path in ("health/live", "models/target/stats", "models/target/config", "models/target"):
        with urllib.request.urlopen(f"http://{served.http_url}/v2/{path}", timeout=10) as response:
            assert response.status == 200


def test_the_supervisor_has_the_secret(served):
    served.kill_model("preprocessing")
    wait_until(lambda: "in service again" in served.errors, 60)
    assert ask(served, text_input="Hi")[0] == 200
    assert "starting the server again" not in served.errors


def test_the_secret_is_nowhere_that_others_can_read(served):
    secret = served.admin.secret
    folder = Path(served.triton.environ()[FOLDER_VARIABLE])
    assert len(secret) == 64
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    holders = {path.name for path in folder.rglob("*") if path.is_file() if secret in read(path)}
    assert holders == {"admin-secret"}
    assert stat.S_IMODE((folder / "admin-secret").stat().st_mode) == 0o600
    for process in served.everything():
        assert secret not in " ".join(process.cmdline())
    assert "specprefill-admin=xxx" in " ".join(served.triton.cmdline())
    assert secret not in served.errors


def test_prompts_in_shared_memory_are_readable_to_the_servers_user_alone(served):
    assert served.regions()
    assert {stat.S_IMODE(region.stat().st_mode) for region in served.regions()} == {0o600}


def read(path: Path) -> str:
    return path.read_text(errors="replace")


def test_everything_listens_on_loopback_alone(served):
    listening = [
        (connection.laddr.ip.removeprefix("::ffff:"), connection.laddr.port)
        for process in served.everything()
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    ports = {port for _, port in listening}
    assert len(ports) == 4
    assert {address for address, _ in listening} == {"127.0.0.1"}
    for addresses in psutil.net_if_addrs().values():
        for address in addresses:
            if address.family == socket.AF_INET and not address.address.startswith("127."):
                for port in ports:
                    with pytest.raises(OSError, match="refused"):
                        socket.create_connection((address.address, port), timeout=2)


def test_a_prompt_that_names_a_file_is_only_text(served, tokenizer, tmp_path):
    file = tmp_path / "private.txt"
    file.write_text("word " * 500)
    for prompt in (str(file), f"file://{file}", f"@{file}"):
        status, body = ask(served, text_input=prompt, exclude_input_in_output=False)
        assert status == 200, body
        assert json.loads(body)["text_output"].startswith(prompt)
        assert json.loads(body)["prompt_tokens"] == len(tokenizer(prompt).input_ids)


def test_parts_that_are_no_text_are_refused(served, tmp_path):
    file = tmp_path / "private.txt"
    file.write_text("private")
    url = f"file://{file}"
    for part in (
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "image", "path": str(file)},
        {"type": "file", "file": {"file_id": url}},
    ):
        content = [{"type": "text", "text": "Read this."}, part]
        messages = json.dumps([{"role": "user", "content": content}])
        for status, body in (ask(served, messages=messages), chat(served, content)):
            assert status == 400
            assert "messages[0]" in body
            assert "content" in body


def test_grpc_speaks_tls_alone_and_the_gateway_checks_it(served, client, certificates):
    assert client.is_model_ready("specprefill")
    assert chat(served, "Hi")[0] == 200
    stranger = str(certificates / "stranger.pem")
    for options in ({}, {"ssl": True, "root_certificates": stranger}):
        with (
            grpc.InferenceServerClient(served.grpc_url, **options) as other,
            pytest.raises(InferenceServerException, match=r"UNAVAILABLE|failed to connect|SSL"),
        ):
            other.is_server_live()
