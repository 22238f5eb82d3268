# SPDX-License-Identifier: Apache-2.0
"""Step 1: text or messages -> prompt ids and protected spans."""

from __future__ import annotations

from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from specprefill.engines import make_prompt_encoder
from specprefill.settings import load_settings
from specprefill.triton_models import requests
from specprefill.triton_models.tensors import PROMPT_IDS, PROTECTED_SPANS, SAMPLING, SELECTION


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
            if requests.is_stop(request):
                ids, spans = np.zeros(1, dtype=np.int32), [(0, 0)]
            else:
                ids, spans = self._encode(request)
        except Exception as error:
            return requests.error_response(error)
        return pb_utils.InferenceResponse(
            [requests.batched(PROMPT_IDS, ids), requests.batched(PROTECTED_SPANS, spans)]
        )

    def _encode(self, request: Any) -> tuple[np.ndarray, list[tuple[int, int]]]:
        text = requests.read_scalar(request, "text_input")
        messages = requests.read_scalar(request, "messages")
        requests.refuse_unsupported(request)
        self._settings.selection.for_request(requests.read_overrides(request, SELECTION))
        sampling = self._settings.sampling.for_request(requests.read_overrides(request, SAMPLING))
        prompt = self._encoder.encode(text, messages, sampling.max_tokens)
        # Triton passes no tensor without elements between steps; an empty span protects nothing.
        return prompt.token_ids, list(prompt.protected) or [(0, 0)]
