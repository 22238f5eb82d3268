# SPDX-License-Identifier: Apache-2.0
"""A prompt as the tensors that travel from preprocessing to the draft."""

from __future__ import annotations

from typing import Any

import numpy as np

from specprefill.errors import InvalidRequestError
from specprefill.prompt import Prompt
from specprefill.triton_models import requests
from specprefill.triton_models.tensors import (
    BORDERS,
    DENSE_REASON,
    DRAFT_IDS,
    DRAFT_RANGES,
    PROMPT_IDS,
    PROTECTED_SPANS,
    ROLE_SPANS,
)

# Triton passes no tensor without elements between steps: an empty span covers nothing, and
# no token has a negative id.
_NO_SPANS = [(0, 0)]
_NO_ROLE_SPANS = [(0, 0, 0)]
_NO_IDS = [-1]


def to_tensors(prompt: Prompt) -> list[Any]:
    """Return the tensors that carry a prompt."""
    return [
        requests.batched(PROMPT_IDS, prompt.token_ids),
        requests.batched(PROTECTED_SPANS, list(prompt.protected) or _NO_SPANS),
        requests.batched(ROLE_SPANS, list(prompt.role_spans) or _NO_ROLE_SPANS),
        requests.batched(BORDERS, [0] if prompt.borders is None else prompt.borders),
        requests.batched(DENSE_REASON, prompt.dense_reason),
        requests.batched(DRAFT_IDS, _NO_IDS if prompt.draft_ids is None else prompt.draft_ids),
        requests.batched(
            DRAFT_RANGES, _NO_SPANS if prompt.draft_ranges is None else prompt.draft_ranges
        ),
    ]


def read_prompt(request: Any) -> Prompt:
    """Build the prompt from the tensors of a request to the draft step.

    Raises:
        InvalidRequestError: a tensor of preprocessing is missing.
    """
    arrays: dict[str, np.ndarray] = {}
    for tensor in (PROMPT_IDS, PROTECTED_SPANS, ROLE_SPANS, BORDERS, DRAFT_IDS, DRAFT_RANGES):
        array = requests.read_array(request, tensor.name)
        if array is None:
            raise InvalidRequestError(tensor.name, "missing", "the output of preprocessing")
        arrays[tensor.name] = array
    ids, borders = arrays[PROMPT_IDS.name], arrays[BORDERS.name]
    draft_ids = arrays[DRAFT_IDS.name]
    same_tokens = draft_ids[0] < 0
    return Prompt(
        token_ids=ids,
        protected=_spans(arrays[PROTECTED_SPANS.name]),
        role_spans=_spans(arrays[ROLE_SPANS.name]),
        borders=borders if len(borders) == len(ids) else None,
        dense_reason=requests.read_scalar(request, DENSE_REASON.name) or "",
        draft_ids=None if same_tokens else draft_ids,
        draft_ranges=None if same_tokens else arrays[DRAFT_RANGES.name],
    )


def _spans(array: np.ndarray) -> tuple[Any, ...]:
    """Return the rows [n, 2 or 3] that are not empty as tuples of int."""
    return tuple(tuple(int(v) for v in row) for row in array if row[0] < row[1])
