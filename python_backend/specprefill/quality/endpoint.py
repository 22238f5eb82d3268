# SPDX-License-Identifier: Apache-2.0
"""Endpoint: every variant on every sample, through a running OpenAI-compatible server."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

from specprefill.errors import ConfigurationError, SpecPrefillError
from specprefill.quality import metrics
from specprefill.quality.outcome import Outcome
from specprefill.quality.sample import Sample
from specprefill.quality.variant import DENSE, Variant


class Endpoint:
    """Asks our gateway; a variant's selection travels in the request's `specprefill` object."""

    def __init__(self, base_url: str, model: str) -> None:
        """Use the API at base_url; the key is OPENAI_API_KEY, if set.

        Raises:
            ConfigurationError: the openai package is not installed.
        """
        try:
            from openai import OpenAI
        except ModuleNotFoundError as error:
            raise ConfigurationError(
                "--base-url needs the openai package; pip install openai"
            ) from error
        key = os.environ.get("OPENAI_API_KEY") or "unused"
        self._client = OpenAI(base_url=base_url, api_key=key, max_retries=0)
        self._model = model

    def run(self, sample: Sample, variants: Sequence[Variant]) -> Iterator[Outcome]:
        """Yield the dense outcome, then that of each variant.

        Raises:
            ConfigurationError: a variant changes the draft, which a request cannot.
            SpecPrefillError: the server refused or failed a request.
        """
        dense = self._ask(sample, Variant(DENSE, {"keep_rate": 1.0}))
        yield dense
        for variant in variants:
            if variant.draft:
                raise ConfigurationError(
                    f"variant {variant.label} changes the draft; a running server's is fixed"
                )
            yield self._ask(sample, variant)

    def _ask(self, sample: Sample, variant: Variant) -> Outcome:
        from openai import OpenAIError

        fields: dict[str, Any] = {
            "model": self._model,
            "max_tokens": sample.max_tokens,
            "temperature": 0,
            "extra_body": {"specprefill": dict(variant.selection)},
        }
        try:
            if sample.chat:
                messages: Any = [{"role": "user", "content": sample.prompt}]
                answer: Any = self._client.chat.completions.create(messages=messages, **fields)
                text = answer.choices[0].message.content
            else:
                answer = self._client.completions.create(prompt=sample.prompt, **fields)
                text = answer.choices[0].text
        except OpenAIError as error:
            raise SpecPrefillError(f"sample {sample.name}, {variant.label}: {error}") from error
        statistics = (answer.model_extra or {}).get("specprefill")
        if statistics is None:
            raise SpecPrefillError("the server's answer has no specprefill object: not our gateway")
        return Outcome(
            sample.name,
            sample.task,
            sample.length,
            variant.label,
            text,
            metrics.score(sample, text),
            statistics["prompt_tokens"],
            statistics["kept_tokens"],
            statistics["draft_ms"],
            statistics["target_prefill_ms"],
            statistics["reason"],
        )
