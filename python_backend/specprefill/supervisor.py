# SPDX-License-Identifier: Apache-2.0
"""Keeps a deployment in service: revives dead models and the server, and drains at the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from enum import Enum

from specprefill.errors import SpecPrefillError
from specprefill.gateway_process import GatewayProcess
from specprefill.model_control import READY, UNLOADING, ModelControl
from specprefill.model_probe import ModelProbe
from specprefill.model_process import ModelProcess, model_processes
from specprefill.restart_policy import RestartPolicy
from specprefill.server import MODELS, TritonServer, rank_count

ENTRY, ENSEMBLE = "specprefill", "ensemble"
_TICK_SECONDS = 0.25
_PROBE_TIMEOUT_SECONDS = 10.0
# A load now and then never comes to its end in Triton 2.51 (seen once in some twenty): one that
# takes three times as long as the whole start did, and this long at least, is given up.
_LEAST_LOAD_SECONDS = 30.0
_LOAD_FACTOR = 3.0
# For models to end after the drain; what Triton 2.51 has left of a dead one never ends by itself.
_END_SECONDS = 6.0


class Outcome(Enum):
    """How a deployment ended."""

    DRAINED = "drained"
    CUT_OFF = "cut off"
    GIVEN_UP = "given up"


class Supervisor:
    """Runs a server and its gateway until it is told to stop, or gives up.

    Attributes:
        server: the server.
        gateway: the gateway, or None.
        recoveries: models loaded again and servers started again so far.
        starting: whether the server is being started and nothing is in service that could drain.
    """

    def __init__(
        self,
        server: TritonServer,
        gateway: GatewayProcess | None,
        report: Callable[[str], None],
    ) -> None:
        """Prepare; nothing runs before `start`.

        Args:
            server: not yet started.
            gateway: not yet started; None for none.
            report: told in one sentence of everything that goes wrong or is put right.
        """
        self.server = server
        self.gateway = gateway
        self.recoveries = 0
        self.starting = False
        self._report = report
        self._workers = ThreadPoolExecutor(len(MODELS), thread_name_prefix="supervisor")
        self._crashes = RestartPolicy()
        self._deaths: dict[str, RestartPolicy] = {}
        self._loaded: dict[str, float] = {}  # model -> when its process was last seen to be new
        self._control = ModelControl(server.http_url, server.admin)
        self._server_since = 0.0
        self._load_seconds = _LEAST_LOAD_SECONDS
        self._processes: dict[str, ModelProcess] = {}
        self._probes: dict[str, ModelProbe] = {}

    def start(self, progress: Callable[[str], None]) -> None:
        """Start everything and wait until it serves.

        Raises:
            ConfigurationError: as `TritonServer.start`, or the gateway does not start.
        """
        if self.gateway is not None:
            self.gateway.start()
        self._start_server(progress)
        if self.gateway is not None:
            progress("waiting for the OpenAI gateway")
            self.gateway.wait_listening()

    def run(self, stop: threading.Event) -> Outcome:
        """Watch until `stop` is set, then drain; must run in the thread that called `start`.

        The kernel ends a server whose launching thread ends.
        """
        next_probe = 0.0
        while not stop.wait(min(_TICK_SECONDS, self.server.settings.server.probe_seconds)):
            now = time.monotonic()
            if self.gateway is not None:
                self.gateway.tick(now)
            if not self.server.is_alive():
                in_service = self._restart("tritonserver ended by itself")
            elif dead := self._dead_models():
                in_service = self._recover(dead)
            elif now >= next_probe:
                next_probe = now + self.server.settings.server.probe_seconds
                in_service = self._probe(now)
            else:
                in_service = True
            if not in_service:
                return Outcome.GIVEN_UP
        return self._drain()

    def close(self) -> None:
        """End everything that is left at once; safe to call twice."""
        if self.gateway is not None:
            self.gateway.close()
        self.server.stop(grace_seconds=0)
        self._workers.shutdown(wait=False, cancel_futures=True)

    def _start_server(self, progress: Callable[[str], None] = lambda _: None) -> None:
        self.starting = True
        began = time.monotonic()
        self.server.start(progress)
        self._load_seconds = max(_LEAST_LOAD_SECONDS, _LOAD_FACTOR * (time.monotonic() - began))
        self.starting = False
        self._control = ModelControl(self.server.http_url, self.server.admin)
        self._server_since = time.monotonic()
        self._processes = {}
        self._find_processes()
        self._probes = {model: self._new_probe(model) for model in MODELS if model != ENSEMBLE}

    def _new_probe(self, model: str) -> ModelProbe:
        control = self._control
        return ModelProbe(lambda: control.ask(model, _PROBE_TIMEOUT_SECONDS), self._workers)

    def _find_processes(self) -> None:
        """Remember the processes that run now, and those that ran and are not replaced."""
        for model, process in model_processes(self.server.pid).items():
            if self._processes.get(model) != process:
                self._processes[model] = process
                self._loaded[model] = time.monotonic()

    def _dead_models(self) -> list[str]:
        """Return the models whose process is gone although nobody unloaded them."""
        if all(process.is_alive() for process in self._processes.values()):
            return []
        self._find_processes()  # somebody else may have loaded the model again
        gone = [model for model, process in self._processes.items() if not process.is_alive()]
        try:
            states = self._control.states() if gone else {}
        except SpecPrefillError:
            return []  # the server is ending or busy: the next tick tells
        for model in gone:
            if states.get(model) != READY:
                del self._processes[model]  # unloaded on purpose, or being loaded
        return [model for model in gone if states.get(model) == READY]

    def _probe(self, now: float) -> bool:
        self._find_processes()
        silent = [model for model, probe in self._probes.items() if probe.tick(now)]
        silent = [model for model in silent if model in self._processes]
        if not silent:
            return True
        for model in silent:
            self._processes[model].kill()
        return self._recover(silent, "does not answer")

    def _recover(self, models: list[str], problem: str = "died") -> bool:
        """Load dead models again; return whether the deployment is in service."""
        began = time.monotonic()
        names = ", ".join(models)
        self._report(f"the process of {names} {problem}; loading again")
        delays = [self._deaths.setdefault(m, RestartPolicy()).crashed(self._age(m)) for m in models]
        if None in delays:
            return self._restart(f"the process of {names} dies again and again")
        if rank_count(self.server.settings) > 1:
            return self._restart("the other ranks would wait for it for ever")
        if self._is_hanging(models):
            return self._restart("requests are in flight that nothing would ever answer")
        time.sleep(max(delay for delay in delays if delay is not None))
        try:
            for _ in self._workers.map(self._reload, models):
                pass
            if self._control.states().get(ENSEMBLE) != READY:
                self._control.load(ENSEMBLE, self._load_seconds)
        except SpecPrefillError as error:
            return self._restart(f"{names} cannot be loaded again: {error}")
        self.server.close_shared_memory()
        self._find_processes()
        for model in models:
            self._probes[model] = self._new_probe(model)
        self.recoveries += len(models)
        self._report(
            f"{names} is in service again after {time.monotonic() - began:.1f} s "
            f"(recoveries so far: {self.recoveries})"
        )
        return True

    def _age(self, model: str) -> float:
        return time.monotonic() - self._loaded[model]

    def _reload(self, model: str) -> None:
        # Without the unload, Triton 2.51 takes the model for ready and does nothing.
        self._control.unload(model)
        self._control.load(model, self._load_seconds)

    def _is_hanging(self, dead: Iterable[str]) -> bool:
        """Tell whether clients wait for answers that Triton 2.51 will never send.

        It forgets the requests of a Python process that dies while it streams: those of the entry
        model and, when the target dies, those of the ensemble. Only the end of their connections
        tells their clients.
        """
        if ENTRY in dead and self.server.run_state.in_flight > 0:
            return True
        if "target" not in dead:
            return False
        try:
            self._control.unload(ENSEMBLE)
            for _ in range(10):
                if self._control.states().get(ENSEMBLE) != UNLOADING:
                    return False
                time.sleep(0.1)
        except SpecPrefillError:
            return False
        return True

    def _restart(self, reason: str) -> bool:
        """Start the server again as `server.on_crash` says; return whether it is in service."""
        served = time.monotonic() - self._server_since
        self.starting = True
        self._report(f"{reason}; the server's last lines:\n{self.server.log_tail()}")
        while self.server.settings.server.on_crash == "restart":
            delay = self._crashes.crashed(served)
            if delay is None:
                self._report(f"giving up after {self._crashes.crashes} crashes")
                break
            self.server.stop(grace_seconds=0)
            self._report(f"starting the server again in {delay:.0f} s")
            time.sleep(delay)
            try:
                self._start_server()
            except SpecPrefillError as error:
                self._report(f"the server did not start: {error}")
                served = 0.0
                continue
            self.recoveries += 1
            self._report(f"in service again (recoveries so far: {self.recoveries})")
            return True
        return False

    def _drain(self) -> Outcome:
        """Take no more requests, let the running ones end, and stop everything."""
        deadline = time.monotonic() + self.server.settings.server.drain_seconds
        if self.gateway is not None:
            self.gateway.terminate()
        drained = False
        try:
            self.server.run_state.drain()
            self._control.unload(ENSEMBLE)
            while not (drained := self._is_idle()) and time.monotonic() < deadline:
                time.sleep(0.05)
        except SpecPrefillError as error:
            self._report(f"the server cannot be drained: {error}")
        if self.gateway is not None:
            self.gateway.close()
        self.server.stop(_END_SECONDS if drained else 0)
        return Outcome.DRAINED if drained else Outcome.CUT_OFF

    def _is_idle(self) -> bool:
        return (
            (self.gateway is None or not self.gateway.is_alive())
            and self.server.run_state.in_flight == 0
            and self._control.states().get(ENSEMBLE) != UNLOADING
        )
