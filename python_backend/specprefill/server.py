# SPDX-License-Identifier: Apache-2.0
"""Finds a tritonserver, starts it on the model repository, and stops it without leaving a trace."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from specprefill.admin_access import AdminAccess
from specprefill.embedded_model import resolve_model
from specprefill.errors import ConfigurationError
from specprefill.run_state import FOLDER_VARIABLE, RunState
from specprefill.settings import CONFIG_VARIABLE, ENVIRONMENT_PREFIX, Settings, dump_settings
from specprefill.workspace import Workspace, remove_stale_workspaces

MODELS = ("preprocessing", "draft", "target", "specprefill", "ensemble")
_SHARED_MEMORY = Path("/dev/shm")
_SHM_PREFIX = "specprefill_"
_STOP_SECONDS = 20
_KILL_SECONDS = 5
_PR_SET_PDEATHSIG = 1
_LOG_LINE = re.compile(rb"^([IWE]\d{4} |\d{4}-\d\d-\d\dT)", re.MULTILINE)
_LOG_HEAD_BYTES = 4096


def default_model_repository() -> Path:
    """Return the model repository that belongs to this source tree."""
    named = os.environ.get("SPECPREFILL_MODEL_REPOSITORY")
    if named:
        return Path(named)
    return Path(__file__).resolve().parents[2] / "model_repository"


@dataclass(frozen=True, slots=True)
class Installation:
    """A tritonserver binary and what it needs to run Python models in this interpreter.

    Attributes:
        binary: the tritonserver executable.
        arguments: command-line arguments that point it at its parts.
        library_path: folders for LD_LIBRARY_PATH.
    """

    binary: Path
    arguments: tuple[str, ...]
    library_path: tuple[str, ...]


class TritonServer:
    """One tritonserver process group.

    Attributes:
        settings: with the ports that were really taken.
        admin: opens the running server's administrative APIs; new at every start.
        shared_memory_prefix: how the names of its shared-memory regions begin.
        log_path: the server's log while it runs.
    """

    def __init__(self, settings: Settings, model_repository: Path | None = None) -> None:
        """Prepare; nothing runs before `start`."""
        self.settings = settings
        self.admin = AdminAccess()
        self._repository = model_repository or default_model_repository()
        # Names the launcher, so that a later start can tell whose regions are stale.
        self.shared_memory_prefix = f"{_SHM_PREFIX}{os.getpid()}_{secrets.token_hex(4)}_"
        self._process: subprocess.Popen[bytes] | None = None
        self._workspace: Workspace | None = None
        self._run_state: RunState | None = None

    @property
    def http_url(self) -> str:
        """Host and port for HTTP clients."""
        return f"{self.settings.server.host}:{self.settings.server.http_port}"

    @property
    def grpc_url(self) -> str:
        """Host and port for gRPC clients."""
        return f"{self.settings.server.host}:{self.settings.server.grpc_port}"

    @property
    def metrics_url(self) -> str:
        """URL of the metrics page."""
        return f"http://{self.settings.server.host}:{self.settings.server.metrics_port}/metrics"

    @property
    def log_path(self) -> Path:
        """The server's log."""
        assert self._workspace is not None
        return self._workspace.path / "triton.log"

    @property
    def run_state(self) -> RunState:
        """What the entry model tells while the server runs, and is told."""
        assert self._run_state is not None
        return self._run_state

    @property
    def pid(self) -> int:
        """Process id of tritonserver, which is also its process group."""
        assert self._process is not None
        return self._process.pid

    def start(self, progress: Callable[[str], None] = lambda _: None) -> None:
        """Start the server and wait until every model answers its readiness check.

        Args:
            progress: told what is being waited for.

        Raises:
            ConfigurationError: a port is in use, a model cannot be loaded, or no tritonserver was
                found; names the cause.
        """
        if not self._repository.is_dir():
            raise ConfigurationError(f"model repository {self._repository} does not exist")
        self.settings = _with_model_folders(with_free_ports(self.settings), progress)
        remove_stale_shared_memory()
        remove_stale_workspaces()
        self._workspace = Workspace()
        try:
            workspace = self._workspace.path
            self._run_state = RunState(workspace)
            self.admin = AdminAccess()
            self.admin.write(workspace)
            config = workspace / "settings.yaml"
            dump_settings(_with_costs_folder(self.settings, workspace), config)
            progress("starting tritonserver")
            installation = find_installation(workspace)
            self._process = self._spawn(installation, config)
            self._wait_ready(progress)
        except BaseException:
            self.stop(grace_seconds=0)
            raise

    def _spawn(self, installation: Installation, config: Path) -> subprocess.Popen[bytes]:
        command = tritonserver_command(
            installation, self.settings, self._repository, self.shared_memory_prefix, self.admin
        )
        environment = {
            **configured_environment(config),
            FOLDER_VARIABLE: str(config.parent),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
            "LD_LIBRARY_PATH": os.pathsep.join(
                (*installation.library_path, os.environ.get("LD_LIBRARY_PATH", ""))
            ).strip(os.pathsep),
            # A model's loading bar in a log file is noise.
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            # Draft and target share the cores: threads that spin while they wait for each other
            # cost the other model up to half its speed, and gain nothing when alone.
            "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "passive"),
        }
        with self.log_path.open("wb") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )

    def _wait_ready(self, progress: Callable[[str], None]) -> None:
        assert self._process is not None
        deadline = time.monotonic() + self.settings.server.startup_seconds
        waiting = list(MODELS)
        while waiting:
            self._hide_secret()
            if self._process.poll() is not None:
                raise ConfigurationError(self._explain_exit())
            if time.monotonic() > deadline:
                raise ConfigurationError(
                    f"the server was not ready after {self.settings.server.startup_seconds:g} s; "
                    f"still loading: {', '.join(waiting)}"
                )
            if self._model_ready(waiting[0]):
                waiting.pop(0)
                if waiting:
                    progress(f"loading {waiting[0]}")
            else:
                time.sleep(0.1)
        self.close_shared_memory()

    def close_shared_memory(self) -> None:
        """Let nobody but this user read prompts in shared memory, which Triton opens to everybody.

        To be called again when a model was loaded again: it has new regions.
        """
        for region in _SHARED_MEMORY.glob(f"{self.shared_memory_prefix}*"):
            with contextlib.suppress(FileNotFoundError, PermissionError):
                region.chmod(0o600)

    def _hide_secret(self) -> None:
        """Hide the secret once the server has read it: it logs nothing of its own before."""
        with self.log_path.open("rb") as log:
            has_read = _LOG_LINE.search(log.read(_LOG_HEAD_BYTES))
        if has_read and rank_count(self.settings) == 1:  # of several the process is mpirun
            self.admin.hide(self.pid)

    def _model_ready(self, model: str) -> bool:
        url = f"http://{self.http_url}/v2/models/{model}/ready"
        try:
            with urllib.request.urlopen(url, timeout=2) as response:
                return bool(response.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def _explain_exit(self) -> str:
        log = self.log_path.read_text(errors="replace")
        own = re.search(r"ConfigurationError: (.+)", log)
        if own:
            return own.group(1).strip()
        tail = [line for line in log.splitlines() if line.startswith("E")] or log.splitlines()
        return "tritonserver ended while starting:\n" + "\n".join(tail[-8:])

    def log_tail(self, lines: int = 20) -> str:
        """Return the last lines of the server's log."""
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])

    def is_alive(self) -> bool:
        """Tell whether the server's process runs."""
        return self._process is not None and self._process.poll() is None

    def stop(self, grace_seconds: float = _STOP_SECONDS) -> None:
        """End the server and everything it started; safe to call twice.

        Args:
            grace_seconds: how long it may take to end by itself before it is killed.
        """
        if self._process is not None:
            group = self._process.pid
            if self._process.poll() is None and grace_seconds > 0:
                self._process.send_signal(signal.SIGTERM)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(grace_seconds)
            # Python processes outlive a server that was killed, each holding its model.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
            self._process.wait()
            _wait_for_end(group)
            self._process = None
        remove_shared_memory(self.shared_memory_prefix)
        self._run_state = None
        if self._workspace is not None:
            self._workspace.cleanup()
            self._workspace = None

    def __enter__(self) -> TritonServer:
        """Start the server."""
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        """Stop the server."""
        self.stop()


