# SPDX-License-Identifier: Apache-2.0
"""Property tests from the gateway's own OpenAPI schema: no 5xx, every response as described."""

import hypothesis
import schemathesis
from openai_gateway.api_keys import ApiKeys
from openai_gateway.app import create_app
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)
from specprefill.settings import GatewaySettings

from tests.gateway.stand_in import StandIn

APP = create_app(GatewaySettings(), StandIn(), ApiKeys())
SCHEMA = schemathesis.openapi.from_asgi("/openapi.json", APP)
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
    unsupported_method,
]


@schemathesis.hook
def map_body(context, body):
    """Ask for the model that there is, or every request would end at its name."""
    if isinstance(body, dict) and isinstance(body.get("model"), str) and body["model"]:
        return {**body, "model": "specprefill"}
    return body


@SCHEMA.parametrize()
@hypothesis.settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(hypothesis.HealthCheck),
)
def test_every_response_is_as_the_schema_says(case):
    case.call_and_validate(checks=CHECKS)
