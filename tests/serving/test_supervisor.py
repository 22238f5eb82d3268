# SPDX-License-Identifier: Apache-2.0
"""The supervisor's parts, without a server: what counts as dead, and how often it is revived."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from specprefill import gateway_process, supervisor
from specprefill.admin_access import AdminAccess
from specprefill.errors import ConfigurationError, EngineError, StepUnavailableError
from specprefill.gateway_process import GatewayProcess
from specprefill.model_control import ModelControl
from specprefill.model_probe import ModelProbe
from specprefill.model_process import ModelProcess, model_processes
from specprefill.restart_policy import RestartPolicy
from specprefill.run_state import RunState
from specprefill.server import with_free_ports
from specprefill.settings import Settings
from specprefill.supervisor import Outcome, Supervisor
from specprefill.triton_models import step_calls
from specprefill.triton_models.step_calls import StepCalls

from tests.serving.served import wait_until


def test_crashes_in_a_row_wait_longer_and_are_given_up():
    policy = RestartPolicy(limit=5)
    assert [policy.crashed(3) for _ in range(5)] == [0, 1, 3, 7, None]


def test_a_minute_of_service_starts_anew():
    policy = RestartPolicy(limit=3)
    assert [policy.crashed(1), policy.crashed(1), policy.crashed(61)] == [0, 1, 0]


def test_without_a_limit_the_pause_is_bounded():
    policy = RestartPolicy(limit=None)
    assert [policy.crashed(0) for _ in range(2000)][-1] == 30


class TestProbe:
    @pytest.fixture
    def workers(self):
        with ThreadPoolExecutor(1) as workers:
            yield workers

    @staticmethod
    def ticks(probe, times):
        dead = []
        for now in times:
            dead.append(probe.tick(now))
            wait_until(probe._question.done, 5)
        return dead

    def test_failures_for_long_enough_are_a_death(self, workers):
        def ask():
            raise EngineError("no answer")

        # The first tick only asks; the first failure is seen at 2 s, the fifth at 10 s.
        times = range(0, 26, 2)
        assert self.ticks(ModelProbe(ask, workers), times) == [now >= 22 for now in times]

    def test_one_answer_forgives_everything(self, workers):
        answers = iter([False] * 8 + [True] + [False] * 8)

        def ask():
            if not next(answers):
                raise EngineError("no answer")

        assert not any(self.ticks(ModelProbe(ask, workers), range(0, 32, 2)))

    def test_a_slow_answer_is_waited_for(self, workers):
        release = threading.Event()
        probe = ModelProbe(release.wait, workers)
        assert not any(probe.tick(now) for now in range(0, 1000, 2))
        release.set()


def stub(folder, model):
    """A process that looks like Triton's for a model."""
    script = folder / model / "1" / "model.py"
    script.parent.mkdir(parents=True)
    script.write_text("import time\nprint('up', flush=True)\ntime.sleep(60)\n")
    command = f"exec -a /x/triton_python_backend_stub {sys.executable} {script}"
    process = subprocess.Popen(["bash", "-c", command], stdout=subprocess.PIPE)
    process.stdout.readline()
    return process


def test_model_processes_are_found_and_their_end_is_seen(tmp_path):
    # No names of served models: servers of other tests may run below this process too.
    children = {model: stub(tmp_path, model) for model in ("first", "second")}

    def found_here():
        found = model_processes(os.getpid())
        return {model: process for model, process in found.items() if model in children}

    found = found_here()
    assert {model: process.pid for model, process in found.items()} == {
        model: child.pid for model, child in children.items()
    }
    assert all(process.is_alive() for process in found.values())
    children["first"].kill()
    wait_until(lambda: not found["first"].is_alive(), 5)  # though nobody has waited for it
    assert found_here().keys() == {"second"}
    found["second"].kill()
    for child in children.values():
        child.wait()
    assert not found["second"].is_alive()


def test_another_process_with_the_same_id_is_not_the_model():
    assert not ModelProcess("draft", os.getpid(), start_ticks=1).is_alive()


