# SPDX-License-Identifier: Apache-2.0
"""Step 1: text or messages -> prompt ids, and what else there is to know of the prompt."""

from __future__ import annotations

from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from specprefill.engines import make_prompt_encoder
from specprefill.prompt import Prompt
from specprefill.settings import load_settings
from specprefill.triton_models import requests
from specprefill.triton_models.prompt_tensors import to_tensors
from specprefill.triton_models.tensors import SAMPLING, SELECTION
from specprefill.triton_models.timing import Timing


class PreprocessingModel:
    """Tokenises prompts."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the tokenizers."""
        self._settings = load_settings()
        self._encoder = make_prompt_encoder(self._settings)

    def execute(self, batch: list[Any]) -> list[Any]:
        """Answer each request with its prompt ids, or with what is wrong with it."""
        return [self._respond(request) for request in batch]

    def _respond(self, request: Any) -> Any:
        try:
            timing = Timing.start(request)
            if requests.is_stop(request):
                prompt = Prompt(np.zeros(1, dtype=np.int32))
            else:
                prompt = self._encode(request)
        except Exception as error:
            return requests.error_response(error)
        return pb_utils.InferenceResponse([*to_tensors(prompt), timing.tensor()])

    def _encode(self, request: Any) -> Prompt:
        text = requests.read_scalar(request, "text_input")
        messages = requests.read_scalar(request, "messages")
        requests.refuse_unsupported(request)
        selection = self._settings.selection.for_request(
            requests.read_overrides(request, SELECTION)
        )
        sampling = self._settings.sampling.for_request(requests.read_overrides(request, SAMPLING))
        return self._encoder.encode(
            text,
            messages,
            sampling.max_tokens,
            keep_spans=requests.read_scalar(request, "keep_spans"),
            verbatim_guard=selection.verbatim_guard,
            protect_last_user_tokens=selection.protect_last_user_tokens,
        )
