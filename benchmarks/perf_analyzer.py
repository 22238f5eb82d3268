# SPDX-License-Identifier: Apache-2.0
"""Gets perf_analyzer, runs it, and reads what it measured.

    python -m benchmarks.perf_analyzer --install       # prints where it is and how to start it
    python -m benchmarks.perf_analyzer export.json     # TTFT and inter-token latency of a run

The binary is in the wheel tritonclient 2.51.0 (newer wheels need a newer glibc, or have none). The
two libraries it needs beyond a bare Debian, libb64 and the CUDA runtime, lie in nvidia-pytriton's
wheel under mangled names: links make them found, without apt and without a GPU.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from specprefill.errors import ConfigurationError

WHEEL = "tritonclient==2.51.0"
FOLDER = Path(__file__).resolve().parents[1] / "build" / "perf_analyzer"
# Name that the binary asks for -> how the file begins in nvidia_pytriton.libs.
LIBRARIES = {"libb64.so.0d": "libb64-", "libcudart.so.12": "libcudart-"}


@dataclass(frozen=True, slots=True)
class Summary:
    """What one run of perf_analyzer measured, in seconds.

    Attributes:
        requests: finished requests.
        responses: pieces of text over all of them.
        ttft: of each request, from sending it to its first piece.
        gaps: between the pieces of one answer, over all requests.
    """

    requests: int
    responses: int
    ttft: tuple[float, ...]
    gaps: tuple[float, ...]

    def percentile(self, values: Sequence[float], percent: int) -> float:
        """Return a percentile in seconds; NaN without values."""
        if len(values) < 2:
            return values[0] if values else float("nan")
        return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def find(folder: Path = FOLDER) -> tuple[Path, dict[str, str]]:
    """Return perf_analyzer and the environment to run it in: the one on PATH, else the wheel's.

    Args:
        folder: where the wheel's binary and the links are kept.

    Raises:
        ConfigurationError: the wheel cannot be had, or a library is missing.
    """
    on_path = shutil.which("perf_analyzer")
    if on_path:
        return Path(on_path), dict(os.environ)
    binary = folder / "perf_analyzer"
    folder.mkdir(parents=True, exist_ok=True)
    if not binary.is_file():
        _unpack(_download(folder), binary)
    for name, start in LIBRARIES.items():
        link = folder / name
        link.unlink(missing_ok=True)
        link.symlink_to(_library(start))
    path = os.pathsep.join((str(folder), os.environ.get("LD_LIBRARY_PATH", ""))).strip(os.pathsep)
    environment = {**os.environ, "LD_LIBRARY_PATH": path}
    told = subprocess.run(
        [binary, "--version"], env=environment, capture_output=True, text=True, check=False
    )
    if told.returncode:
        raise ConfigurationError(f"perf_analyzer does not start here: {told.stderr.strip()}")
    return binary, environment


def _download(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--quiet"]
    command += ["--no-deps", "--only-binary=:all:", "--dest", str(folder), WHEEL]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(folder.glob("tritonclient-*.whl"))
    if told.returncode or not wheels:
        raise ConfigurationError(f"pip cannot download {WHEEL}: {told.stderr.strip()[-500:]}")
    return wheels[-1]


def _unpack(wheel: Path, binary: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith("/bin/perf_analyzer")]
        if not names:
            raise ConfigurationError(f"{wheel.name} holds no perf_analyzer")
        part = binary.with_suffix(".part")
        part.write_bytes(archive.read(names[0]))
    part.chmod(0o755)
    part.rename(binary)  # an interrupted start leaves no half binary
    wheel.unlink()


def _library(start: str) -> Path:
    try:
        files = importlib.metadata.files("nvidia-pytriton") or []
    except importlib.metadata.PackageNotFoundError as error:
        raise ConfigurationError(
            "perf_analyzer needs libb64 and libcudart from the wheel nvidia-pytriton; "
            "run: pip install 'specprefill-triton[server]', or put a perf_analyzer on PATH"
        ) from error
    for file in files:
        if file.name.startswith(start):
            return Path(str(file.locate())).resolve()
    raise ConfigurationError(f"the wheel nvidia-pytriton has no {start}*.so")


def run(
    grpc_url: str,
    model: str,
    input_data: Path,
    export: Path,
    load: Sequence[str],
    tool: tuple[Path, Mapping[str, str]],
    timeout_seconds: float,
) -> Summary:
    """Run perf_analyzer over gRPC streaming.

    Args:
        grpc_url: host:port.
        model: entry model.
        input_data: from `specprefill perf-input`.
        export: where it writes its raw measurements.
        load: options that set the load, for example ("--concurrency-range", "2").
        tool: from `find`.
        timeout_seconds: when to give up.

    Raises:
        ConfigurationError: it failed; with the end of what it printed.
    """
    binary, environment = tool
    export.unlink(missing_ok=True)  # it refuses a file that exists
    command = [str(binary), "-m", model, "-u", grpc_url, "-i", "grpc", "--async", "--streaming"]
    command += ["--input-data", str(input_data), "--profile-export-file", str(export)]
    # It repeats a measurement until three in a row agree within this many percent; one is enough.
    command += ["--stability-percentage", "999", *load]
    told = subprocess.run(
        command,
        env=dict(environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_seconds,
        check=False,
    )
    if told.returncode:
        # A wrong option is told before two hundred lines of usage.
        problem = told.stdout.split("\nUsage:")[0][-1500:].strip()
        raise ConfigurationError(f"perf_analyzer ended with {told.returncode}: {problem}")
    return load_export(export)


def load_export(path: Path) -> Summary:
    """Read a file of --profile-export-file.

    Raises:
        ConfigurationError: it is missing, or perf_analyzer ended before it was written.
    """
    try:
        return read_export(json.loads(path.read_text()))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path} is no export of perf_analyzer: {error}") from error


def read_export(export: Mapping[str, Any]) -> Summary:
    """Read a --profile-export-file; times in it are nanoseconds.

    A response without text, which Triton sometimes sends to end a stream, is no token.
    """
    requests = [request for run in export["experiments"] for request in run["requests"]]
    ttft, gaps, responses = [], [], 0
    for request in requests:
        outputs = request.get("response_outputs") or [{}] * len(request["response_timestamps"])
        times = [
            at / 1e9
            for at, output in zip(request["response_timestamps"], outputs, strict=True)
            if output.get("text_output", "?") != ""
        ]
        responses += len(times)
        if times:
            ttft.append(times[0] - request["timestamp"] / 1e9)
        gaps += [later - earlier for earlier, later in itertools.pairwise(times)]
    return Summary(len(requests), responses, tuple(ttft), tuple(gaps))


def table(rows: Mapping[str, Summary]) -> Table:
    """Lay the percentiles out, one row per run."""
    out = Table(title="perf_analyzer, seconds")
    columns = ("run", "requests", "TTFT p50", "p90", "p99", "inter-token p50", "p90", "p99")
    for column in columns:
        out.add_column(column, justify="left" if column == "run" else "right")
    for name, row in rows.items():
        values = ((times, percent) for times in (row.ttft, row.gaps) for percent in (50, 90, 99))
        cells = [f"{row.percentile(times, percent):.3f}" for times, percent in values]
        out.add_row(name, str(row.requests), *cells)
    return out


def main() -> None:
    """Read exports, or install the tool."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("exports", nargs="*", type=Path, help="files of --profile-export-file")
    parser.add_argument("--install", action="store_true", help="get perf_analyzer")
    arguments = parser.parse_args()
    console = Console(width=110)
    try:
        _show(arguments, console)
    except ConfigurationError as error:
        raise SystemExit(f"error: {error}") from error


def _show(arguments: argparse.Namespace, console: Console) -> None:
    if arguments.install:
        binary, environment = find()
        path = environment.get("LD_LIBRARY_PATH", "")
        console.print(f"LD_LIBRARY_PATH={path} {binary}", soft_wrap=True, highlight=False)
    rows = {path.name: load_export(path) for path in arguments.exports}
    if rows:
        console.print(table(rows))


if __name__ == "__main__":
    main()
