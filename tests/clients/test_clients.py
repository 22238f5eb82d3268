# SPDX-License-Identifier: Apache-2.0
"""The example clients, run as a user runs them, on the real server."""

import subprocess
import sys

import pytest

from tests.clients.conftest import CLIENTS

PROMPT = "The capital of France is"


def client(name, *arguments, stdin=""):
    return subprocess.run(
        [sys.executable, CLIENTS / name, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("model", ["specprefill", "ensemble"])
@pytest.mark.parametrize(
    ("name", "options"),
    [("grpc_client.py", []), ("http_client.py", []), ("http_client.py", ["--stream"])],
)
def test_one_answer(server, name, options, model):
    url = server.grpc_url if name == "grpc_client.py" else f"http://{server.http_url}"
    where = ["--url", url, "--model", model, "--max-tokens", "4"]
    told = client(name, PROMPT, *where, "--keep-rate", "0.5", *options)
    assert told.returncode == 0, told.stderr
    assert told.stdout.startswith(" Paris"), told.stdout
    assert told.stdout.endswith("\n")


@pytest.mark.parametrize(
    ("name", "options"),
    [("grpc_client.py", []), ("http_client.py", []), ("http_client.py", ["--stream"])],
)
def test_an_error_of_the_server_is_one_line(server, name, options):
    url = server.grpc_url if name == "grpc_client.py" else f"http://{server.http_url}"
    told = client(name, PROMPT, "--url", url, "--keep-rate", "1.5", *options)
    assert told.returncode == 1
    assert told.stderr.startswith("error: ")
    assert "keep_rate: got 1.5" in told.stderr
    assert "Traceback" not in told.stderr


@pytest.mark.parametrize("name", ["grpc_client.py", "http_client.py", "chat.py", "qps.py"])
def test_help_has_an_example(name):
    told = client(name, "--help")
    assert told.returncode == 0
    assert f"python clients/{name} " in told.stdout


def test_chat_sends_earlier_turns_along(server):
    lines = "The capital of France is Paris.\n\nWhich is it?\n"
    where = ["--url", server.grpc_url, "--system", "Answer briefly.", "--max-tokens", "8"]
    told = client("chat.py", *where, stdin=lines)
    assert told.returncode == 0, told.stderr
    statistics = [line for line in told.stdout.splitlines() if line.startswith("[")]
    assert len(statistics) == 2
    first, second = (int(line.split(" of ")[1].split()[0]) for line in statistics)
    assert second > first + 10


def test_chat_goes_on_after_an_error(server):
    lines = "word " * 9000 + "\nSay hello.\n"
    told = client("chat.py", "--url", server.grpc_url, "--max-tokens", "3", stdin=lines)
    assert told.returncode == 0
    assert "messages: the prompt has 9" in told.stderr
    assert told.stdout.count("tokens kept") == 1