def tritonserver_command(
    installation: Installation,
    settings: Settings,
    repository: Path,
    shared_memory_prefix: str,
    admin: AdminAccess,
) -> list[str]:
    """Return the command line that serves a deployment.

    A TensorRT-LLM target of several ranks needs one tritonserver per rank under mpirun
    (TensorRT-LLM's leader mode). Rank 0 has all models and the ports; the others have the target
    alone and no ports. Not run with MPI: only that a tritonserver without ports runs, and keeps
    metrics of its models, was.

    Args:
        installation: the tritonserver.
        settings: the deployment, its ports chosen.
        repository: the model repository.
        shared_memory_prefix: how the names of shared-memory regions begin.
        admin: what the administrative APIs are restricted to.

    Raises:
        ConfigurationError: several ranks are needed, and not all fit on one machine or mpirun is
            not on PATH.
    """
    ranks = rank_count(settings)
    if ranks == 1:
        return _rank_command(installation, settings, repository, shared_memory_prefix, admin)
    if ranks > settings.build.gpus_per_node:
        raise ConfigurationError(
            f"build.tp_size x build.pp_size: got {ranks}; allowed: up to build.gpus_per_node, "
            f"{settings.build.gpus_per_node}, because all ranks are started on this machine"
        )
    if shutil.which("mpirun") is None:
        raise ConfigurationError(f"mpirun is not on PATH, and the target has {ranks} ranks")
    # Containers often run as root, which mpirun refuses unless told.
    command = ["mpirun", "--allow-run-as-root"]
    for rank in range(ranks):
        prefix = f"{shared_memory_prefix}rank{rank}_"
        command += [":"] if rank else []
        words = _rank_command(installation, settings, repository, prefix, admin, rank)
        command += ["-n", "1", *words]
    return command


