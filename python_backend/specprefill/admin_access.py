# SPDX-License-Identifier: Apache-2.0
"""Keeps Triton's administrative APIs to whoever started the server."""

from __future__ import annotations

import contextlib
import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path

HEADER = "specprefill-admin"
# Loading a model runs code that the request brings; the others map memory and write files.
_APIS = "model-repository,shared-memory,trace,logging"
_FILE = "admin-secret"
_PROC = Path("/proc")
# Fields of /proc/PID/stat behind the command's name.
_ARGUMENTS_START, _ARGUMENTS_END = 45, 46


@dataclass(frozen=True, slots=True)
class AdminAccess:
    """The header that Triton asks for before it loads models, maps memory or writes files.

    Attributes:
        secret: the header's value, new for every start.
    """

    secret: str = field(default_factory=lambda: secrets.token_hex(32), repr=False)

    @property
    def arguments(self) -> tuple[str, str]:
        """Arguments of tritonserver, which has no other way to be told the secret."""
        rule = f"{_APIS}:{HEADER}={self.secret}"
        return f"--http-restricted-api={rule}", f"--grpc-restricted-protocol={rule}"

    @property
    def http_headers(self) -> dict[str, str]:
        """Headers of an administrative request over HTTP."""
        return {HEADER: self.secret}

    @property
    def grpc_headers(self) -> dict[str, str]:
        """Headers of an administrative request over gRPC."""
        return {f"triton-grpc-protocol-{HEADER}": self.secret}

    @classmethod
    def read(cls, folder: Path) -> AdminAccess:
        """Return what `write` left in a folder."""
        return cls((folder / _FILE).read_text())

    def write(self, folder: Path) -> None:
        """Leave the secret in a file that nobody but this user can read."""
        descriptor = os.open(folder / _FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(self.secret)

    def hide(self, pid: int) -> None:
        """Overwrite the secret in the command line of a server that has read it.

        Every user of the machine may read the command lines of all processes. Where the kernel
        does not let a process write into its child, the secret stays there.
        """
        secret = self.secret.encode()
        with contextlib.suppress(OSError):
            fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
            start, end = int(fields[_ARGUMENTS_START]), int(fields[_ARGUMENTS_END])
            with (_PROC / str(pid) / "mem").open("r+b", buffering=0) as memory:
                memory.seek(start)
                arguments = memory.read(end - start)
                memory.seek(start)
                memory.write(arguments.replace(secret, b"x" * len(secret)))
