# SPDX-License-Identifier: Apache-2.0
"""The serving tests' real server, and the folder of the clients."""

from pathlib import Path

from tests.serving.conftest import messages, server

CLIENTS = Path(__file__).resolve().parents[2] / "clients"

__all__ = ["CLIENTS", "messages", "server"]
