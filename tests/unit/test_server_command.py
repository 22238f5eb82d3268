# SPDX-License-Identifier: Apache-2.0
"""The command line of tritonserver, alone and one per rank under mpirun."""

from __future__ import annotations

from pathlib import Path

import pytest
from specprefill import server
from specprefill.admin_access import AdminAccess
from specprefill.errors import ConfigurationError
from specprefill.server import MODELS, Installation, tritonserver_command
from specprefill.settings import Settings
from specprefill.trtllm_engine.mpi import leave_mpi, without_mpi_variables

INSTALLATION = Installation(Path("/opt/bin/tritonserver"), ("--backend-directory=/b",), ())
REPOSITORY = Path("/repository")
PREFIX = "specprefill_7_"
ADMIN = AdminAccess("s3cret")
RULE = "model-repository,shared-memory,trace,logging:specprefill-admin=s3cret"


def settings(engine: str = "tensorrt_llm", **build: int) -> Settings:
    ports = {"http_port": 1, "grpc_port": 2, "metrics_port": 3}
    return Settings.model_validate({"engine": engine, "build": build, "server": ports})


def command(**build: int) -> list[str]:
    return tritonserver_command(INSTALLATION, settings(**build), REPOSITORY, PREFIX, ADMIN)


def of_ranks(words: list[str]) -> list[list[str]]:
    """Split an mpirun command line into those of its ranks."""
    ranks: list[list[str]] = [[]]
    for word in words[2:]:
        if word == ":":
            ranks.append([])
        else:
            ranks[-1].append(word)
    return ranks


@pytest.fixture
def mpirun(monkeypatch):
    monkeypatch.setattr(server.shutil, "which", lambda name: f"/usr/bin/{name}")


ALONE = [
    "/opt/bin/tritonserver",
    "--model-repository=/repository",
    "--model-control-mode=explicit",
    *(f"--load-model={model}" for model in MODELS),
    "--disable-auto-complete-config",
    "--http-address=127.0.0.1",
    "--http-port=1",
    "--grpc-address=127.0.0.1",
    "--grpc-port=2",
    "--metrics-address=127.0.0.1",
    "--metrics-port=3",
    f"--http-restricted-api={RULE}",
    f"--grpc-restricted-protocol={RULE}",
    f"--backend-config=python,shm-region-prefix-name={PREFIX}",
    "--exit-timeout-secs=15",
    "--backend-directory=/b",
]


def test_one_rank_needs_no_mpirun():
    assert command() == ALONE


def test_the_torch_engine_is_one_process_whatever_the_build_says():
    torch = settings("torch", tp_size=8)
    assert tritonserver_command(INSTALLATION, torch, REPOSITORY, PREFIX, ADMIN) == ALONE


def test_further_arguments_come_last():
    chosen = Settings.model_validate(
        {**settings().model_dump(), "server": {"arguments": ["--log-verbose=1", "--http-port=7"]}}
    )
    words = tritonserver_command(INSTALLATION, chosen, REPOSITORY, PREFIX, ADMIN)
    assert words[-2:] == ["--log-verbose=1", "--http-port=7"]


@pytest.mark.parametrize(("tp_size", "pp_size"), [(2, 1), (4, 1), (2, 2), (1, 8)])
def test_one_tritonserver_per_rank(mpirun, tp_size, pp_size):
    words = command(tp_size=tp_size, pp_size=pp_size)
    assert words[:2] == ["mpirun", "--allow-run-as-root"]
    ranks = of_ranks(words)
    assert len(ranks) == tp_size * pp_size
    for rank in ranks:
        assert rank[:3] == ["-n", "1", "/opt/bin/tritonserver"]
        assert "--disable-auto-complete-config" in rank
        assert rank[-1] == "--backend-directory=/b"


def test_rank_0_serves_as_a_server_alone_does(mpirun):
    first = of_ranks(command(tp_size=2))[0]
    assert first[2:] == [word.replace(PREFIX, f"{PREFIX}rank0_") for word in ALONE]


def test_other_ranks_hold_the_target_and_no_port(mpirun):
    for rank in of_ranks(command(tp_size=4))[1:]:
        assert [word for word in rank if word.startswith("--load-model")] == ["--load-model=target"]
        assert not [word for word in rank if "-port=" in word or "-address=" in word]
        assert not [word for word in rank if "s3cret" in word]
        for endpoint in ("http", "grpc", "metrics"):
            assert f"--allow-{endpoint}=false" in rank


def test_every_rank_has_its_own_shared_memory_that_the_launcher_cleans_up(mpirun):
    words = [word for word in command(tp_size=3) if "shm-region-prefix-name" in word]
    prefixes = [word.rpartition("=")[2] for word in words]
    assert len(set(prefixes)) == 3
    assert all(prefix.startswith(PREFIX) for prefix in prefixes)


def test_more_ranks_than_the_machine_has_gpus_are_refused(mpirun):
    with pytest.raises(ConfigurationError, match=r"got 16; allowed: up to build\.gpus_per_node, 8"):
        command(tp_size=8, pp_size=2)


def test_a_missing_mpirun_is_named(monkeypatch):
    monkeypatch.setattr(server.shutil, "which", lambda name: None)
    with pytest.raises(ConfigurationError, match="mpirun is not on PATH, and the target has 2"):
        command(tp_size=2)


def test_the_drafts_process_is_no_rank():
    environment = {
        "OMPI_COMM_WORLD_RANK": "0",
        "PMIX_RANK": "0",
        "PRTE_LAUNCHED": "1",
        "PMI_RANK": "0",
        "OMP_NUM_THREADS": "4",
        "PATH": "/bin",
    }
    kept = {"OMP_NUM_THREADS": "4", "PATH": "/bin"}
    assert without_mpi_variables(environment) == kept
    leave_mpi(environment)
    assert environment == kept
