# SPDX-License-Identifier: Apache-2.0
"""The loader, in fresh processes, with libraries that only count calls and with the real one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

COUNTING_LIBRARY = """
#include <stdio.h>
__attribute__((constructor)) static void loaded(void) { fprintf(stderr, "LOADED\\n"); }
int explicit_rotary_tensorrt_major(void) { return COMPILED_FOR; }
int explicit_rotary_register(void) { fprintf(stderr, "REGISTERED\\n"); return REGISTER_STATUS; }
"""

LOAD_ONCE = "print(load_plugin())"


@dataclass
class Sandbox:
    """A folder with a fake tensorrt module and counting libraries, and runs with only those."""

    folder: Path

    def tensorrt(self, version: str, library: Path | None = None) -> None:
        lines = [f"__version__ = {version!r}"]
        if library is not None:
            # As the tensorrt wheel does: in the process, but not in the global scope.
            lines.append(f"import ctypes; handle = ctypes.CDLL({str(library)!r})")
        (self.folder / "tensorrt.py").write_text("\n".join(lines))

    def library(
        self, name: str, compiled_for: int = 10, register_status: int = 1, folder: str = "plugins"
    ) -> Path:
        compiler = shutil.which("cc")
        if compiler is None:
            pytest.skip("cc is not on PATH")
        target = self.folder / folder / name
        target.parent.mkdir(exist_ok=True)
        source = self.folder / "counting.c"
        source.write_text(COUNTING_LIBRARY)
        command = [compiler, "-shared", "-fPIC", f"-DCOMPILED_FOR={compiled_for}"]
        command += [f"-DREGISTER_STATUS={register_status}", str(source), "-o", str(target)]
        subprocess.run(command, check=True)
        return target

    def run(self, code: str, **environment: str) -> subprocess.CompletedProcess[str]:
        import specprefill

        package_root = Path(specprefill.__file__).resolve().parents[1]
        inherited = {
            name: value for name, value in os.environ.items() if name != "SPECPREFILL_PLUGIN_PATH"
        }
        preamble = (
            "from specprefill.errors import EngineError\n"
            "from specprefill.explicit_rotary.loader import load_plugin\n"
        )
        return subprocess.run(
            [sys.executable, "-c", preamble + code],
            capture_output=True,
            text=True,
            check=False,
            env=inherited | {"PYTHONPATH": f"{self.folder}:{package_root}"} | environment,
        )

    def error(self, code: str = LOAD_ONCE, **environment: str) -> str:
        indented = code.replace("\n", "\n    ")
        wrapped = f"try:\n    {indented}\nexcept EngineError as error:\n    print('ERROR', error)"
        finished = self.run(wrapped, **environment)
        assert finished.stdout.startswith("ERROR "), finished
        return finished.stdout


@pytest.fixture
def sandbox(tmp_path: Path) -> Sandbox:
    made = Sandbox(tmp_path)
    made.tensorrt("10.14.1.48")
    return made


def test_loads_the_file_that_the_environment_names(sandbox: Sandbox) -> None:
    library = sandbox.library("libexplicit_rotary_trt10.so")
    finished = sandbox.run(LOAD_ONCE, SPECPREFILL_PLUGIN_PATH=str(library))
    assert finished.stdout.strip() == str(library), finished
    assert finished.stderr == "LOADED\nREGISTERED\n"


def test_a_folder_is_searched_for_the_running_major(sandbox: Sandbox) -> None:
    sandbox.library("libexplicit_rotary_trt9.so", compiled_for=9)
    ten = sandbox.library("libexplicit_rotary_trt10.so")
    eleven = sandbox.library("libexplicit_rotary_trt11.so", compiled_for=11)
    folder = str(ten.parent)
    assert sandbox.run(LOAD_ONCE, SPECPREFILL_PLUGIN_PATH=folder).stdout.strip() == str(ten)
    sandbox.tensorrt("11.1.0")
    assert sandbox.run(f"print(load_plugin({folder!r}))").stdout.strip() == str(eleven)


def test_the_argument_goes_before_the_environment(sandbox: Sandbox) -> None:
    from_environment = sandbox.library("libexplicit_rotary_trt10.so")
    argument = sandbox.library("libexplicit_rotary_trt10.so", folder="others")
    finished = sandbox.run(
        f"print(load_plugin({str(argument)!r}))", SPECPREFILL_PLUGIN_PATH=str(from_environment)
    )
    assert finished.stdout.strip() == str(argument)


def test_threads_load_it_once(sandbox: Sandbox) -> None:
    library = sandbox.library("libexplicit_rotary_trt10.so")
    code = (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor(16) as pool:\n"
        "    paths = list(pool.map(lambda _: load_plugin(), range(64)))\n"
        "print(set(map(str, paths)))\n"
        f"load_plugin({str(library)!r}); load_plugin({str(library.parent)!r})"
    )
    finished = sandbox.run(code, SPECPREFILL_PLUGIN_PATH=str(library))
    assert finished.returncode == 0, finished
    assert finished.stdout.strip() == str({str(library)})
    assert finished.stderr == "LOADED\nREGISTERED\n"


def test_another_major_is_refused_before_it_is_opened(sandbox: Sandbox) -> None:
    library = sandbox.library("libexplicit_rotary_trt11.so", compiled_for=11)
    for path in (library, library.parent):
        finished = sandbox.run(LOAD_ONCE, SPECPREFILL_PLUGIN_PATH=str(path))
        assert "LOADED" not in finished.stderr
        message = sandbox.error(SPECPREFILL_PLUGIN_PATH=str(path))
        assert "running TensorRT 10.14.1.48" in message
        assert f"{library} for TensorRT 11" in message


def test_majors_are_compared_as_numbers_not_as_prefixes(sandbox: Sandbox) -> None:
    library = sandbox.library("libexplicit_rotary_trt1.so", compiled_for=1)
    message = sandbox.error(SPECPREFILL_PLUGIN_PATH=str(library))
    assert "for TensorRT 1;" in message


def test_a_renamed_library_is_refused(sandbox: Sandbox) -> None:
    library = sandbox.library("libexplicit_rotary_trt10.so", compiled_for=11)
    message = sandbox.error(SPECPREFILL_PLUGIN_PATH=str(library))
    assert "was compiled for TensorRT 11, but TensorRT 10.14.1.48 is running" in message


def test_a_file_name_without_a_major_is_refused(sandbox: Sandbox) -> None:
    library = sandbox.library("libmine.so")
    message = sandbox.error(SPECPREFILL_PLUGIN_PATH=str(library))
    assert "libmine.so does not name its TensorRT major" in message


def test_a_second_different_library_is_refused(sandbox: Sandbox) -> None:
    first = sandbox.library("libexplicit_rotary_trt10.so")
    second = sandbox.library("libexplicit_rotary_trt10.so", folder="others")
    code = f"load_plugin({str(first)!r})\nload_plugin({str(second)!r})"
    assert f"{first} is already loaded, not {second}" in sandbox.error(code)


def test_a_refused_registration_is_an_error_and_can_be_tried_again(sandbox: Sandbox) -> None:
    broken = sandbox.library("libexplicit_rotary_trt10.so", register_status=-1, folder="broken")
    working = sandbox.library("libexplicit_rotary_trt10.so")
    assert "refused the creator" in sandbox.error(SPECPREFILL_PLUGIN_PATH=str(broken))
    code = (
        f"try:\n    load_plugin({str(broken)!r})\nexcept EngineError:\n"
        f"    print(load_plugin({str(working)!r}))"
    )
    assert sandbox.run(code).stdout.strip() == str(working)


def test_a_missing_file_an_empty_folder_and_a_broken_file(sandbox: Sandbox) -> None:
    missing = sandbox.folder / "libexplicit_rotary_trt10.so"
    assert "does not exist" in sandbox.error(SPECPREFILL_PLUGIN_PATH=str(missing))
    message = sandbox.error(SPECPREFILL_PLUGIN_PATH=str(sandbox.folder))
    assert "is not built" in message
    assert str(sandbox.folder) in message
    missing.write_text("not a library")
    assert "cannot be loaded" in sandbox.error(SPECPREFILL_PLUGIN_PATH=str(missing))


def test_a_library_without_our_entry_points_is_refused(sandbox: Sandbox) -> None:
    library = sandbox.library("libexplicit_rotary_trt10.so")
    source = sandbox.folder / "empty.c"
    source.write_text("int nothing;")
    subprocess.run(["cc", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    assert "cannot be loaded" in sandbox.error(SPECPREFILL_PLUGIN_PATH=str(library))


def test_without_tensorrt(sandbox: Sandbox) -> None:
    library = sandbox.library("libexplicit_rotary_trt10.so")
    (sandbox.folder / "tensorrt.py").write_text("raise ImportError('not here')")
    message = sandbox.error(SPECPREFILL_PLUGIN_PATH=str(library))
    assert "TensorRT cannot be imported in this process" in message


def test_the_real_plugin_with_a_stand_in_registry(
    sandbox: Sandbox, plugin_library: Path, stand_in_library: Path, tensorrt_major: int
) -> None:
    sandbox.tensorrt(f"{tensorrt_major}.14.1", stand_in_library)
    code = (
        "print(load_plugin())\nload_plugin()\nimport tensorrt\n"
        "has = tensorrt.handle.stand_in_has_creator\n"
        "print(has(b'ExplicitRotary', b'1', b'specprefill'))\n"
        "print(tensorrt.handle.stand_in_registration_calls())"
    )
    finished = sandbox.run(code, SPECPREFILL_PLUGIN_PATH=str(plugin_library.parent))
    assert finished.stdout.split() == [str(plugin_library), "1", "1"], finished


def test_the_real_plugin_without_tensorrts_library(
    sandbox: Sandbox, plugin_library: Path, tensorrt_major: int
) -> None:
    sandbox.tensorrt(f"{tensorrt_major}.14.1")
    message = sandbox.error(SPECPREFILL_PLUGIN_PATH=str(plugin_library))
    assert f"libnvinfer.so.{tensorrt_major}" in message
