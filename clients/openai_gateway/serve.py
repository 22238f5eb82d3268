# SPDX-License-Identifier: Apache-2.0
"""Serves the gateway until it is told to stop."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import signal
import socket
from collections.abc import Callable

import uvicorn
from specprefill.errors import ConfigurationError
from specprefill.settings import Settings

from openai_gateway.api_keys import ApiKeys, load_api_keys
from openai_gateway.app import create_app
from openai_gateway.triton_backend import TritonBackend

# Longer than clients keep idle connections, so that none is closed just as it is used again.
_KEEP_ALIVE_SECONDS = 75
_log = logging.getLogger("openai_gateway")


def serve(
    settings: Settings,
    triton_url: str | None = None,
    listening: Callable[[str], None] = lambda _: None,
) -> None:
    """Serve until SIGTERM or Ctrl-C; running answers may end within `server.drain_seconds`.

    Args:
        settings: `gateway` says where and for whom; `server` where Triton is.
        triton_url: host:port of Triton's gRPC endpoint, if it is another.
        listening: told the endpoint's URL once it listens.

    Raises:
        ConfigurationError: the port is taken, or API keys or root certificates cannot be read.
    """
    gateway, server = settings.gateway, settings.server
    keys = load_api_keys(gateway.api_key_file)
    listener = _listen(gateway.host, gateway.port)
    host = f"[{gateway.host}]" if ":" in gateway.host else gateway.host
    url = f"http://{host}:{listener.getsockname()[1]}/v1"
    if not keys and not _is_loopback(gateway.host):
        _log.warning("%s is open to everybody who can reach it: there are no API keys", url)
    # uvicorn raises the signal once more after it has ended; that must not end the process badly.
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.signal(signal.SIGINT, lambda *_: None)
    with listener:
        asyncio.run(
            _serve(
                settings,
                triton_url or f"{server.host}:{server.grpc_port}",
                keys,
                listener,
                lambda: listening(url),
            )
        )


async def _serve(
    settings: Settings,
    triton_url: str,
    keys: ApiKeys,
    listener: socket.socket,
    listening: Callable[[], None],
) -> None:
    async with TritonBackend(triton_url, settings.gateway.root_certificates) as backend:
        app = create_app(settings.gateway, backend, keys)
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=round(settings.server.drain_seconds),
        )
        listening()
        await uvicorn.Server(config).serve([listener])


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise ConfigurationError(
            f"gateway.port: {host}:{port} cannot be bound: {error.strerror or error}"
        ) from error


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
