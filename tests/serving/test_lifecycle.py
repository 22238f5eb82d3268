# SPDX-License-Identifier: Apache-2.0
"""Starting, refusing to start, and leaving nothing behind."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import psutil
import pytest
from specprefill.errors import ConfigurationError
from specprefill.run_state import FOLDER_VARIABLE
from specprefill.server import TritonServer, find_installation, remove_stale_shared_memory
from specprefill.workspace import remove_stale_workspaces
from transformers import AutoTokenizer

from tests.serving.conftest import generate, settings

CLI = Path(sys.executable).with_name("specprefill")


def processes(group):
    """Processes of a server's group."""
    return [p.pid for p in psutil.process_iter() if _group(p.pid) == group]


def regions(prefix):
    """Shared-memory regions whose names begin so."""
    return list(Path("/dev/shm").glob(f"{prefix}*"))


def _group(pid):
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


@pytest.fixture
def tiny(tiny_llama):
    """A deployment that loads in seconds."""
    model = {"model": str(tiny_llama), "dtype": "float32"}
    return settings(target=model, draft={**model, "layers": 4, "score_layers": [1, 3]})


def test_stopping_leaves_no_process_and_no_shared_memory(tiny):
    server = TritonServer(tiny)
    server.start()
    pid = server.pid
    assert generate(server, "ensemble", text_input="Hi", max_tokens=2)["text_output"]
    assert processes(pid)
    assert regions(server.shared_memory_prefix)
    log = server.log_path
    server.stop()
    server.stop()
    assert processes(pid) == []
    assert regions(server.shared_memory_prefix) == []
    assert not log.exists()


def test_a_killed_server_leaves_nothing_after_stop(tiny):
    server = TritonServer(tiny)
    server.start()
    pid = server.pid
    os.kill(pid, signal.SIGKILL)
    while server.is_alive():
        time.sleep(0.05)
    assert processes(pid), "Triton's Python processes outlive it; otherwise this tests nothing"
    assert regions(server.shared_memory_prefix)
    server.stop()
    assert processes(pid) == []
    assert regions(server.shared_memory_prefix) == []


def test_a_dead_draft_process_means_dense(tiny):
    """Through `specprefill`, also without the supervisor that would start it again."""
    prompt = " ".join(f"word{i}" for i in range(400))
    with TritonServer(tiny) as server:
        fields = {"text_input": prompt, "max_tokens": 3, "keep_rate": 0.2}
        assert generate(server, "specprefill", **fields)["active"] is True
        (draft,) = [
            pid for pid in processes(server.pid) if "model_repository/draft" in command_of(pid)
        ]
        os.kill(draft, signal.SIGKILL)
        answer = generate(server, "specprefill", **fields)
        assert answer["active"] is False
        assert answer["reason"].startswith("dense: the draft step failed")
        assert answer["kept_tokens"] == answer["prompt_tokens"]


def command_of(pid):
    return " ".join(psutil.Process(pid).cmdline())


def test_a_killed_launcher_takes_the_server_with_it(tiny_llama, tmp_path):
    config = tmp_path / "tiny.yaml"
    model = f"{{model: {tiny_llama}, dtype: float32}}"
    config.write_text(f"target: {model}\ndraft: {model}\n")
    command = [str(CLI), "serve", "--config", str(config)]
    for port in ("--http-port", "--grpc-port", "--metrics-port", "--openai-port"):
        command += [port, "0"]
    launcher = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    wait_for_banner(launcher)
    (server,) = [p for p in psutil.Process(launcher.pid).children() if "triton" in p.name()]
    workspace = Path(server.environ()[FOLDER_VARIABLE])
    launcher.kill()
    launcher.wait()
    server.wait(timeout=30)
    # What a launcher that was killed leaves goes with the next start.
    deadline = time.monotonic() + 20
    while processes(server.pid) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert workspace.exists()
    remove_stale_shared_memory()
    remove_stale_workspaces()
    assert processes(server.pid) == []
    assert not workspace.exists()
    assert regions(f"specprefill_{launcher.pid}_") == []


def wait_for_banner(process):
    lines = []
    for line in process.stdout:
        lines.append(line)
        if "generate" in line:
            return "".join(lines)
    raise AssertionError("".join(lines))


