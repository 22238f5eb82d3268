# SPDX-License-Identifier: Apache-2.0
"""Errors as the OpenAI API words them, and how everybody else's errors become such."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel
from specprefill.client import ServerError
from specprefill.errors import SpecPrefillError

from openai_gateway.options import LARGEST_INT32, allowed_by_server

CLIENT_GONE = 499
_SHOWN_CHARACTERS = 80
# The server's sentence: "field: what is wrong; allowed: what would be right".
_SENTENCE = re.compile(r"(?P<field>[A-Za-z_][\w.\[\]]*): .*; allowed: ", re.DOTALL)
# How Triton words that a Python model's process has died; its status then blames the request.
_DEAD_PROCESS = "is not healthy"
_TIMED_OUT = "timeout_ms: the answer was not complete"


class ErrorDetail(BaseModel):
    """What went wrong, as OpenAI's clients read it."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """The body of every response that is no success."""

    error: ErrorDetail


class ApiError(SpecPrefillError):
    """An error with its HTTP status and its OpenAI error object.

    Attributes:
        status: HTTP status.
        detail: the error object.
        headers: extra response headers.
    """

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Build the error object; its type follows from the status."""
        super().__init__(message)
        self.status = status
        kind = "invalid_request_error" if status < CLIENT_GONE else "server_error"
        if status == 401:
            kind = "authentication_error"
        self.detail = ErrorDetail(message=message, type=kind, param=param, code=code)
        self.headers = dict(headers or {})

    @property
    def body(self) -> ErrorBody:
        """Return what is sent."""
        return ErrorBody(error=self.detail)


def from_server_error(error: ServerError, names: Mapping[str, str]) -> ApiError:
    """Translate Triton's error.

    Args:
        error: what the server said; its status is a gRPC status name if it is known.
        names: public input of the server -> the request's own name for it.
    """
    message, status = str(error), error.status or ""
    found = _SENTENCE.match(message)
    if found is not None:
        field = found["field"]
        # messages[0].role and messages are both the input `messages`.
        base = re.split(r"[.\[]", field, maxsplit=1)[0]
        param = names.get(base, base) + field[len(base) :]
        sentence = param + message[len(field) :]
        if message.startswith(_TIMED_OUT):
            return ApiError(504, sentence, param, "timeout")
        return ApiError(400, sentence, param, "invalid_value")
    if "server busy" in message:
        return ApiError(503, message, code="server_busy", headers={"Retry-After": "1"})
    if status.endswith("CANCELLED") or "cancelled" in message:
        return ApiError(CLIENT_GONE, message, code="request_cancelled")
    if status.endswith("UNAVAILABLE") or _DEAD_PROCESS in message:
        return ApiError(
            503,
            f"the inference server is unavailable: {message}",
            code="server_unavailable",
            headers={"Retry-After": "1"},
        )
    if status.endswith("INVALID_ARGUMENT"):
        return ApiError(400, message, code="invalid_value")
    return ApiError(500, message or "the inference server failed", code="server_failed")


def from_validation(problems: Sequence[Mapping[str, Any]], body: Any) -> ApiError:
    """Word the most telling of pydantic's problems with a request body."""
    if isinstance(body, bytes):
        return ApiError(
            400, "the body must be JSON, sent with Content-Type: application/json", code="no_json"
        )
    paths = [_path(problem, body) for problem in problems]
    # Of the alternatives of a union, the one that got furthest is the one that was meant.
    chosen = max(range(len(problems)), key=lambda i: len(paths[i]))
    problem, param = problems[chosen], _render(paths[chosen])
    kind = problem["type"]
    if kind == "extra_forbidden":
        return ApiError(400, f"{param}: unknown or unsupported field", param, "unknown_parameter")
    if kind == "missing":
        return ApiError(400, f"{param or 'body'}: missing", param, "missing_required_parameter")
    if kind == "union_tag_invalid":
        tag, expected = problem["ctx"]["tag"], problem["ctx"]["expected_tags"]
        param = f"{param}.{problem['ctx']['discriminator'][1:-1]}"
        message = f"{param}: got {_shown(tag)}; allowed: {expected}"
        return ApiError(400, message, param, "invalid_value")
    path, bound = paths[chosen], problem.get("ctx", {}).get("le")
    if path[:1] == ["specprefill"] and len(path) > 1 and bound != LARGEST_INT32:
        allowed = allowed_by_server(str(path[1]))
        if allowed is not None:
            param = _render(path[:2])
            message = f"{param}: got {_shown(problem['input'])}; allowed: {allowed}"
            return ApiError(400, message, param, "invalid_value")
    text = problem["msg"]
    message = f"{param or 'body'}: got {_shown(problem['input'])}; {text[0].lower()}{text[1:]}"
    return ApiError(400, message, param, "invalid_value")


def _path(problem: Mapping[str, Any], body: Any) -> list[str | int]:
    """Return where the problem lies, without the names of union members that pydantic puts in."""
    path: list[str | int] = []
    here = body
    location = problem["loc"][1:]
    for i, step in enumerate(location):
        last = i + 1 == len(location)
        if isinstance(here, dict) and (step in here or (last and problem["type"] == "missing")):
            here = here.get(step)
        elif isinstance(here, list) and isinstance(step, int) and step < len(here):
            here = here[step]
        else:
            continue
        path.append(step)
    return path


def _render(path: Sequence[str | int]) -> str | None:
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".") or None


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."