def rank_count(settings: Settings) -> int:
    """Return how many tritonservers serve a deployment together."""
    if settings.engine == "tensorrt_llm":
        return settings.build.tp_size * settings.build.pp_size
    return 1


def _rank_command(
    installation: Installation,
    settings: Settings,
    repository: Path,
    shared_memory_prefix: str,
    admin: AdminAccess,
    rank: int = 0,
) -> list[str]:
    server = settings.server
    endpoints = [
        f"--http-address={server.host}",
        f"--http-port={server.http_port}",
        f"--grpc-address={server.host}",
        f"--grpc-port={server.grpc_port}",
        f"--metrics-address={server.host}",
        f"--metrics-port={server.metrics_port}",
        *admin.arguments,
    ]
    if rank:
        endpoints = ["--allow-http=false", "--allow-grpc=false", "--allow-metrics=false"]
    return [
        str(installation.binary),
        f"--model-repository={repository}",
        "--model-control-mode=explicit",
        *(f"--load-model={model}" for model in (("target",) if rank else MODELS)),
        "--disable-auto-complete-config",
        *endpoints,
        f"--backend-config=python,shm-region-prefix-name={shared_memory_prefix}",
        f"--exit-timeout-secs={_STOP_SECONDS - 5}",
        *installation.arguments,
        *server.arguments,
    ]


def find_installation(workspace: Path) -> Installation:
    """Find a tritonserver: the one on PATH, else the one in the wheel nvidia-pytriton.

    Args:
        workspace: folder in which the wheel's Python backend is put together.

    Raises:
        ConfigurationError: there is neither.
    """
    on_path = shutil.which("tritonserver")
    if on_path:
        return Installation(Path(on_path), (), ())
    spec = importlib.util.find_spec("pytriton")
    if spec is None or spec.origin is None:
        raise ConfigurationError(
            "no tritonserver on PATH and the wheel nvidia-pytriton is not installed; "
            "run: pip install 'specprefill-triton[server]'"
        )
    package = Path(spec.origin).parent
    bundled = package / "tritonserver"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = bundled / "python_backend_stubs" / version / "triton_python_backend_stub"
    if not stub.exists():
        raise ConfigurationError(f"nvidia-pytriton has no Python backend for Python {version}")
    # The wheel keeps one stub per Python version; the backend wants one beside its library.
    backend = workspace / "backends" / "python"
    backend.mkdir(parents=True)
    for name in ("libtriton_python.so", "triton_python_backend_utils.py"):
        (backend / name).symlink_to(bundled / "backends" / "python" / name)
    (backend / stub.name).symlink_to(stub)
    libraries = package.parent / "nvidia_pytriton.libs"
    # Without the interpreter's own library folder the stub takes the system's libpython, whose
    # extension modules may not fit this interpreter's.
    interpreter = sysconfig.get_config_var("LIBDIR")
    return Installation(
        bundled / "bin" / "tritonserver",
        (
            f"--backend-directory={workspace / 'backends'}",
            f"--cache-directory={bundled / 'caches'}",
        ),
        (str(libraries), str(interpreter)),
    )