def test_serve_prints_a_banner_that_works_and_ends_on_ctrl_c(tiny_llama, tmp_path):
    config = tmp_path / "tiny.yaml"
    model = f"{{model: {tiny_llama}, dtype: float32}}"
    config.write_text(f"target: {model}\ndraft: {model}\n")
    command = [str(CLI), "serve", "--config", str(config), "--http-port", "0"]
    command += ["--grpc-port", "0", "--metrics-port", "0", "--openai-port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        banner = wait_for_banner(process)
        url = re.search(r"http://127\.0\.0\.1:\d+", banner).group()
        grpc_url = re.search(r"gRPC +(\S+)", banner).group(1)
        with urllib.request.urlopen(f"{url}/v2/health/ready", timeout=5) as response:
            assert response.status == 200
        (line,) = [line for line in banner.splitlines() if line.startswith("curl")]
        answer = subprocess.run(line, shell=True, capture_output=True, text=True, check=True)
        assert '"text_output"' in answer.stdout
        told = subprocess.run(
            [str(CLI), "generate", "-", "--url", grpc_url, "--max-tokens", "3"],
            input="Hello there",
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        assert told.stdout.strip()
        assert "dense" in told.stderr
        refused = subprocess.run(
            [str(CLI), "generate", "Hi", "--url", grpc_url, "--keep-rate", "7"],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert refused.returncode == 1
        assert "keep_rate: got 7" in refused.stderr
        assert "Traceback" not in refused.stderr
    finally:
        process.send_signal(signal.SIGINT)
    assert process.wait(timeout=30) == 0


def test_a_port_in_use_is_named(tiny):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        chosen = tiny.model_copy(
            update={"server": tiny.server.model_copy(update={"grpc_port": port})}
        )
        with pytest.raises(ConfigurationError, match=rf"server.grpc_port: 127.0.0.1:{port} cannot"):
            TritonServer(chosen).start()


def test_a_missing_model_folder_is_named():
    with pytest.raises(ConfigurationError, match=r"draft\.model: folder /no/such does not exist"):
        TritonServer(settings(draft={"model": "/no/such"})).start()


def test_a_model_that_cannot_be_loaded_stops_the_start(tiny_llama, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    model = {"model": str(tiny_llama)}
    with pytest.raises(ConfigurationError, match="model folder"):
        TritonServer(settings(target={"model": str(tmp_path)}, draft=model)).start()


def test_a_draft_with_another_tokenizer_stops_the_start(tiny_llama, tmp_path):
    import shutil

    other = tmp_path / "other"
    shutil.copytree(tiny_llama, other)
    tokenizer = AutoTokenizer.from_pretrained(other)
    tokenizer.add_tokens(["<extra>"])
    tokenizer.save_pretrained(other)
    chosen = settings(
        target={"model": str(tiny_llama)},
        draft={"model": str(other), "layers": 4, "score_layers": [1, 3]},
    )
    with pytest.raises(ConfigurationError, match="different tokenizers: 1 tokens differ"):
        TritonServer(chosen).start()


def test_a_missing_repository_is_named(tiny, tmp_path):
    with pytest.raises(ConfigurationError, match=r"model repository .* does not exist"):
        TritonServer(tiny, tmp_path / "none").start()


def test_a_tritonserver_on_path_comes_first(tmp_path, monkeypatch):
    binary = tmp_path / "tritonserver"
    binary.write_text("#!/bin/sh\n")
    binary.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_installation(tmp_path).binary == binary


@pytest.mark.parametrize("command", ["", "serve", "demo", "generate", "version"])
def test_help_has_examples(command):
    arguments = [str(CLI), *command.split(), "--help"]
    told = subprocess.run(arguments, capture_output=True, text=True, check=True, timeout=30)
    if command and command != "version":
        assert "Examples" in told.stdout


def test_version_is_that_of_the_package():
    import specprefill

    told = subprocess.run([str(CLI), "version"], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == specprefill.__version__


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["serve", "--config", "/no/such.yaml"], "/no/such.yaml: No such file"),
        (["serve", "--http-port", "99999"], "server.http_port: got 99999"),
        (["generate"], "give the prompt either as an argument"),
        (["generate", "--file", "/no/such.txt"], "the prompt cannot be read"),
        (["generate", "Hi", "--url", "127.0.0.1:1"], "error:"),
    ],
)
def test_mistakes_on_the_command_line_are_one_sentence(arguments, message):
    told = subprocess.run(
        [str(CLI), *arguments], capture_output=True, text=True, check=False, timeout=60
    )
    assert told.returncode == 1
    assert message in " ".join(told.stderr.split())
    assert "Traceback" not in told.stderr
