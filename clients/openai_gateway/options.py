# SPDX-License-Identifier: Apache-2.0
"""The request's `specprefill` object: settings that the OpenAI API has no field for."""

from __future__ import annotations

import json
from typing import Annotated, Any, get_args, get_origin

from pydantic import Field, create_model
from specprefill.settings import SamplingSettings, SelectionSettings, allowed_values
from specprefill.triton_models.tensors import ENTRY

from openai_gateway.messages import RequestModel

_SAMPLING = ("top_k", "min_tokens", "repetition_penalty")
_INT32 = {tensor.name for tensor in ENTRY.inputs if tensor.dtype == "INT32"}
LARGEST_INT32 = 2**31 - 1
_Span = Annotated[
    list[Annotated[int, Field(ge=0, le=LARGEST_INT32)]], Field(min_length=2, max_length=2)
]


def _fields() -> dict[str, Any]:
    """Declare every selection setting and some sampling settings as optional fields."""
    declared = {
        **SelectionSettings.model_fields,
        **{name: SamplingSettings.model_fields[name] for name in _SAMPLING},
    }
    fields: dict[str, Any] = {}
    for name, info in declared.items():
        kind: Any = info.annotation
        if name in _INT32:
            kind = Annotated[kind, Field(le=LARGEST_INT32)]  # the tensor would wrap round
        for bound in info.metadata:  # a bound that comes later replaces an earlier one
            kind = Annotated[kind, bound]
        if any(get_origin(member) is dict for member in get_args(info.annotation)):
            kind = dict[str, float]  # its keys are the server's to judge
        fields[name] = (kind | None, Field(None, description=info.description))
    fields["timeout_ms"] = (
        Annotated[int, Field(ge=1, le=LARGEST_INT32)] | None,
        Field(None, description="The request fails when its answer is not complete by then."),
    )
    fields["keep_spans"] = (
        list[_Span] | None,
        Field(None, description="Half-open spans of characters of a completion's prompt to keep."),
    )
    return fields


Options: Any = create_model(
    "SpecPrefillOptions",
    __base__=RequestModel,
    __doc__="Selection settings and sampling settings beyond OpenAI's, for this request.",
    **_fields(),
)


def allowed_by_server(name: str) -> str | None:
    """Return the range of a setting as the server words it; None if it is no setting."""
    for section in (SelectionSettings, SamplingSettings):
        if name in section.model_fields:
            return allowed_values(section, name)
    return None


def read_options(options: Any) -> dict[str, Any]:
    """Return the inputs of the entry model that a request's `specprefill` object sets."""
    if options is None:
        return {}
    values: dict[str, Any] = options.model_dump(exclude_none=True)
    return {
        name: json.dumps(value) if isinstance(value, (dict, list)) else value
        for name, value in values.items()
    }
