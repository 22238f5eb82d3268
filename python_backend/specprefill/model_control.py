# SPDX-License-Identifier: Apache-2.0
"""Triton's model repository API, and the cheapest real inference of every model, over HTTP."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
import uuid
from typing import Any

from specprefill.admin_access import AdminAccess
from specprefill.errors import EngineError
from specprefill.triton_models.tensors import MODELS, Tensor

READY, UNLOADING = "READY", "UNLOADING"
_SECONDS = 5.0
_VALUES: dict[str, Any] = {"STRING": "", "BOOL": False, "FP32": 0.0}


class ModelControl:
    """Loads, unloads and asks the models of a running server."""

    def __init__(self, http_url: str, admin: AdminAccess) -> None:
        """Use the HTTP endpoint at host:port."""
        self._base = f"http://{http_url}/v2"
        self._headers = {"Content-Type": "application/json", **admin.http_headers}

    def states(self) -> dict[str, str]:
        """Return each model's state, for example READY or UNLOADING."""
        index = self._post("repository/index", {}, _SECONDS)
        return {entry["name"]: entry.get("state", "") for entry in index}

    def load(self, model: str, seconds: float) -> None:
        """Load a model; it is ready when this returns."""
        self._post(f"repository/models/{model}/load", {}, seconds)

    def unload(self, model: str) -> None:
        """Take no more requests for a model; it is gone when its last one is answered."""
        self._post(f"repository/models/{model}/unload", {}, _SECONDS)

    def ask(self, model: str, seconds: float) -> None:
        """Let a model answer the stop request of a request that does not exist.

        No model works for it, and it does not wait behind those that one works for.
        """
        required = {t.name: _value(t) for t in MODELS[model].inputs if not t.optional}
        body = {**required, "stop": True, "id": f"probe-{uuid.uuid4().hex}"}
        self._post(f"models/{model}/generate", body, seconds)

    def _post(self, path: str, body: dict[str, Any], seconds: float) -> Any:
        """POST JSON and return the answer's.

        Raises:
            EngineError: the server did not answer in time, or answered with an error.
        """
        request = urllib.request.Request(
            f"{self._base}/{path}", json.dumps(body).encode(), self._headers
        )
        try:
            with urllib.request.urlopen(request, timeout=seconds) as response:
                text = response.read()
        except urllib.error.HTTPError as error:
            raise EngineError(f"{path}: {_sentence(error.read())}") from error
        except OSError as error:
            raise EngineError(f"{path}: {error}") from error
        return json.loads(text) if text.strip() else None


def _value(tensor: Tensor) -> Any:
    value = _VALUES.get(tensor.dtype, 0)
    return value if tensor.dims == (1,) else [value]


def _sentence(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace")
