# SPDX-License-Identifier: Apache-2.0
"""The FastAPI application."""

from __future__ import annotations

import time
from typing import Any

import specprefill
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.params import Security
from fastapi.security import HTTPBearer
from specprefill.settings import GatewaySettings
from starlette.exceptions import HTTPException

from openai_gateway.api_error import ApiError, ErrorBody, from_validation
from openai_gateway.api_keys import ApiKeys
from openai_gateway.body_limit import BodyLimit
from openai_gateway.chat_format import ChatFormat
from openai_gateway.completion_format import CompletionFormat
from openai_gateway.generation import Generation
from openai_gateway.identity import Identity
from openai_gateway.key_check import KeyCheck
from openai_gateway.metrics import MeteredApp, Metrics
from openai_gateway.request_models import ChatRequest, CompletionRequest
from openai_gateway.response_models import ChatCompletion, Completion, Health, Model, ModelList
from openai_gateway.responses import error_response, json_response
from openai_gateway.server_fields import chat_fields, completion_fields, public_names
from openai_gateway.strict_json import StrictJsonRoute
from openai_gateway.triton_backend import Backend

_ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": ErrorBody, "description": "The request cannot be answered as it is."},
    "5XX": {"model": ErrorBody, "description": "The server failed, is busy, or is not there."},
}
# With "stream": true; each event's data is one chunk as JSON, an error object, or [DONE].
_EVENT = {"type": "object", "properties": {"data": {"type": "string"}}, "required": ["data"]}
_STREAM: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {"schema": _EVENT}}}
}


def create_app(settings: GatewaySettings, backend: Backend, keys: ApiKeys) -> FastAPI:
    """Build the application.

    Args:
        settings: the gateway's settings.
        backend: answers the requests.
        keys: who may ask.
    """
    metrics = Metrics()
    app = FastAPI(
        title="SpecPrefill-Triton",
        version=specprefill.__version__,
        docs_url=None,  # its page loads scripts from elsewhere
        redoc_url=None,
        responses=_ERRORS,
        # The key itself is checked by KeyCheck, before a body is read.
        dependencies=[Security(HTTPBearer(auto_error=False))] if keys else [],
    )
    app.router.route_class = StrictJsonRoute
    _add_error_handlers(app)
    _add_generation(app, settings.model_name, backend, metrics)
    _add_information(app, settings.model_name, backend, metrics)
    # The last one added sees a request first.
    app.add_middleware(BodyLimit, limit_bytes=settings.max_body_bytes)
    app.add_middleware(KeyCheck, keys=keys)
    app.add_middleware(MeteredApp, metrics=metrics)
    return app


def _add_generation(app: FastAPI, name: str, backend: Backend, metrics: Metrics) -> None:
    @app.post("/v1/chat/completions", response_model=ChatCompletion, responses=_STREAM)
    async def create_chat_completion(request: Request, body: ChatRequest) -> Response:
        """Answer a conversation."""
        _check_model(body.model, name)
        usage = bool(body.stream_options and body.stream_options.include_usage)
        answer_format = ChatFormat(Identity.fresh("chatcmpl", name), bool(body.logprobs), usage)
        generation = Generation(request, backend, metrics)
        return await generation.respond(
            chat_fields(body), public_names(body), answer_format, bool(body.stream)
        )

    @app.post("/v1/completions", response_model=Completion, responses=_STREAM)
    async def create_completion(request: Request, body: CompletionRequest) -> Response:
        """Continue a text."""
        _check_model(body.model, name)
        usage = bool(body.stream_options and body.stream_options.include_usage)
        answer_format = CompletionFormat(Identity.fresh("cmpl", name), body.logprobs, usage)
        generation = Generation(request, backend, metrics)
        return await generation.respond(
            completion_fields(body), public_names(body), answer_format, bool(body.stream)
        )


def _add_information(app: FastAPI, name: str, backend: Backend, metrics: Metrics) -> None:
    model = Model(id=name, object="model", created=int(time.time()), owned_by="specprefill")

    @app.get("/v1/models")
    async def list_models() -> ModelList:
        """List the one model."""
        return ModelList(object="list", data=[model])

    @app.get("/v1/models/{model_id:path}")
    async def get_model(model_id: str) -> Model:
        """Describe the one model."""
        _check_model(model_id, name)
        return model

    @app.get("/health", response_model=Health)
    async def check_health() -> Response:
        """Tell whether Triton's entry model is ready; needs no API key."""
        if not await backend.is_ready():
            raise ApiError(503, "the entry model is not ready", code="server_unavailable")
        return json_response(Health(status="ok"))

    @app.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def show_metrics() -> Response:
        """Show the gateway's metrics in Prometheus' text format."""
        return Response(metrics.page(), media_type="text/plain; version=0.0.4")


def _add_error_handlers(app: FastAPI) -> None:
    @app.exception_handler(ApiError)
    async def answer_api_error(request: Request, error: ApiError) -> Response:
        return error_response(error)

    @app.exception_handler(RequestValidationError)
    async def answer_validation_error(request: Request, error: RequestValidationError) -> Response:
        return error_response(from_validation(error.errors(), error.body))

    @app.exception_handler(HTTPException)
    async def answer_http_error(request: Request, error: HTTPException) -> Response:
        message, code = str(error.detail), None
        if error.status_code == 404:
            message, code = f"no such URL: {request.method} {request.url.path!r}", "unknown_url"
        return error_response(
            ApiError(error.status_code, message, code=code, headers=error.headers)
        )

    @app.exception_handler(Exception)
    async def answer_failure(request: Request, error: Exception) -> Response:
        # What failed is in the log; it may hold what nobody outside should read.
        return error_response(ApiError(500, "the gateway failed", code="gateway_failed"))


def _check_model(asked: str, name: str) -> None:
    if asked != name:
        raise ApiError(
            404, f"the model {asked!r} does not exist; this is {name!r}", "model", "model_not_found"
        )
