# SPDX-License-Identifier: Apache-2.0
"""The folder of the clients."""

from pathlib import Path

CLIENTS = Path(__file__).resolve().parents[2] / "clients"