class TestStepCalls:
    @pytest.fixture
    def processes(self, monkeypatch):
        """What /proc shows; tests change it."""
        alive = {"entry": os.getpid(), "draft": os.getpid()}

        class Process:
            def __init__(self, model):
                self.pid = alive[model]
                self.model = model

            def is_alive(self):
                return self.model in alive

        monkeypatch.setattr(
            step_calls, "model_processes", lambda _: {model: Process(model) for model in alive}
        )
        return alive

    def test_results_and_errors_come_through(self, processes):
        calls = StepCalls("entry")
        assert calls.run("draft", lambda: 7) == 7
        with pytest.raises(ZeroDivisionError):
            calls.run("draft", lambda: 1 / 0)

    def test_a_call_whose_step_dies_is_given_up(self, processes):
        never = threading.Event()
        threading.Timer(0.2, processes.pop, ["draft"]).start()
        began = time.monotonic()
        with pytest.raises(StepUnavailableError, match="the process of 'draft' died"):
            StepCalls("entry").run("draft", never.wait)
        assert time.monotonic() - began < 10
        never.set()

    def test_a_step_that_is_dead_is_not_called(self, processes):
        calls = StepCalls("entry")
        del processes["draft"]
        with pytest.raises(StepUnavailableError):
            calls.run("draft", lambda: pytest.fail("called"))

    def test_a_long_call_to_a_living_step_is_waited_for(self, processes):
        assert StepCalls("entry").run("draft", lambda: time.sleep(1) or "late") == "late"

    def test_where_processes_cannot_be_seen_calls_are_made_all_the_same(self, processes):
        processes.clear()
        assert StepCalls("entry").run("draft", lambda: 7) == 7


def test_the_count_outlives_the_writer_and_a_drain_is_seen(tmp_path):
    entry, launcher = RunState(tmp_path), RunState(tmp_path)
    assert (launcher.in_flight, entry.draining) == (0, False)
    entry.in_flight = 3
    del entry
    launcher.drain()
    assert launcher.in_flight == 3
    assert RunState(tmp_path).draining


class FakeServer:
    """A tritonserver that dies whenever it is looked at."""

    http_url = "127.0.0.1:1"
    admin = AdminAccess()
    pid = 0

    def __init__(self, on_crash, start_error=None):
        self.settings = Settings.model_validate({"server": {"on_crash": on_crash}})
        self.starts = 0
        self._start_error = start_error

    def start(self, progress):
        self.starts += 1
        if self._start_error is not None and self.starts > 1:
            raise self._start_error

    def stop(self, grace_seconds):
        pass

    def is_alive(self):
        return False

    def log_tail(self):
        return "last words"


@pytest.mark.parametrize(
    ("on_crash", "start_error", "starts", "pauses"),
    [
        ("exit", None, 1, []),
        ("restart", None, 5, [0, 1, 3, 7]),
        ("restart", ConfigurationError("port taken"), 5, [0, 1, 3, 7]),
    ],
)
def test_a_crash_loop_is_given_up(monkeypatch, on_crash, start_error, starts, pauses):
    slept = []
    monkeypatch.setattr(supervisor.time, "sleep", slept.append)
    server = FakeServer(on_crash, start_error)
    told = []
    watched = Supervisor(server, None, told.append)
    watched.start(lambda _: None)
    stop = threading.Event()
    assert watched.run(stop) is Outcome.GIVEN_UP
    assert server.starts == starts
    assert slept == pauses
    assert any("last words" in text for text in told)
    if start_error is not None:
        assert any("port taken" in text for text in told)


def test_no_two_endpoints_share_a_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = {"http_port": port, "grpc_port": 0, "metrics_port": 0}
    settings = Settings.model_validate({"server": server, "gateway": {"port": port}})
    with pytest.raises(ConfigurationError, match=rf"gateway.port: {port} is server.http_port, too"):
        with_free_ports(settings, gateway=True)
    assert with_free_ports(settings).gateway.port == port  # not looked at without a gateway


def test_a_server_that_is_not_there_is_an_error_with_the_request():
    with pytest.raises(EngineError, match=r"repository/index: .*refused"):
        ModelControl("127.0.0.1:1", AdminAccess()).states()


def test_a_gateway_that_cannot_start_says_why(tmp_path):
    settings = Settings.model_validate({"gateway": {"api_key_file": str(tmp_path / "none")}})
    gateway = GatewayProcess(settings, lambda _: None)
    gateway.start()
    try:
        with pytest.raises(ConfigurationError, match=r"did not start: .*none"):
            gateway.wait_listening()
    finally:
        gateway.close()


def test_a_missing_module_of_the_gateway_is_named(monkeypatch):
    monkeypatch.setattr(gateway_process, "_MODULES", ("json", "no_such_module"))
    assert gateway_process.missing_module() == "no_such_module"