def _wait_for_end(group: int) -> None:
    """Wait until the kernel has freed what the killed members of a process group held."""
    deadline = time.monotonic() + _KILL_SECONDS
    with contextlib.suppress(ProcessLookupError):
        while time.monotonic() < deadline:
            os.killpg(group, 0)
            time.sleep(0.02)


def remove_shared_memory(prefix: str) -> None:
    """Remove shared-memory regions that a server left behind."""
    if _SHARED_MEMORY.is_dir():
        for region in _SHARED_MEMORY.glob(f"{prefix}*"):
            with contextlib.suppress(FileNotFoundError, PermissionError):
                region.unlink()


def remove_stale_shared_memory() -> None:
    """Remove the regions of servers whose launcher no longer lives."""
    for prefix in {_owner(region) for region in _SHARED_MEMORY.glob(f"{_SHM_PREFIX}*_*")}:
        if prefix is not None and not Path(f"/proc/{prefix}").exists():
            remove_shared_memory(f"{_SHM_PREFIX}{prefix}_")


def _owner(region: Path) -> int | None:
    found = re.match(rf"{_SHM_PREFIX}(\d+)_", region.name)
    return int(found.group(1)) if found else None


def _with_costs_folder(settings: Settings, workspace: Path) -> Settings:
    """Give the processes of one server a place to tell each other what their engines take."""
    if settings.gate.costs_folder is not None:
        return settings
    gate = settings.gate.model_copy(update={"costs_folder": str(workspace)})
    return settings.model_copy(update={"gate": gate})


def _with_model_folders(settings: Settings, progress: Callable[[str], None]) -> Settings:
    """Resolve model folders once, so that no step unpacks or checks the embedded model again."""
    values = settings.model_dump()
    for section in ("target", "draft"):
        folder = resolve_model(values[section]["model"], progress)
        if not folder.is_dir():
            raise ConfigurationError(f"{section}.model: folder {folder} does not exist")
        values[section]["model"] = str(folder.resolve())
    return Settings.model_validate(values)


def with_free_ports(settings: Settings, gateway: bool = False) -> Settings:
    """Replace ports of 0 by free ones and refuse ports that are taken.

    Args:
        settings: the deployment.
        gateway: whether the gateway's port is wanted, too.

    Raises:
        ConfigurationError: names the port.
    """
    fields = [("server", field) for field in ("http_port", "grpc_port", "metrics_port")]
    fields += [("gateway", "port")] if gateway else []
    taken: dict[int, str] = {}
    with contextlib.ExitStack() as held:  # held together, so that no port is given out twice
        for section, field in fields:
            chosen, name = getattr(settings, section), f"{section}.{field}"
            port = held.enter_context(_bound(chosen.host, getattr(chosen, field), name))
            if port in taken:
                raise ConfigurationError(f"{name}: {port} is {taken[port]}, too; choose another")
            taken[port] = name
            settings = settings.model_copy(
                update={section: chosen.model_copy(update={field: port})}
            )
    return settings


@contextlib.contextmanager
def _bound(host: str, port: int, field: str) -> Iterator[int]:
    with socket.socket(_family(host), socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as error:
            raise ConfigurationError(
                f"{field}: {host}:{port} cannot be bound: {error.strerror}; "
                "choose another port, or 0 for a free one"
            ) from error
        yield int(listener.getsockname()[1])


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def configured_environment(config: Path) -> dict[str, str]:
    """Return this process's environment for a child whose settings `config` holds completely."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(ENVIRONMENT_PREFIX)
    }
    return {**environment, CONFIG_VARIABLE: str(config)}


def die_with_parent() -> None:
    """Ask the kernel to end a child when the thread that starts it ends, or is killed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
